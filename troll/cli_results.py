"""Commands that read finished runs: the tidy table, and everything that is made from it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from troll.cli_options import Out, Stem, json_object, parse_json
from troll.errors import UserError

Results = Annotated[
    Path, typer.Option(help="directory with runs.parquet, items.parquet and plan.json, as collect wrote them")
]
Ledger = Annotated[list[Path] | None, typer.Option(help="a file of claims; may be repeated")]


def collect(
    directories: Annotated[list[Path], typer.Argument(help="directories of finished runs and base models")],
    out: Annotated[Path, typer.Option(help="directory for the tables: runs, items, plan.json")],
    expected: Annotated[str, typer.Option(help="coordinates of the planned runs, as JSON")] = "null",
    skipped: Annotated[str, typer.Option(help="reasons by skipped task, as JSON")] = "{}",
    allow_mixed: Annotated[
        bool, typer.Option(help="admit runs whose source, environment or data differ; rows are marked")
    ] = False,
) -> None:
    """Collect runs into one tidy table.

    Example: troll collect results/mine/runs/*/*/*/*/*/* results/mine/base/*/chains --out results/mine
    """
    from troll.analysis.check import write_plan
    from troll.analysis.runs import collect as gather
    from troll.analysis.stand_ins import find_stand_ins

    runs = [path for path in directories if (path / "run.yaml").exists()]
    bases = [path for path in directories if path not in runs]
    gather(
        runs,
        out / "runs.parquet",
        out / "runs.csv.gz",
        base_dirs=bases,
        out_items=out / "items.parquet",
        allow_mixed=allow_mixed,
    )
    planned = parse_json("--expected", expected)
    if planned is not None:
        write_plan(out, planned, json_object("--skipped", skipped), find_stand_ins(directories))


def table(
    name: Annotated[str, typer.Argument(help="its name: main, comparison, speed, stability, ...")],
    results: Results,
    out: Stem,
) -> None:
    """Make a table as CSV, Markdown, LaTeX and HTML.

    Example: troll table main --results results/testbed --out main
    """
    from troll.analysis.artefacts import make_table
    from troll.analysis.check import read_evidence

    make_table(name, read_evidence(results), out)


def figure(
    name: Annotated[str, typer.Argument(help="its name: main, final, hours, learning, projection, ...")],
    results: Results,
    out: Stem,
    task: Annotated[str | None, typer.Option(help="for the figures that are made for one task")] = None,
) -> None:
    """Make a figure as PDF and PNG.

    Example: troll figure learning --task chains --results results/testbed --out learning
    """
    from troll.analysis.artefacts import make_figure
    from troll.analysis.check import read_evidence

    make_figure(name, read_evidence(results), out, task)


def claims(
    ledger: Annotated[list[Path], typer.Argument(help="files of claims; see workflow/config/claims.yaml")],
    results: Results,
    out: Stem,
) -> None:
    """Judge claims by the runs that there are.

    A claim is supported, contradicted, inconclusive or not run.

    Example: troll claims workflow/config/claims.yaml --results results/testbed --out claims
    """
    from troll.analysis.check import read_evidence
    from troll.analysis.claims import judge, read_claims
    from troll.analysis.ledger import write_claims

    given = read_evidence(results)
    judged = judge(read_claims(ledger), given.runs, given.items)
    inputs = [results / "runs.parquet", results / "items.parquet", *ledger]
    write_claims(judged, given.runs, inputs, out)


def page(
    results: Results,
    out: Out,
    ledger: Ledger = None,
    command: Annotated[list[str] | None, typer.Option(help="a shell line that made the results")] = None,
) -> None:
    """Make one self-contained HTML page.

    Verdicts come first, then tables, figures, methods and provenance.

    Example: troll page --results results/testbed --ledger workflow/config/claims.yaml --out page.html
    """
    from troll.analysis.check import read_evidence
    from troll.analysis.claims import judge, read_claims
    from troll.analysis.page import make_page

    given = read_evidence(results)
    judged = judge(read_claims(ledger or []), given.runs, given.items)
    make_page(given, judged, results, out, commands=command or ["make results"])


def report(
    config: Annotated[str, typer.Option(help="the experiment as JSON; the workflow passes it")],
    out: Out,
    targets: Annotated[list[str], typer.Argument(help="targets of the workflow to show")],
) -> None:
    """Make Snakemake's HTML report of finished targets.

    Example: troll report --config '{"experiment": ...}' --out report.html results/testbed/claims.md
    """
    from troll.analysis.artefacts import make_report

    make_report(config, targets, out)


def readme(
    results: Results,
    path: Annotated[Path, typer.Argument(help="the README")] = Path("README.md"),
    ledger: Ledger = None,
    evidence: Annotated[
        list[Path] | None, typer.Option(help="further released results that verdicts are about")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="change nothing; fail if it is out of date")] = False,
) -> None:
    """Write the README's generated blocks from the tidy tables.

    Example: troll readme --results results/testbed --ledger workflow/config/claims.yaml
    """
    from troll.analysis import readme as text
    from troll.analysis.check import read_evidence, read_tables
    from troll.analysis.claims import judge, read_claims

    given = read_evidence(results)
    judged = judge(read_claims(ledger or []), *read_tables([results, *(evidence or [])]))
    generated = text.blocks(given.main(), given.items, judged=judged)
    if check:
        difference = text.check(path, generated)
        if difference:
            raise UserError(f"{path} is out of date; `make readme` writes it:\n{difference}")
    else:
        text.update(path, generated)


def check_results(
    results: Annotated[Path, typer.Argument(help="directory of released results")],
    ledger: Ledger = None,
) -> None:
    """Make released tables and figures again and compare.

    They are made from the tidy table beside them; any difference is an error.

    Example: troll check-results results/testbed --ledger workflow/config/claims.yaml
    """
    from troll.analysis.check import check_results as make_again

    compared = make_again(results, claims=ledger or [])
    typer.echo(f"{results}: {len(compared)} files are what the tidy table gives")


def compare(
    results: Annotated[Path, typer.Argument(help="directory with your runs.parquet")],
    reference: Annotated[Path | None, typer.Option(help="directory of other results; none: git's")] = None,
    revision: Annotated[str, typer.Option(help="commit or tag whose results are the reference")] = "HEAD",
    exact: Annotated[bool, typer.Option("--exact", help="fail unless every number is equal")] = False,
) -> None:
    """Compare runs with the released ones, number for number.

    Example: troll compare results/testbed
    """
    from troll.analysis.reproduction import compare_runs, describe, released_runs
    from troll.analysis.runs import read_runs

    ours = read_runs(results / "runs.parquet")
    theirs = read_runs(reference / "runs.parquet") if reference else released_runs(results, revision)
    compared = compare_runs(ours, theirs)
    for line in describe(compared, ours["run_id"].nunique(), theirs["run_id"].nunique()):
        typer.echo(line)
    if exact and (compared.empty or compared["different"].any()):
        raise typer.Exit(1)


def cost(
    out: Out,
    tokens: Annotated[int, typer.Option(help="N, tokens of the update")] = 512,
    width: Annotated[list[int] | None, typer.Option(help="D, hidden width; may be repeated")] = None,
    vocabulary: Annotated[int, typer.Option(help="V")] = 151_936,
    repeats: Annotated[int, typer.Option(help="measurements of each variant")] = 3,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="of the CPU")] = None,
) -> None:
    """Measure time and peak memory of an update, clip and TROLL.

    Example: troll cost --out cost --tokens 8192 --device cuda
    """
    from troll.analysis.cost import run_cost
    from troll.analysis.report import write_table_page

    settings: dict[str, Any] = {"vocab": vocabulary, "repeats": repeats, "device": device, "threads": threads}
    frame = run_cost(out, tokens=tokens, widths=width or [1024], **settings)
    write_table_page(frame, out / "cost.html", "What an update costs")


def cost_step(
    out: Out,
    shape: Annotated[str, typer.Option(help="qwen3-0.6b, 20m or tiny; weights are random")] = "qwen3-0.6b",
    responses: Annotated[int, typer.Option(help="B, responses of the mini-batch")] = 8,
    prompt: Annotated[int, typer.Option(help="tokens of each prompt")] = 256,
    response: Annotated[int, typer.Option(help="T, tokens of a response")] = 1024,
    steps: Annotated[int, typer.Option(help="steps of each measurement")] = 5,
    repeats: Annotated[int, typer.Option(help="measurements of each method")] = 3,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cuda",
    threads: Annotated[int | None, typer.Option(help="of the CPU")] = None,
) -> None:
    """Measure whole optimiser steps of a language model.

    Clip, TROLL, and clip with a critic take turns.

    Example: troll cost-step --out cost --shape qwen3-0.6b --device cuda
    """
    from troll.analysis.cost_step import run_step_cost
    from troll.analysis.report import write_table_page

    sizes: dict[str, Any] = {"responses": responses, "prompt": prompt, "response": response, "steps": steps}
    machine: dict[str, Any] = {"repeats": repeats, "device": device, "threads": threads}
    frame = run_step_cost(out, shape=shape, **sizes, **machine)
    write_table_page(frame, out / "cost_step.html", "What an optimiser step costs")


def approximation(
    out: Out,
    old: Annotated[Path | None, typer.Option(help="checkpoint that sampled; none for Zipf-like ones")] = None,
    new: Annotated[Path | None, typer.Option(help="checkpoint after training")] = None,
    samples: Annotated[Path | None, typer.Option(help="samples of the old checkpoint")] = None,
    problems: Annotated[Path | None, typer.Option(help="the problems that were sampled")] = None,
    task: Annotated[str, typer.Option(help="name of the task")] = "chains",
    tokens: Annotated[int, typer.Option(help="response tokens to compare")] = 256,
) -> None:
    """Compare sparse projections with dense ones.

    Over the number of kept tokens and the dropped mass; Zipf-like policies unless checkpoints are given.

    Example: troll approximation --out approximation
    """
    from troll.analysis.approximation import Pairs, run_approximation

    pairs = None
    if old and new and samples and problems:
        from troll.evaluation.policies import policy_pairs
        from troll.tasks.registry import get_task

        pairs = Pairs(*policy_pairs(old, new, get_task(task).load(problems), samples, tokens))
    elif old or new or samples or problems:
        raise UserError("--old, --new, --samples and --problems belong together; leave all out for Zipf-like")
    run_approximation(out, pairs)


def register_results(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    commands = (collect, table, figure, claims, page, report, readme, check_results, compare)
    for function in (*commands, cost, cost_step, approximation):
        app.command()(function)
