"""Jobs that collect finished runs into tidy tables, and make tables, figures and verdicts from those."""

from pathlib import Path
from typing import Annotated

import typer

from troll.cli.options import Formats, Ledger, Results, Stem, read_settings

app = typer.Typer()


@app.command()
def collect(
    directories: Annotated[
        list[Path] | None, typer.Argument(help="directories of finished runs and base models")
    ] = None,
    out: Annotated[Path, typer.Option(help="results/<experiment>, for tidy/ and plan.json")] = Path(),
    plan: Annotated[
        Path | None, typer.Option(help="JSON or YAML file with the planned runs; the workflow writes it")
    ] = None,
    archive: Annotated[
        Path | None, typer.Option(help="results/<experiment> with tables of finished runs")
    ] = None,
    released: Annotated[
        Path | None, typer.Option(help="results/released/<experiment> with runs that need not be made again")
    ] = None,
    ledger: Ledger = None,
    allow_mixed: Annotated[
        bool, typer.Option(help="accept runs with different environments or data, and mark their rows")
    ] = False,
) -> None:
    r"""Collect runs into tidy tables.

    Reads run.yaml, metrics.jsonl, manifest.json and grades.json of each run; writes tidy/, runs.csv.gz and
    plan.json into OUT.

    Example: troll job collect results/testbed/runs/*/*/*/*/*/* \
    results/testbed/base/tiny/chains results/testbed/base/tiny/functions \
    --out tables
    """
    from troll.analysis.data.results import Plan
    from troll.analysis.data.tidy import TIDY
    from troll.operations.collect import collect as gather

    planned = read_settings(plan, Plan) if plan else Plan()
    count = gather(
        directories or (), out, planned, archive, ledger or (), released=released, allow_mixed=allow_mixed
    )
    typer.echo(f"{out / TIDY}: {count} runs and base models", err=True)


@app.command()
def append(
    directory: Annotated[Path, typer.Argument(help="directory of a finished run, or of a graded base model")],
    results: Annotated[Path, typer.Option(help="results/<experiment>, to whose tables the run is added")],
    key: Annotated[str, typer.Option(help="digest of the planned configuration and evaluation")],
) -> None:
    r"""Append a finished run to the tables of its experiment, so that it is not repeated.

    The tables have what verdicts need, without weights, samples and single optimiser steps. The workflow
    calls this if the experiment file has `archive: true`; the example only shows the commands.

    Example: snakemake -n -p -C archive=true | grep "job append "
    """
    from troll.analysis.data.archive import append_run

    append_run(directory, results, key)


@app.command()
def table(
    name: Annotated[str, typer.Argument(help="main, comparison, speed, stability, ...")],
    results: Results,
    out: Stem,
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", help="csv, markdown or latex; may be repeated; default csv and markdown"),
    ] = None,
) -> None:
    """Make a table as CSV and Markdown, or as LaTeX.

    Reads tidy/ and plan.json of RESULTS; writes OUT.csv and OUT.md, or the named formats (OUT.tex: LaTeX).

    Example: troll job table main --results results/testbed --out main --format latex
    """
    from troll.analysis.data.results import read_results
    from troll.analysis.report.make import make_table

    make_table(name, read_results(results), out, formats or ("csv", "markdown"))


@app.command()
def figure(
    name: Annotated[str, typer.Argument(help="main, final, time, learning, projection, ...")],
    results: Results,
    out: Stem,
    task: Annotated[str | None, typer.Option(help="name of the task, for figures of one task")] = None,
    formats: Formats = None,
) -> None:
    r"""Make a figure as PNG, or as SVG or PDF.

    Reads tidy/ and plan.json of RESULTS; writes OUT.png, or the named formats.

    Example: troll job figure learning --task chains --results results/testbed \
    --out learning --format svg
    """
    from troll.analysis.data.results import read_results
    from troll.analysis.report.make import make_figure

    make_figure(name, read_results(results), out, task, formats or ("png",))


@app.command()
def claims(
    ledger: Annotated[list[str], typer.Argument(help="files of claims; `default`: the package's")],
    results: Results,
    out: Stem,
) -> None:
    """Judge claims from the finished runs.

    A verdict says whether a claim is supported everywhere, supported on average, or depends on a coordinate;
    whether its contrary holds, or it is not shown; or that it is inconclusive, or was not run.

    Reads the claims, and tidy/ and plan.json of RESULTS; writes OUT.md and OUT.json.

    Example: troll job claims default --results results/testbed --out claims
    """
    from troll.analysis.claims.ledger import write_claims
    from troll.analysis.claims.packaged import claim_files
    from troll.analysis.claims.verdicts import judge, read_claims
    from troll.analysis.data.results import read_results
    from troll.analysis.data.tidy import table_files

    known = read_results(results)
    files = claim_files(ledger)
    judged = judge(read_claims(files), known.runs, known.items)
    write_claims(judged, known.runs, [*table_files(results).values(), *files], out)


@app.command()
def report(
    results: Annotated[Path, typer.Argument(help="directory with tidy/ and plan.json")],
    table: Annotated[list[str] | None, typer.Option(help="name of a table; may be repeated")] = None,
    figure: Annotated[
        list[str] | None, typer.Option(help="name of a figure, or NAME:TASK; may be repeated")
    ] = None,
    ledger: Ledger = None,
    command: Annotated[list[str] | None, typer.Option(help="shell command that made the results")] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="also write a Markdown page: verdicts, figures, tables")
    ] = None,
) -> None:
    r"""Make tables, figures and the page of an experiment.

    Reads tidy/ and plan.json of RESULTS; writes tables/, figures/ and page.html next to them. Removes earlier
    tables and figures that are no longer named.

    Example: troll job report results/testbed --table main --figure final \
    --figure learning:chains
    """
    from troll.operations.report import write_report

    figures = [(name, task or None) for name, _, task in (text.partition(":") for text in figure or ())]
    write_report(
        results, table or (), figures, ledger or (), commands=command or ("make results",), markdown=markdown
    )
