"""What a release takes: generated pages, checks of what is released, the site, the steps of a board."""

from pathlib import Path
from typing import Annotated

import typer

from troll.cli.options import Formats, Ledger, ProtocolFile, Results
from troll.common.errors import UserError
from troll.common.progress import say

app = typer.Typer(no_args_is_help=True, help="What a release takes, for maintainers.")


@app.command()
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
    check_only: Annotated[
        bool, typer.Option("--check", help="change nothing; fail if it is out of date")
    ] = False,
) -> None:
    """Write the generated blocks of the README and of other pages.

    They come from the tidy tables of the results that are named; `make readme` names all that are released.

    Example: make readme
    """
    from troll.operations.readme import write_blocks

    write_blocks(results, pages or [Path("README.md")], ledger, also or [], board, check=check_only)


@app.command("check")
def check_results(
    results: Annotated[Path, typer.Argument(help="directory of released results")],
    ledger: Ledger = None,
    write: Annotated[bool, typer.Option("--write", help="write what differs instead of failing")] = False,
    release: Annotated[
        bool, typer.Option("--release", help="also refuse runs from uncommitted source")
    ] = False,
) -> None:
    """Make released tables and figures again and compare.

    They are made from the tidy table next to them; the leaderboard from the runs behind it; costs, errors of
    approximation and the graders' audit from their measurements. Any difference is an error, or is written
    with --write.

    Example: troll release check results/testbed
    """
    from troll.analysis.claims.packaged import claim_files
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
        compared += make_again(results, results=known, claims=claim_files(ledger, known.claims), write=write)
    done = "written" if write else "are what the released data give"
    typer.echo(f"{results}: {len(compared)} files {done}")


@app.command()
def comparisons(
    results: Annotated[list[Path], typer.Argument(help="directories of results that make one family")],
    out: Annotated[Path, typer.Option(help="directory for comparisons.csv and .md, and forest.png")],
    formats: Formats = None,
) -> None:
    r"""List and draw the comparisons of several experiments.

    Each is listed once, with p-values corrected for their number.

    Example: troll release comparisons results/testbed results/testbed-estimators \
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


@app.command()
def site(
    out: Annotated[Path, typer.Option(help="directory of the site")] = Path("build/site"),
    root: Annotated[Path, typer.Option(help="checkout of the repository")] = Path(),
    repository: Annotated[
        str | None, typer.Option(help="its web address, for links to files that the site does not hold")
    ] = None,
    revision: Annotated[str, typer.Option(help="branch, tag or commit that such links show")] = "main",
    address: Annotated[str | None, typer.Option(help="web address where the site will be")] = None,
) -> None:
    """Write the pages of the site; `make site` then builds it.

    They are the Markdown that git tracks: README.md, docs/ and results/, with figures and sortable tables.

    Example: troll release site --out build/site
    """
    from troll.analysis.site.build import write_site

    pages = write_site(
        root,
        out,
        repository=repository.rstrip("/") if repository else None,
        revision=revision,
        address=address,
    )
    say(f"{out}: {len(pages)} pages")


@app.command()
def schema(out: Annotated[Path, typer.Option(help="*.json: for editors; *.md: for people")]) -> None:
    """Write what an experiment file may hold.

    Example: troll release schema --out experiment.schema.json
    """
    from troll.common.files import write_text
    from troll.operations.schema import reference, schema_text

    makers = {".json": schema_text, ".md": reference}
    if out.suffix not in makers:
        raise UserError(f"--out: {out} should end in {' or '.join(makers)}")
    write_text(out, makers[out.suffix]())


Trials = Annotated[
    list[Path], typer.Option(help="results/<experiment> of the trials; once for each round, in order")
]


@app.command()
def trials(
    protocol: ProtocolFile,
    out: Annotated[Path, typer.Option(help="the experiment file")],
    rule: Annotated[
        list[str] | None,
        typer.Option(help="one of its rules; may be repeated; by default all, and the board grows with each"),
    ] = None,
    results: Annotated[
        list[Path] | None,
        typer.Option(help="results/<experiment> of a finished round; once for each round, in order"),
    ] = None,
) -> None:
    r"""Write the experiment of all trials, or of the next round of tuning.

    Reads the protocol, and tidy/ of RESULTS; writes an experiment file.

    Example: troll release trials workflow/config/leaderboard.yaml \
    --out trials.yaml
    """
    from troll.operations.leaderboard import write_trials

    write_trials(protocol, out, rule or (), results or ())


@app.command()
def final(
    protocol: ProtocolFile,
    results: Trials,
    out: Annotated[Path, typer.Option(help="directory for an experiment file of each task")],
    rule: Annotated[
        list[str] | None,
        typer.Option(help="one of its rules; may be repeated; by default those that have trials in RESULTS"),
    ] = None,
    fresh: Annotated[
        list[Path] | None,
        typer.Option(
            help="results/<experiment> of fresh seeds so far, once for each task; gives the next look"
        ),
    ] = None,
) -> None:
    r"""Choose the best trial of each rule, and write the experiments of fresh seeds.

    Reads tidy/ of RESULTS; writes OUT/TASK.yaml. Where the protocol ranks each
    rule for itself, rules get the seeds of the first look, and with FRESH those
    of the next one, if they continue.

    Example: troll release final workflow/config/leaderboard.yaml \
    --results results/leaderboard-trials --out final
    """
    from troll.operations.leaderboard import write_finals

    write_finals(protocol, results, out, rule or (), fresh or ())


@app.command()
def board(
    protocol: ProtocolFile,
    trials: Trials,
    final: Annotated[
        list[Path], typer.Option(help="results/<experiment> of fresh seeds; once for each task")
    ],
    out: Annotated[Path, typer.Option(help="directory of the board")],
) -> None:
    r"""Make the board from finished experiments: tables and figures.

    Reads tidy/ of each; writes board, trials, levels (CSV, Markdown), the
    figures differences, budget and profile, and protocol.yaml into OUT.
    Where the protocol has contrasts, also the table and figure contrasts; what
    the protocol says about the outcome is printed.

    Example: troll release board workflow/config/leaderboard.yaml \
    --trials results/leaderboard-trials --final results/leaderboard-locks \
    --final results/leaderboard-programs --out results/leaderboard
    """
    from troll.common.files import write_text
    from troll.operations.leaderboard import make_board

    outcome = make_board(protocol, trials, final, out)
    write_text(out / "protocol.yaml", protocol.read_text(encoding="utf-8"))
    if outcome:
        typer.echo(outcome)
