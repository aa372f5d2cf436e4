"""`troll compare`: whether results replicate others."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def compare(
    results: Annotated[Path, typer.Argument(help="directory of your results")],
    reference: Annotated[Path | None, typer.Option(help="directory of other results; none: git's")] = None,
    revision: Annotated[str, typer.Option(help="commit or tag of the reference results")] = "HEAD",
    exact: Annotated[bool, typer.Option("--exact", help="name every run that differs; fail if any")] = False,
) -> None:
    """Do my runs replicate the released ones?

    Says how many settings are within the prediction interval of the release, and how many runs equal it to
    the last digit. Ends with status 1 where more settings are outside than chance explains.

    Example: troll compare results/testbed
    """
    from troll.analysis.data.replication import describe_replication, predictions, replicates
    from troll.analysis.data.reproduction import compare_runs, describe, released
    from troll.analysis.data.tidy import read_tidy

    ours = read_tidy(results)
    theirs = read_tidy(reference) if reference else released(results, revision)
    compared, predicted = compare_runs(ours, theirs), predictions(ours.runs, theirs.runs)
    lines = describe_replication(predicted)
    lines += describe(compared, *(tidy.runs["run_id"].nunique() for tidy in (ours, theirs)), every=exact)
    for line in lines:
        typer.echo(line)
    equal = not compared.empty and not compared["different"].any()
    if not (equal or (replicates(predicted) and not exact)):
        raise typer.Exit(1)
