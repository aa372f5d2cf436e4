"""The progress line of a workflow run, shown instead of Snakemake's log.

It implements Snakemake's interface for logger plugins. The existing snakemake-logger-plugin-rich (0.5.1)
does not suffice: it shows no time left and no verdicts, writes nothing while it runs without a terminal, and
prints the whole log of a failed job. The workflow installs the handler itself (`install`), because Snakemake
does not find plugins in editable installs, which ``make env`` makes of this package.
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
"""Environment variable; 0 keeps Snakemake's own log on the terminal."""
STAGE = "TROLL_STAGE"
"""Environment variable set by `troll.operations.run`: the name of a first part of `make results`."""

TERMINAL = "TROLL_TERMINAL"
"""Environment variable: the file that gets jobs' terminal messages instead (``troll.common.progress``)."""


def install(workflow: Any, experiment: Experiment, root: Path) -> "LogHandler | None":
    """Replaces the log that Snakemake would print by the progress line; returns its handler.

    Does nothing, and returns None, in a dry run, in a job's own Snakemake process, in a workflow that uses
    this one as a module, with another logger plugin, with ``--verbose``, ``--quiet``, ``--printshellcmds``
    or ``--debug-dag``, and with TROLL_PROGRESS=0. An error here leaves Snakemake's log in place.
    """
    try:
        settings = workflow.output_settings
        other_log = settings.quiet or settings.verbose or settings.printshellcmds or settings.debug_dag
        main = workflow.is_main_process and workflow.modifier.is_main_snakefile()
        if not main or settings.dryrun or other_log or os.environ.get(SWITCH) == "0":
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
                stage=os.environ.get(STAGE, ""),
                queued=workflow.nodes is not None,
                instead=lambda: logger.addHandler(usual),
            ),
        )
        logger.addHandler(line)
        logger.removeHandler(usual)
        return line
    except Exception as error:  # a run must not fail because of its progress line
        print(f"warning: no progress line: {type(error).__name__}: {error}", file=sys.stderr)
        return None
