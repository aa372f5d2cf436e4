"""The command line: one thin command for each arrow of the workflow, each runnable by hand.

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
from troll.cli import job_report
from troll.cli.evaluation import register_evaluation
from troll.cli.leaderboard import leaderboard
from troll.cli.options import AROUND_A_RUN, Config, Log, Out, settings_of
from troll.cli.paper import register_paper
from troll.cli.people import register_support
from troll.cli.rank import register_rank
from troll.cli.rehearse import register_rehearse
from troll.cli.results import register_results
from troll.cli.site import register_site
from troll.cli.train import register_train
from troll.common.errors import UserError
from troll.common.machine_errors import in_a_line
from troll.common.processor import prepare_processor
from troll.common.progress import log_to, say
from troll.common.quiet_libraries import quiet_libraries

app = typer.Typer(
    name="troll",
    help="Trust regions for reinforcement learning of language models: train, evaluate, compare.\n\n"
    "The workflow calls most of these commands. Those that you type yourself are under Around a run.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

_INTERRUPTED = 130
"""The status with which Typer ends at an interrupt from the keyboard, which it lets nobody see."""
_log: Path | None = None


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="show the version")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="with --version: all that a report needs")
    ] = False,
    log: Log = None,
) -> None:
    if version:
        from troll.operations.versions import describe

        typer.echo("\n".join(describe()) if verbose else f"troll {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        raise UserError("no command given; `troll --help` lists them")
    begin(log)


def begin(log: Path | None) -> None:
    """What every command begins with, those of scripts in ``workflow/`` too: quiet libraries, and a log.

    Args:
        log: gets everything but progress and errors.
    """
    quiet_libraries()
    if log is not None:
        global _log
        _log = log
        log_to(log)


@app.command()
def problems(config: Config, out: Out) -> None:
    r"""Write the problems of a task: train, validation and test.

    Writes train.jsonl, validation.jsonl and test.jsonl into OUT, each where it is asked for.

    Example: troll problems \
    --config '{"name": "chains", "train": 100, "validation": 10, "test": 10}' \
    --out data
    """
    from troll.common.errors import UserError
    from troll.experiment.run_config import ProblemsConfig
    from troll.tasks.types import SPLITS
    from troll.tasks.write import write_problems

    given = settings_of("--config", config, ProblemsConfig).model_dump(exclude_none=True)
    if not set(SPLITS) & set(given):
        raise UserError(f"--config: no split is named; at least one of {', '.join(SPLITS)} is needed")
    write_problems(given, out)


@app.command()
def tokenizer(config: Config, out: Out) -> None:
    r"""Train the tokenizer of an experiment's from-scratch models.

    Reads nothing; writes tokenizer.json and its settings into OUT. An equal one that was made before is taken
    from resources/base-models.

    Example: troll tokenizer \
    --config '{"tasks": {"chains": {}}, "vocabulary": 512, "demonstrations": 20000}' \
    --out tokenizer
    """
    from troll.experiment.run_config import TokenizerConfig
    from troll.training.tokenizer import make_tokenizer

    settings = settings_of("--config", config, TokenizerConfig)
    make_tokenizer(settings.tasks, settings.vocabulary, settings.demonstrations, out, shared=True)


@app.command()
def base_model(
    config: Config, tokenizer: Annotated[Path, typer.Option(help="directory of the tokenizer")], out: Out
) -> None:
    r"""Train a from-scratch base model on flawed demonstrations.

    Reads the tokenizer; writes checkpoint/ and manifest.json into OUT. Weights that were trained before from
    the same settings are taken from resources/base-models. The workflow calls it, because CONFIG is long; the
    example shows a whole command and runs nothing.

    Example: snakemake -n -p -f results/testbed/base/tiny/chains/manifest.json \
    | grep base-model
    """
    from troll.experiment.run_config import BaseConfig
    from troll.training.base_model import shared_base_model

    shared_base_model(settings_of("--config", config, BaseConfig), tokenizer, out)


@app.command()
def configure(config: Config, out: Out) -> None:
    r"""Write a run.yaml: everything that defines one run.

    The workflow calls it, because CONFIG is long; the example shows a whole command and runs nothing.

    Example: snakemake -n -p -f \
    results/testbed/runs/tiny/chains/troll/grpo/stale/seed0/run.yaml \
    | grep configure
    """
    from troll.experiment.files import write_run_file
    from troll.experiment.run_config import RunConfig

    write_run_file(out, settings_of("--config", config, RunConfig))


register_train(app)
register_evaluation(app)
register_results(app)
app.add_typer(job_report.app)
register_site(app)
register_paper(app)
app.add_typer(leaderboard, name="leaderboard", rich_help_panel=AROUND_A_RUN)
register_support(app)
register_rehearse(app)
register_rank(app)


def _logged() -> str:
    return f" (log: {_log})" if _log else ""


def main(commands: Callable[[], None] = app) -> None:
    """Entry point: a user's mistake is one line on stderr and status 1; a bug keeps its traceback.

    Args:
        commands: what reads the command line; scripts in ``workflow/`` have their own.
    """
    prepare_processor()
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
