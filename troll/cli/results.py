"""Commands that read finished runs: the tidy table, and everything that is made from it."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from troll.cli.options import AROUND_A_RUN, Ledger, Out, Stem, claim_files, json_object
from troll.common.errors import UserError

if TYPE_CHECKING:
    from troll.analysis.data.results import Results as Known

Results = Annotated[Path, typer.Option(help="directory with tidy/ and plan.json, as collect wrote them")]

Formats = Annotated[
    list[str] | None,
    typer.Option("--format", help="of the figure: png, svg or pdf; may be repeated; none: png"),
]


def collect(
    directories: Annotated[
        list[Path] | None, typer.Argument(help="directories of finished runs and base models")
    ] = None,
    out: Annotated[Path, typer.Option(help="results/<experiment>: gets tidy/ and plan.json")] = Path(),
    plan: Annotated[
        str, typer.Option(help="what is planned, as JSON; - reads it from the input, as the workflow does")
    ] = "{}",
    archive: Annotated[
        Path | None, typer.Option(help="results/<experiment> with tables of finished runs")
    ] = None,
    ledger: Ledger = None,
    allow_mixed: Annotated[
        bool, typer.Option(help="admit runs with another environment or other data; their rows are marked")
    ] = False,
) -> None:
    r"""Collect runs into the tidy tables.

    Reads run.yaml, metrics.jsonl, manifest.json and grades.json of each; writes tidy/, runs.csv.gz and
    plan.json into OUT.

    Example: troll collect results/testbed/runs/*/*/*/*/*/* \
    results/testbed/base/tiny/chains results/testbed/base/tiny/functions \
    --out tables
    """
    from troll.analysis.data import archive as archived
    from troll.analysis.data import runs as tables
    from troll.analysis.data.results import plan_of, rehearsed, write_plan
    from troll.analysis.data.tidy import TIDY
    from troll.analysis.render.substitutes import find_substitutes

    places = directories or []
    planned = plan_of(json_object("--plan", sys.stdin.read() if plan == "-" else plan), "--plan")
    trained = {path: (path / "run.yaml").exists() for path in places}
    runs, bases = ([path for path in places if trained[path] == wanted] for wanted in (True, False))
    if archive is None:
        tidy = tables.read_directories(runs, bases, keys=planned.keys)
    else:
        names = {"/".join(path.parts[-6:] if trained[path] else path.parts[-3:]): path for path in places}
        tidy = archived.take(archive, planned.keys, names)
    tidy = tables.checked(tidy, by_place=archive is not None, allow_mixed=allow_mixed)
    if archive != out:
        tables.write_whole(tidy, out)
    if planned.expected is not None:
        write_plan(
            out,
            planned.expected,
            planned.skipped,
            find_substitutes(places),
            set(tidy.runs.loc[tidy.runs["mixed"], "run_id"].astype(str)),
            planned.looks,
            ledger or (),
            summary=planned.summary,
            rehearsal=rehearsed(places),
        )
    typer.echo(f"{out / TIDY}: {tidy.runs['run_id'].nunique()} runs and base models", err=True)


def append(
    directory: Annotated[Path, typer.Argument(help="directory of a finished run, or of a graded base model")],
    results: Annotated[Path, typer.Option(help="results/<experiment>; the run is added to its tables")],
    key: Annotated[str, typer.Option(help="digest of its configuration and evaluation, as it was planned")],
) -> None:
    r"""Append a finished run to the tables of its experiment, where it counts as made from then on.

    They have what verdicts need; weights, samples and single optimiser steps are left out. The workflow calls
    it where the experiment file says `archive: true`; the example shows whole commands and runs nothing.

    Example: snakemake -n -p -C archive=true | grep "troll .* append "
    """
    from troll.analysis.data.archive import append_run

    append_run(directory, results, key)


def table(
    name: Annotated[str, typer.Argument(help="its name: main, comparison, speed, stability, ...")],
    results: Results,
    out: Stem,
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", help="csv, markdown or latex; may be repeated; none: csv and markdown"),
    ] = None,
) -> None:
    """Make a table as CSV and Markdown, or as LaTeX.

    Reads tidy/ and plan.json of RESULTS; writes OUT.csv and OUT.md, or the formats that are named; OUT.tex
    is LaTeX.

    Example: troll table main --results results/testbed --out main --format latex
    """
    from troll.analysis.data.results import read_results
    from troll.analysis.report.make import make_table

    make_table(name, read_results(results), out, formats or ("csv", "markdown"))


def figure(
    name: Annotated[str, typer.Argument(help="its name: main, final, time, learning, projection, ...")],
    results: Results,
    out: Stem,
    task: Annotated[str | None, typer.Option(help="for the figures that are made for one task")] = None,
    formats: Formats = None,
) -> None:
    r"""Make a figure as PNG, or as SVG or PDF.

    Reads tidy/ and plan.json of RESULTS; writes OUT.png, or the formats that are named.

    Example: troll figure learning --task chains --results results/testbed \
    --out learning --format svg
    """
    from troll.analysis.data.results import read_results
    from troll.analysis.report.make import make_figure

    make_figure(name, read_results(results), out, task, formats or ("png",))


def claims(
    ledger: Annotated[list[str], typer.Argument(help="files of claims; `default`: those of the package")],
    results: Results,
    out: Stem,
) -> None:
    """Judge claims by the finished runs.

    A claim is supported everywhere or on average, or depends on a coordinate; or its contrary holds, or it is
    not shown; or it is inconclusive, or was not run.

    Reads the claims, and tidy/ and plan.json of RESULTS; writes OUT.md and OUT.json.

    Example: troll claims default --results results/testbed --out claims
    """
    from troll.analysis.claims.ledger import write_claims
    from troll.analysis.claims.verdicts import judge, read_claims
    from troll.analysis.data.results import read_results
    from troll.analysis.data.tidy import parts

    known = read_results(results)
    files = claim_files(ledger)
    judged = judge(read_claims(files), known.runs, known.items, known.looks)
    write_claims(judged, known.runs, [*parts(results).values(), *files], out)


def page(
    results: Results,
    out: Out,
    ledger: Ledger = None,
    command: Annotated[list[str] | None, typer.Option(help="a shell line that made the results")] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="also a page of Markdown: verdicts, figures, tables")
    ] = None,
) -> None:
    """Make one self-contained HTML page.

    Verdicts come first, then tables, figures, methods and provenance.

    Example: troll page --results results/testbed --out page.html
    """
    from troll.analysis.claims.verdicts import judge, read_claims
    from troll.analysis.data.replication import replication_of
    from troll.analysis.data.results import read_results
    from troll.analysis.report import overview
    from troll.analysis.report.page import make_page
    from troll.common.files import write_text

    known = read_results(results)
    judged = judge(read_claims(claim_files(ledger, known)), known.runs, known.items, known.looks)
    commands, replication = command or ["make results"], replication_of(results)
    make_page(known, judged, results, out, commands=commands, replication=replication)
    if markdown is not None:
        write_text(markdown, overview.page(known, judged, results))


def readme(
    results: Results,
    pages: Annotated[list[Path] | None, typer.Argument(help="Markdown files; README.md by default")] = None,
    ledger: Ledger = None,
    also: Annotated[
        list[Path] | None, typer.Option(help="further released results that verdicts are about")
    ] = None,
    board: Annotated[Path, typer.Option(help="directory of the leaderboard; none if there is none")] = Path(
        "results/leaderboard"
    ),
    check: Annotated[bool, typer.Option("--check", help="change nothing; fail if it is out of date")] = False,
) -> None:
    """Write the generated blocks of the README and of other pages.

    They come from the tidy tables of the results that are named; `make readme` names all that are released.

    Example: make readme
    """
    from troll.analysis.claims.ledger import to_short_markdown
    from troll.analysis.claims.verdicts import judge, read_claims
    from troll.analysis.data.provenance import check_clean
    from troll.analysis.data.results import read_results, tables_of
    from troll.analysis.metrics import METRICS, SUMMARIES, markdown
    from troll.analysis.registry import entries
    from troll.analysis.report import readme as text
    from troll.analysis.report.front import front
    from troll.analysis.report.make import make
    from troll.analysis.report.overview import index
    from troll.analysis.tables.comparisons import comparison_family

    known, others = read_results(results), [read_results(path) for path in also or []]
    every = tables_of([known, *(one for one in others if one.claims == known.claims)])
    all_runs = tables_of([known, *others])[0]
    judged = judge(read_claims(claim_files(ledger, known)), *every, known.looks)
    check_clean(all_runs, results)
    main, family = make(entries("table")["main"], known), comparison_family(*every)
    # Experiments that are asked other claims are a family of their own.
    families: dict[tuple[str, ...], list[Known]] = {}
    for one in others:
        if one.claims and one.claims != known.claims:
            families.setdefault(tuple(one.claims), []).append(one)
    asked = {
        "-".join(Path(name).stem.removesuffix("-claims") for name in files): judge(
            read_claims(claim_files([*files])), *tables_of(family)
        )
        for files, family in families.items()
    }
    directories = sorted([results, *(also or [])])
    named = {path.name: one for path, one in zip([results, *(also or [])], [known, *others], strict=True)}
    generated = text.blocks(
        main,
        known.items,
        judged=judged,
        family=family,
        runs=all_runs,
        **_board_of(board),
        benchmark=asked.get("benchmark", []),
        places=_places_of(board, named),
    )
    generated |= {f"{name}-verdicts": to_short_markdown(verdicts) for name, verdicts in asked.items()}
    generated["front"] = front(
        [*judged, *(one for family in asked.values() for one in family)], results.parent
    )
    generated |= {"metrics": markdown(METRICS.values()), "summaries": markdown(SUMMARIES.values())}
    generated["results"] = index(results.parent, {path.name: named[path.name] for path in directories})
    for path in pages or [Path("README.md")]:
        if not check:
            text.update(path, generated)
        elif difference := text.check(path, generated):
            raise UserError(f"{path} is out of date; `make readme` writes it:\n{difference}")


def _places_of(directory: Path, results: Mapping[str, "Known"]) -> dict[tuple[str, str], tuple[int, int]]:
    """The ranges of the places of the released leaderboard, where its fresh seeds are there."""
    import pandas as pd

    from troll.analysis.leaderboard.board import place_ranges
    from troll.analysis.leaderboard.protocol import read_protocol

    path = directory / "board.csv"
    if not path.exists():
        return {}
    protocol, board = read_protocol(directory / "protocol.yaml"), pd.read_csv(path)
    final = [results.get(f"{protocol.name}-{task}") for task in dict.fromkeys(board["task"])]
    return place_ranges([one for one in final if one is not None], list(dict.fromkeys(board["trust_region"])))


def _board_of(directory: Path) -> dict[str, Any]:
    """The released leaderboard, and how many rules of its protocol have no runs yet."""
    import pandas as pd

    from troll.analysis.leaderboard.protocol import chosen_early, read_protocol

    path = directory / "board.csv"
    if not path.exists():
        return {}
    board = pd.read_csv(path)
    rules = read_protocol(directory / "protocol.yaml").rules
    return {
        "board": board,
        "waiting": len(set(rules) - set(board["trust_region"])),
        "early": chosen_early(pd.read_csv(directory / "trials.csv")),
    }


def check_results(
    results: Annotated[Path, typer.Argument(help="directory of released results")],
    ledger: Ledger = None,
    write: Annotated[bool, typer.Option("--write", help="write what differs instead of failing")] = False,
    release: Annotated[
        bool, typer.Option("--release", help="also refuse runs from uncommitted source")
    ] = False,
) -> None:
    """Make released tables and figures again and compare.

    They are made from the tidy table beside them; the leaderboard from the runs behind it; costs, errors of
    approximation and the graders' audit from their measurements. Any difference is an error, or is written
    with --write.

    Example: troll check-results results/testbed
    """
    from troll.analysis.data.provenance import check_clean
    from troll.analysis.data.results import read_results
    from troll.analysis.data.tidy import parts
    from troll.analysis.report.check import check_results as make_again
    from troll.operations.released import check_measurements, has_measurements

    compared = check_measurements(results, write=write)
    if not has_measurements(results) or parts(results):
        known = read_results(results)
        if release:
            check_clean(known.runs, results)
        compared += make_again(results, results=known, claims=claim_files(ledger, known), write=write)
    done = "written" if write else "are what the released data give"
    typer.echo(f"{results}: {len(compared)} files {done}")


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


def comparisons(
    results: Annotated[list[Path], typer.Argument(help="directories of results that make one family")],
    out: Annotated[Path, typer.Option(help="directory for comparisons.csv and .md, and forest.png")],
    formats: Formats = None,
) -> None:
    r"""List and draw the comparisons of several experiments.

    Each is listed once, with p-values corrected for their number.

    Example: troll comparisons results/testbed results/testbed-estimators \
    --out statistics
    """
    from troll.analysis.data.results import read_tables
    from troll.analysis.figures.forest import forest_figure
    from troll.analysis.render.formats import to_markdown
    from troll.analysis.render.style import write_figure
    from troll.analysis.tables.comparisons import comparison_family
    from troll.common.files import write_text

    tables = read_tables(results)
    frame = comparison_family(*tables)
    write_figure(forest_figure(*tables), out / "forest", formats or ("png",))
    write_text(out / "comparisons.csv", frame.to_csv(index=False, lineterminator="\n"))
    write_text(out / "comparisons.md", to_markdown(frame))


def register_results(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    commands = (
        collect,
        append,
        table,
        figure,
        claims,
        page,
        readme,
        check_results,
        compare,
        comparisons,
    )
    for function in commands:
        app.command(rich_help_panel=AROUND_A_RUN if function is compare else None)(function)
