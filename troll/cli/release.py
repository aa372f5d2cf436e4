"""Commands for releases: generated pages, checks of released results, steps of a leaderboard."""

from pathlib import Path
from typing import Annotated

import typer

from troll.cli.options import Formats, Ledger, ProtocolFile, Results
from troll.common.errors import UserError

app = typer.Typer(no_args_is_help=True, help="Commands for releases, for maintainers.")


@app.command()
def readme(
    results: Results,
    pages: Annotated[list[Path] | None, typer.Argument(help="Markdown files; README.md by default")] = None,
    ledger: Ledger = None,
    also: Annotated[list[Path] | None, typer.Option(help="further released results with verdicts")] = None,
    check_only: Annotated[
        bool, typer.Option("--check", help="change nothing; fail if a page is out of date")
    ] = False,
) -> None:
    """Write the generated blocks of the README and other pages.

    They are made from the tidy tables of RESULTS and ALSO; `make readme` passes all released results.

    Example: make readme
    """
    from troll.operations.readme import write_blocks

    write_blocks(results, pages or [Path("README.md")], ledger, also or [], check=check_only)


@app.command("check")
def check_results(
    results: Annotated[Path, typer.Argument(help="directory of released results")],
    ledger: Ledger = None,
    write: Annotated[
        bool, typer.Option("--write", help="write files that differ instead of failing")
    ] = False,
    release: Annotated[
        bool, typer.Option("--release", help="also refuse runs from uncommitted source")
    ] = False,
) -> None:
    """Make released tables and figures again and compare.

    They are made from the tidy tables next to them; the duel from its runs; costs, approximation
    errors and the graders' audit from their measurements. A difference is an error, or is written with
    --write.

    Example: troll release check results/released/testbed
    """
    from troll.analysis.claims.packaged import claim_files
    from troll.analysis.data.provenance import check_clean
    from troll.analysis.data.results import read_results
    from troll.analysis.data.tidy import table_files, verify_table_file
    from troll.analysis.report.check import check_results as make_again
    from troll.operations.released import check_measurements, has_measurements

    compared = check_measurements(results, write=write)
    if not has_measurements(results) or table_files(results):
        for path in table_files(results).values():
            verify_table_file(path)
        known = read_results(results)
        if release:
            check_clean(known.runs, results)
        compared += make_again(results, results=known, claims=claim_files(ledger, known.claims), write=write)
    done = "written" if write else "are what the released data give"
    typer.echo(f"{results}: {len(compared)} files {done}")


@app.command()
def adopt(
    name: Annotated[str, typer.Argument(help="a directory in results/, such as testbed")],
    finished: Annotated[
        bool, typer.Option("--finished", help="of an unfinished experiment, what `troll status --page` made")
    ] = False,
) -> None:
    """Replace the release of an experiment or a board by the local results.

    Copies tables, figures, verdicts and tidy rows from results/NAME to results/released/NAME, after making
    them again and comparing. Refused if the source has uncommitted changes. Of an unfinished experiment with
    `archive: true`, only the rows of finished runs are copied, or with --finished the page of them too.

    Example: troll release adopt testbed
    """
    from troll.operations.adopt import adopt as copy_to_release

    typer.echo(copy_to_release(name, finished=finished))


@app.command()
def comparisons(
    results: Annotated[
        list[Path], typer.Argument(help="directories of results, as one family of comparisons")
    ],
    out: Annotated[Path, typer.Option(help="directory for comparisons.csv and .md, and forest.png")],
    formats: Formats = None,
) -> None:
    r"""List and plot the comparisons of several experiments.

    Each is listed once, with p-values corrected for the number of comparisons.

    Example: troll release comparisons results/released/testbed* \
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
def schema(
    out: Annotated[Path, typer.Option(help="*.json: a schema for editors; *.md: a page for people")],
) -> None:
    """Write the schema of experiment files, or their reference page.

    Example: troll release schema --out experiment.schema.json
    """
    from troll.common.files import write_text
    from troll.operations.schema import reference, schema_text

    makers = {".json": schema_text, ".md": reference}
    if out.suffix not in makers:
        raise UserError(f"--out: {out} must end in {' or '.join(makers)}")
    write_text(out, makers[out.suffix]())


@app.command("settings")
def released_settings(out: Annotated[Path, typer.Option(help="the page to write, *.md")]) -> None:
    """Write the page on the settings of the paper's released configuration.

    Example: troll release settings --out docs/released.md
    """
    from troll.common.files import write_text
    from troll.experiment.files import load_experiment
    from troll.experiment.published.ledger import ledger_page, read_ledger

    paper = load_experiment(Path("workflow/config/paper.yaml")).model_dump()
    write_text(out, ledger_page(read_ledger(), paper))


Trials = Annotated[
    list[Path], typer.Option(help="results/<experiment> of the trials; once per round, in order")
]


@app.command()
def trials(
    protocol: ProtocolFile,
    out: Annotated[Path, typer.Option(help="the experiment file to write")],
    results: Annotated[
        list[Path] | None,
        typer.Option(help="results/<experiment> of a finished round; once per round, in order"),
    ] = None,
) -> None:
    r"""Write the experiment file of all trials, or of the next round of tuning.

    Reads the protocol, and tidy/ of RESULTS; writes OUT.

    Example: troll release trials workflow/config/duel.yaml \
    --results results/released/leaderboard-trials --out round-2.yaml
    """
    from troll.operations.leaderboard import write_trials

    write_trials(protocol, out, results or ())


@app.command()
def final(
    protocol: ProtocolFile,
    results: Trials,
    out: Annotated[Path, typer.Option(help="directory for one experiment file per task")],
) -> None:
    r"""Choose the best trial of each rule, and write the experiment files of fresh seeds.

    Reads tidy/ of RESULTS; writes OUT/TASK.yaml.

    Example: troll release final workflow/config/duel.yaml \
    --results results/released/leaderboard-trials --results results/duel-round-2 --out final
    """
    from troll.operations.leaderboard import write_finals

    write_finals(protocol, results, out)


@app.command()
def board(
    protocol: ProtocolFile,
    trials: Trials,
    final: Annotated[list[Path], typer.Option(help="results/<experiment> of fresh seeds; once per task")],
    out: Annotated[Path, typer.Option(help="directory of the board")],
) -> None:
    r"""Make the board from finished experiments: tables and a figure.

    Reads tidy/ of each; writes the tables board, contrasts, trials and levels (CSV,
    Markdown), the figure contrasts and protocol.yaml into OUT. Prints what the
    protocol says about the outcome.

    Example: troll release board workflow/config/duel.yaml \
    --trials results/released/leaderboard-trials --trials results/duel-round-2 \
    --final results/duel-locks --final results/duel-programs --out results/duel
    """
    from troll.common.files import write_text
    from troll.operations.leaderboard import make_board

    outcome = make_board(protocol, trials, final, out)
    write_text(out / "protocol.yaml", protocol.read_text(encoding="utf-8"))
    typer.echo(outcome)
