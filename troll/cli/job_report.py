"""The workflow's command that makes everything from the tidy table."""

from pathlib import Path
from typing import Annotated

import typer

from troll.cli.options import Ledger

app = typer.Typer()


@app.command()
def report(
    results: Annotated[Path, typer.Argument(help="directory with tidy/ and plan.json of collect")],
    table: Annotated[list[str] | None, typer.Option(help="name of a table; may be repeated")] = None,
    figure: Annotated[
        list[str] | None, typer.Option(help="name of a figure, or NAME:TASK; may be repeated")
    ] = None,
    ledger: Ledger = None,
    command: Annotated[list[str] | None, typer.Option(help="a shell line that made the results")] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="also a page of Markdown: verdicts, figures, tables")
    ] = None,
) -> None:
    r"""Make tables, figures and the page of an experiment.

    Reads tidy/ and plan.json of RESULTS; writes tables/, figures/ and page.html beside them, and removes
    those that were made before and are not named any more.

    Example: troll job report results/testbed --table main --figure final \
    --figure learning:chains
    """
    from troll.operations.report import write_report

    figures = [(name, task or None) for name, _, task in (text.partition(":") for text in figure or ())]
    write_report(
        results, table or (), figures, ledger or (), commands=command or ("make results",), markdown=markdown
    )
