"""The command line: commands for people; hidden, the jobs of the workflow and what a release takes.

Heavy libraries are imported inside the commands, so that ``troll --help`` and the light commands start at
once.
"""

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from troll import __version__
from troll.cli import job_evaluate, job_tables, job_train, people, release
from troll.cli.former import Commands
from troll.cli.options import Log
from troll.common.errors import UserError
from troll.common.machine_errors import in_a_line
from troll.common.processor import prepare_processor, quiet_libraries
from troll.common.progress import log_to, say

app = typer.Typer(
    name="troll",
    cls=Commands,
    help="Trust regions for RL of language models: train, evaluate, compare.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

app.add_typer(people.app)
job = typer.Typer(no_args_is_help=True, help="The jobs of the workflow, each runnable by hand.")
for module in (job_train, job_evaluate, job_tables):
    job.add_typer(module.app)
app.add_typer(job, name="job", hidden=True)
app.add_typer(release.app, name="release", hidden=True)

_INTERRUPTED = 130
"""The status with which Typer ends at an interrupt from the keyboard, which it lets nobody see."""
_log: Path | None = None


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="show the version")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="with --version: all that a problem report needs")
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
        log_into(log)  # jobs ask for what they need themselves, maybe on other machines
    else:
        begin(log)


def begin(log: Path | None) -> None:
    """What every command begins with, those of scripts in ``workflow/`` too: quiet libraries, and a log."""
    prepare_processor()
    quiet_libraries()
    log_into(log)


def log_into(log: Path | None) -> None:
    """Sends everything but progress and errors to a file, if one is named."""
    if log is not None:
        global _log
        _log = log
        log_to(log)


def _logged() -> str:
    return f" (log: {_log})" if _log else ""


def main(commands: Callable[[], None] = app) -> None:
    """Entry point, of scripts in ``workflow/`` too: a user's mistake is one line, a bug a traceback."""
    try:
        commands()
    except UserError as error:
        say(f"error: {error}{_logged()}")
        sys.exit(1)
    except SystemExit as ended:
        if ended.code == _INTERRUPTED:
            say("interrupted; the same command continues from the last checkpoint, if there is one")
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
