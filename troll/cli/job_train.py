"""The job of one run, held to its directory, stopped by signals, and gone on with."""

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from troll.common.errors import Stopped
from troll.common.progress import say

if TYPE_CHECKING:
    from troll.experiment.run_config import RunConfig


app = typer.Typer()

NOT_FINITE_VARIABLE = "TROLL_NOT_FINITE"
"""Set by the workflow from the experiment file's `not_finite`, which is not part of a run."""


@app.command()
def train(
    run: Annotated[Path, typer.Argument(help="a run.yaml; results go to its directory")],
    base: Annotated[Path, typer.Option(help="checkpoint of the base model")],
    data: Annotated[Path, typer.Option(help="directory with the task's problems")],
    tracking: Annotated[
        str, typer.Option(envvar="TROLL_TRACKING", help="metrics also to tensorboard, wandb or trackio")
    ] = "none",
    not_finite: Annotated[
        Literal["stop", "zero"],
        typer.Option(
            envvar=NOT_FINITE_VARIABLE,
            help="a loss that is not finite: an error, or a finished run that solves nothing",
        ),
    ] = "stop",
    on_limit: Annotated[
        Literal["exit", "requeue"],
        typer.Option(help="after SIGUSR1: exit with status 75, or have SLURM requeue the job first"),
    ] = "exit",
) -> None:
    r"""Train one run, or go on where it was interrupted.

    SIGUSR1 and SIGTERM save the state at the end of the rollout batch, and end with status 75.

    Reads run.yaml, the base model and DATA/{train,validation}.jsonl; writes metrics.jsonl, checkpoint/ and
    manifest.json beside run.yaml.

    Example: troll job train \
    results/testbed/runs/tiny/chains/troll/grpo/stale/seed0/run.yaml \
    --base results/testbed/base/tiny/chains/checkpoint \
    --data results/testbed/data/chains
    """
    from troll.common.signals import hold_signals

    hold_signals()  # before the libraries start their threads

    from troll.common.machine_errors import explained
    from troll.experiment.files import read_run_file

    config = read_run_file(run)
    gpus, rank = config.training.gpus, os.environ.get("LOCAL_RANK")
    try:
        if gpus > 1 and rank is None:
            from troll.training.launch import run_in_processes

            mixed = config.training.mixed_precision
            run_in_processes(gpus, run.parent / "manifest.json", mixed_precision=mixed)
            return
        if rank is None:
            from troll.common.gpus import require_gpus

            require_gpus(gpus, "training.gpus")
        # Of the processes that share this machine and this run the first holds the directory for all.
        with explained(run.parent), _held(run.parent, rank) as waited:
            if waited and _finished(run.parent / "manifest.json", config):
                return  # the attempt that was waited for finished the run
            from troll.training.run import train_run

            train_run(config, base, data, run.parent, tracking, not_finite)
    except Stopped as stopped:
        if rank in (None, "0"):
            say(str(stopped))
        if on_limit == "requeue" and rank is None:
            from troll.training.launch import requeue

            requeue(stopped.signal)
        raise typer.Exit(Stopped.status) from None


def _held(directory: Path, rank: str | None) -> AbstractContextManager[bool]:
    from troll.common.files import only_writer

    return only_writer(directory) if rank in (None, "0") else nullcontext(False)


def _finished(manifest: Path, config: "RunConfig") -> bool:
    """Whether an attempt has finished this very run: one that began earlier may have had other settings."""
    from troll.common.digests import digest_of_json
    from troll.common.files import read_json

    if not manifest.exists():
        return False
    return digest_of_json(read_json(manifest)["config"]) == digest_of_json(config.model_dump())
