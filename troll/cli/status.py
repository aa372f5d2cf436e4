"""`troll status`: how far an experiment is."""

import sys
import time
from contextlib import suppress
from typing import Annotated

import typer

from troll.cli.options import DEFAULT_RESULTS, File, Only, ResultsRoot, seed_list

app = typer.Typer()


@app.command()
def status(
    experiment: File,
    results: ResultsRoot = DEFAULT_RESULTS,
    seeds: Annotated[str | None, typer.Option(help="other seeds than the file's: 0,1,2")] = None,
    only: Only = None,
    watch: Annotated[bool, typer.Option("--watch", help="stay, and show changes as they come")] = False,
    every: Annotated[float, typer.Option(help="with --watch: seconds between updates", min=0.2)] = 2.0,
) -> None:
    """Show the state of every run of an experiment.

    Done, running with step and time left, failed with reason and log, stopped, trained, missing. It reads
    files only, so that it works on a cluster's login node too.

    Example: troll status workflow/config/testbed.yaml --watch
    """
    from troll.experiment.files import read_experiment
    from troll.experiment.looks import with_further_seeds
    from troll.operations.status import show, status_of

    planned = read_experiment(experiment)
    if seeds is not None:
        planned = planned.model_copy(update={"seeds": seed_list(seeds)})

    def lines() -> list[str]:
        with_seeds = (
            planned if seeds is not None else with_further_seeds(planned, results / planned.experiment)
        )
        return show(status_of(with_seeds, results, only or []), planned.experiment)

    if not (watch and sys.stdout.isatty()):
        typer.echo("\n".join(lines()))
        return
    from rich.live import Live
    from rich.text import Text

    # An interrupt is how watching ends.
    with suppress(KeyboardInterrupt), Live(auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            live.update(Text("\n".join(lines()), no_wrap=True, overflow="ellipsis"), refresh=True)
            time.sleep(every)
