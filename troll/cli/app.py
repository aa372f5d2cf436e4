"""The `troll` program: user commands, and the hidden groups `troll job` (workflow) and `troll release`.

Heavy libraries are imported inside the commands, so that ``troll --help`` and light commands start quickly.
"""

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from troll import __version__
from troll.cli import job_evaluate, job_tables, job_train, people, release, results
from troll.cli.options import Log
from troll.common.errors import UserError
from troll.common.machine_errors import in_a_line
from troll.common.processor import prepare_processor, quiet_libraries
from troll.common.progress import log_to, say

app = typer.Typer(
    name="troll",
    help="Trust regions for RL of language models: train, evaluate, compare.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

app.add_typer(people.app)
app.add_typer(results.app)
job = typer.Typer(no_args_is_help=True, help="Jobs of the workflow; each can be run by hand.")
for module in (job_train, job_evaluate, job_tables):
    job.add_typer(module.app)
app.add_typer(job, name="job", hidden=True)
app.add_typer(release.app, name="release", hidden=True)

_INTERRUPTED = 130
"""Typer's exit status after a keyboard interrupt, which it handles itself."""
_log: Path | None = None


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="show the version")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="with --version: everything a problem report needs")
    ] = False,
    log: Log = None,
) -> None:
    if version:
        from troll.operations.versions import describe

        typer.echo("\n".join(describe()) if verbose else f"troll {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        raise UserError("no command given; `troll --help` lists them")
    if context.invoked_subcommand == "run":
        log_into(log)  # jobs prepare their own process, possibly on another machine
    else:
        begin(log)


def begin(log: Path | None) -> None:
    """Prepares processor, libraries and log for a command; scripts in ``workflow/`` call it, too."""
    prepare_processor()
    quiet_libraries()
    log_into(log)


def log_into(log: Path | None) -> None:
    """Redirects everything but progress and errors to ``log``, if given."""
    if log is not None:
        global _log
        _log = log
        log_to(log)


def _logged() -> str:
    return f" (log: {_log})" if _log else ""


def main(commands: Callable[[], None] = app) -> None:
    """Runs the command line: one line for a user's mistake, a traceback for a bug.

    Scripts in ``workflow/`` pass their own ``commands``.
    """
    try:
        commands()
    except UserError as error:
        say(f"error: {error}{_logged()}")
        sys.exit(1)
    except SystemExit as ended:
        if ended.code == _INTERRUPTED:
            say("interrupted; the same command resumes from the last checkpoint, if there is one")
        raise
    except Exception as error:
        machine = in_a_line(error) if isinstance(error, OSError) else None
        if machine is not None:
            say(f"error: {machine}{_logged()}")
            sys.exit(1)
        if _log is None:
            raise
        traceback.print_exc()
        say(f"error: {type(error).__name__}: {error}{_logged()}")
        sys.exit(2)


if __name__ == "__main__":
    main()
