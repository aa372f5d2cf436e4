"""`troll rehearse`: what would fail in an experiment, found in minutes on a laptop."""

import os
from pathlib import Path
from typing import Annotated

import typer

from troll.cli.options import DEFAULT_RESULTS, Cores, File, Only, ResultsRoot
from troll.common.processor import available_cores

app = typer.Typer()


@app.command()
def rehearse(
    experiment: File,
    only: Only = None,
    full: Annotated[bool, typer.Option("--full", help="all runs, not a pairwise cover of them")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="leave runs and models where they are")] = False,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="check sources, partitions and figures; run nothing")
    ] = False,
    cores: Cores = 0,
    profile: Annotated[
        Path, typer.Option(help="Snakemake profile with the partitions that the jobs must fit")
    ] = Path("workflow/profiles/slurm"),
    results: ResultsRoot = DEFAULT_RESULTS,
) -> None:
    """Run a small copy of an experiment, to find what would fail.

    The models are random.

    Runs are shrunk by rule, models and missing data replaced; results go to results/rehearsal-NAME. Exits
    with 1 if a check fails.

    Example: troll rehearse workflow/config/paper.yaml --only paper_sizes
    """
    _keep_offline()
    from troll.experiment.files import load_experiment
    from troll.operations.rehearsal.checks import failed
    from troll.operations.rehearsal.run import Options
    from troll.operations.rehearsal.run import rehearse as run

    options = Options(tuple(only or ()), full, keep, plan_only, cores or available_cores(), profile)
    if failed(run(load_experiment(experiment), results, options)):
        raise typer.Exit(1)


def _keep_offline() -> None:
    """Nothing is downloaded: libraries read the variable once; this command asks the hub itself."""
    name, before = "HF_HUB_OFFLINE", os.environ.get("HF_HUB_OFFLINE")
    os.environ[name] = "1"
    import datasets  # noqa: F401

    if before is None:
        del os.environ[name]
    else:
        os.environ[name] = before
