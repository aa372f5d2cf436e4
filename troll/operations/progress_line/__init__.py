"""What a run of the workflow shows: one line that says how far it is, in place of Snakemake's log.

Looked at first: snakemake-logger-plugin-rich (0.5.1), which has a bar for each rule in a panel. It tells no
time left, writes nothing while it runs where there is no terminal, prints the whole log of a job that failed,
and knows no verdicts. So this is a handler of our own, by Snakemake's interface for logger plugins. The
Snakefile puts it in place (`show`); it is not found by name, because Snakemake finds no plugin in a package
that is installed as editable, as ``make env`` installs this one.
"""

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from troll.experiment.experiment import Experiment

if TYPE_CHECKING:
    from troll.operations.progress_line.handler import LogHandler

SWITCH = "TROLL_PROGRESS"
"""0 leaves Snakemake's own log on the terminal."""
STAGE = "TROLL_STAGE"
"""Set by troll/operations/run.py: a JSON object with ``title`` and ``until`` of a stage of `make results`."""

TERMINAL = "TROLL_TERMINAL"
"""Names the file that takes the terminal's place for what a job says (``troll.common.progress``)."""


def install(workflow: Any, experiment: Experiment, root: Path) -> "LogHandler | None":
    """Puts the line in the place of the log that Snakemake would print, if that is what it would print.

    Nothing happens in a dry run, in a job's own Snakemake, in a workflow that uses this one as a module,
    where another logger plugin prints, where somebody asked for more or less than the usual log
    (``--verbose``, ``--quiet``, ``--printshellcmds``, ``--debug-dag``), or with TROLL_PROGRESS=0. Whatever
    fails here leaves Snakemake's log where it is.
    """
    try:
        settings = workflow.output_settings
        asked = settings.quiet or settings.verbose or settings.printshellcmds or settings.debug_dag
        main = workflow.is_main_process and workflow.modifier.is_main_snakefile()
        if not main or settings.dryrun or asked or os.environ.get(SWITCH) == "0":
            return None
        logger: logging.Logger = workflow.logger_manager.logger
        usual = next((handler for handler in logger.handlers if handler.name == "DefaultStreamHandler"), None)
        logs = workflow.logger_manager.get_logfile()
        if usual is None or not logs:
            return None
        from troll.operations.progress_line.handler import LogHandler, Settings

        line = LogHandler(
            settings,
            Settings(
                stream=sys.stdout if settings.stdout else sys.stderr,
                experiment=experiment,
                root=root,
                log=Path(logs[0]),
                stage=os.environ.get(STAGE),
                instead=lambda: logger.addHandler(usual),
            ),
        )
        logger.addHandler(line)
        logger.removeHandler(usual)
        return line
    except Exception as error:  # the line is a comfort, and no reason to fail
        print(f"warning: no line of progress: {type(error).__name__}: {error}", file=sys.stderr)
        return None
