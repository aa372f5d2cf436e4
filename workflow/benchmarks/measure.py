"""Measurements besides training runs: costs, projections, base models, and the reliability of statistics.

    python workflow/benchmarks/measure.py COMMAND --help

The workflow calls these commands. `troll release check` recomputes the tables and figures of costs and
projections from their stored measurements.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from troll.cli.app import begin, main
from troll.cli.options import Log, Out, Stem
from troll.common.errors import UserError

app = typer.Typer(
    help="Measure costs, approximations, base models and the reliability of statistics.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback()
def _root(log: Log = None) -> None:
    begin(log)


@app.command()
def cost(
    out: Out,
    tokens: Annotated[int, typer.Option(help="N, tokens of the update")] = 512,
    width: Annotated[
        list[int] | None, typer.Option(help="D, hidden width; may be repeated; default: 1024")
    ] = None,
    vocabulary: Annotated[int, typer.Option(help="V, size of the vocabulary")] = 151_936,
    repeats: Annotated[int, typer.Option(help="measurements of each variant")] = 3,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="CPU threads")] = None,
) -> None:
    """Measure time and memory of one update with clip and with TROLL.

    Example: python workflow/benchmarks/measure.py cost --out cost --tokens 8192 --device cuda
    """
    from update import run_cost

    settings: dict[str, Any] = {"vocab": vocabulary, "repeats": repeats, "device": device, "threads": threads}
    run_cost(out, tokens=tokens, widths=width or [1024], **settings)


@app.command()
def cost_step(
    out: Out,
    shape: Annotated[str, typer.Option(help="qwen3-0.6b, 20m or tiny; weights are random")] = "qwen3-0.6b",
    responses: Annotated[int, typer.Option(help="B, responses of the mini-batch")] = 8,
    prompt: Annotated[int, typer.Option(help="tokens of each prompt")] = 256,
    response: Annotated[int, typer.Option(help="T, tokens of a response")] = 1024,
    steps: Annotated[int, typer.Option(help="steps of each measurement")] = 5,
    repeats: Annotated[int, typer.Option(help="measurements of each method")] = 3,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cuda",
    threads: Annotated[int | None, typer.Option(help="CPU threads")] = None,
) -> None:
    """Measure whole optimiser steps of a language model: clip, TROLL, and clip with a critic.

    Example: python workflow/benchmarks/measure.py cost-step --out cost --shape qwen3-0.6b --device cuda
    """
    from step import run_step_cost

    sizes: dict[str, Any] = {"responses": responses, "prompt": prompt, "response": response, "steps": steps}
    machine: dict[str, Any] = {"repeats": repeats, "device": device, "threads": threads}
    run_step_cost(out, shape=shape, **sizes, **machine)


@app.command()
def approximation(
    out: Out,
    old: Annotated[
        Path | None, typer.Option(help="checkpoint before training; default: Zipf-like policies")
    ] = None,
    new: Annotated[Path | None, typer.Option(help="checkpoint after training")] = None,
    samples: Annotated[Path | None, typer.Option(help="samples of the old checkpoint")] = None,
    problems: Annotated[Path | None, typer.Option(help="the problems that were sampled")] = None,
    task: Annotated[str, typer.Option(help="name of the task")] = "chains",
    tokens: Annotated[int, typer.Option(help="number of response tokens to compare")] = 256,
    redraw: Annotated[bool, typer.Option("--redraw", help="only redraw the figure from OUT")] = False,
) -> None:
    """Compare sparse projections with dense ones, by number of kept tokens and dropped mass.

    The policies are Zipf-like unless checkpoints are given.

    Example: python workflow/benchmarks/measure.py approximation --out approximation
    """
    from approximation import Pairs, draw_again, run_approximation

    if redraw:
        draw_again(out)
        return
    pairs = None
    if old and new and samples and problems:
        from policies import policy_pairs
        from troll.tasks.registry import get_task

        pairs = Pairs(*policy_pairs(old, new, get_task(task).load(problems), samples, tokens))
    elif old or new or samples or problems:
        raise UserError(
            "--old, --new, --samples and --problems go together; omit all four for Zipf-like policies"
        )
    run_approximation(out, pairs)


@app.command()
def difficulty(
    bases: Annotated[list[Path], typer.Argument(help="<experiment>/base/<model>/<task>, graded")],
    out: Stem,
    data: Annotated[
        Path | None, typer.Option(help="directory with <task>/test.jsonl; default: <experiment>/data")
    ] = None,
    tokens: Annotated[int, typer.Option(help="maximum number of response tokens to read", min=1)] = 8192,
) -> None:
    r"""Show how hard a task is for graded base models.

    Reports pass@1 and pass@8, distinct tokens in right answers, lengths of answers, and how often 16 or 64
    tokens leave out too much probability.

    Example: python workflow/benchmarks/measure.py difficulty \
    results/testbed/base/tiny/chains --out difficulty
    """
    from difficulty import run_difficulty
    from troll.analysis.render.formats import to_markdown

    typer.echo(to_markdown(run_difficulty(bases, out, data=data, tokens=tokens)))


@app.command()
def coverage(
    out: Annotated[Path, typer.Option(help="directory for the table")],
    trials: Annotated[int, typer.Option(min=1, help="simulated experiments per scenario")] = 2000,
) -> None:
    """Simulate how often intervals cover the truth.

    Example: python workflow/benchmarks/measure.py coverage --out results/released/statistics
    """
    from interval_coverage import coverage_table
    from troll.analysis.render.formats import to_markdown
    from troll.common.files import write_text

    frame = coverage_table(trials)
    write_text(out / "coverage.csv", frame.round(6).to_csv(index=False, lineterminator="\n"))
    write_text(out / "coverage.md", to_markdown(frame))


if __name__ == "__main__":
    main(app)
