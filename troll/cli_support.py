"""Commands for people around a run: what a file means, how far it is, what is missing."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from troll.errors import UserError

File = Annotated[Path, typer.Argument(help="an experiment file")]
Results = Annotated[Path, typer.Option(help="directory that holds results by experiment")]
DEFAULT_RESULTS = Path("results")


def check(
    experiment: File,
    results: Results = DEFAULT_RESULTS,
    names: Annotated[bool, typer.Option("--names", help="only the names of the runs, one a line")] = False,
) -> None:
    """Check an experiment file and show what it will do.

    Times are those of earlier runs on this machine, where there are any.

    Example: troll check workflow/config/testbed.yaml
    """
    from troll.experiment_files import load_experiment
    from troll.support.plan import plan

    checked = load_experiment(experiment)
    lines = [run.run_id for run in checked.runs()] if names else plan(checked, results)
    typer.echo("\n".join(lines))


def _seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds: {text!r} is no list of whole numbers; write for instance 0,1,2") from None


def status(
    experiment: File,
    results: Results = DEFAULT_RESULTS,
    seeds: Annotated[str | None, typer.Option(help="other seeds than the file's: 0,1,2")] = None,
    only: Annotated[list[str] | None, typer.Option(help="a group of its runs; may be repeated")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="stay, and show changes as they come")] = False,
    every: Annotated[float, typer.Option(help="with --watch: seconds between looks", min=0.2)] = 2.0,
) -> None:
    """Show the state of every run of an experiment.

    Done, running with step and time left, failed with reason and log, stopped, trained, missing. It reads
    files only, so that it works on a cluster's login node too.

    Example: troll status workflow/config/testbed.yaml --watch
    """
    from troll.experiment_files import read_experiment
    from troll.support.status import show, status_of

    given = read_experiment(experiment)
    if seeds is not None:
        given = given.model_copy(update={"seeds": _seeds(seeds)})

    def lines() -> list[str]:
        return show(status_of(given, results, only or []), given.experiment)

    if not (watch and sys.stdout.isatty()):
        typer.echo("\n".join(lines()))
        return
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            live.update(Text("\n".join(lines()), no_wrap=True, overflow="ellipsis"), refresh=True)
            time.sleep(every)


def doctor(
    experiment: Annotated[
        Path | None, typer.Argument(help="an experiment file; left out, only the machine is looked at")
    ] = None,
    results: Results = DEFAULT_RESULTS,
    offline: Annotated[bool, typer.Option("--offline", help="do not try to reach the hub")] = False,
) -> None:
    """Look at this machine: what is missing, and how to mend it.

    Exits with 1 if the experiment cannot run here.

    Example: troll doctor workflow/config/testbed.yaml
    """
    from troll.experiment_files import load_experiment
    from troll.support.doctor import examine, show

    given = load_experiment(experiment) if experiment is not None else None
    findings = list(examine(given, results, ask_hub=not offline))
    typer.echo("\n".join(show(findings, given.experiment if given else None)))
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(1)


def schema(out: Annotated[Path, typer.Option(help="*.json: for editors; *.md: for people")]) -> None:
    """Write what an experiment file may hold.

    Example: troll schema --out docs/configuration.md
    """
    from troll.files import write_text
    from troll.support.schema import reference, schema_text

    makers = {".json": schema_text, ".md": reference}
    if out.suffix not in makers:
        raise UserError(f"--out: {out} should end in {' or '.join(makers)}")
    write_text(out, makers[out.suffix]())


def register_support(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    for function in (check, status, doctor, schema):
        app.command(rich_help_panel="Around a run")(function)
