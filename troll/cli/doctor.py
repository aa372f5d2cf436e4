"""`troll doctor`: what a machine lacks for an experiment."""

from pathlib import Path
from typing import Annotated

import typer

from troll.cli.options import DEFAULT_RESULTS, ResultsRoot

app = typer.Typer()


@app.command()
def doctor(
    experiment: Annotated[
        Path | None, typer.Argument(help="an experiment file; without it only the machine is checked")
    ] = None,
    results: ResultsRoot = DEFAULT_RESULTS,
    offline: Annotated[bool, typer.Option("--offline", help="do not try to reach the hub")] = False,
) -> None:
    """Check this machine: what is missing, and how to fix it.

    Exits with 1 if the experiment cannot run here.

    Example: troll doctor workflow/config/testbed.yaml
    """
    from troll.experiment.files import load_experiment
    from troll.operations.doctor import examine, show

    planned = load_experiment(experiment) if experiment is not None else None
    findings = list(examine(planned, results, ask_hub=not offline))
    typer.echo("\n".join(show(findings, planned.experiment if planned else None)))
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(1)
