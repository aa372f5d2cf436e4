"""Commands that sample and grade: models, samples from anywhere, answers to public benchmarks."""

from pathlib import Path
from typing import Annotated

import typer

from troll.cli.options import EngineName, EngineOptions, Gpus, Out, Stem, json_object
from troll.common.errors import UserError

Task = Annotated[str, typer.Option(help="name of the task")]

benchmark = typer.Typer(
    help="Public data: oracle, table of answers, lm-eval tasks.",
    no_args_is_help=True,
)


def sample(
    checkpoint: Annotated[Path, typer.Option(help="a saved model")],
    problems: Annotated[Path, typer.Option(help="problems as JSON lines")],
    task: Task,
    out: Out,
    samples: Annotated[int, typer.Option(help="samples for each problem")] = 8,
    temperature: Annotated[float, typer.Option(help="0 is greedy")] = 1.0,
    max_tokens: Annotated[int, typer.Option(help="longest response")] = 64,
    batch_size: Annotated[int, typer.Option(help="responses at a time")] = 256,
    seed: Annotated[int, typer.Option(help="seed of the random streams")] = 0,
    chat: Annotated[
        str, typer.Option(help="on: apply the chat template; off: raw prompts; auto: on where there is one")
    ] = "auto",
    thinking: Annotated[
        bool, typer.Option("--thinking", help="let a model that can (Qwen3) think before it answers")
    ] = False,
    cut_prompts: Annotated[
        bool, typer.Option("--cut-prompts", help="cut prompts that exceed the context to their last tokens")
    ] = False,
    engine: EngineName = "transformers",
    engine_options: EngineOptions = "{}",
    gpus: Gpus = 0,
) -> None:
    r"""Sample responses from a checkpoint.

    Reads a checkpoint and problems; writes a line for each sample. The same seed gives the same text whatever
    the batch size, and an interrupted call resumes.

    Example: troll sample --task chains --out samples.jsonl \
    --checkpoint results/testbed/base/tiny/chains/checkpoint \
    --problems results/testbed/data/chains/test.jsonl
    """
    from troll.common.gpus import require_gpus
    from troll.evaluation.sampling import sample as draw
    from troll.tasks.registry import get_task

    require_gpus(gpus, "--gpus")
    draw(
        checkpoint,
        get_task(task).load(problems),
        samples_per_problem=samples,
        temperature=temperature,
        max_new_tokens=max_tokens,
        batch_size=batch_size,
        seed=seed,
        chat=chat,
        thinking=thinking,
        cut_prompts=cut_prompts,
        engine=engine,
        engine_options=json_object("--engine-options", engine_options),
        out=out,
    )


def grade(
    task: Task,
    samples: Annotated[Path, typer.Option(help="samples as JSON lines: task_id, completion")],
    out: Out,
    problems: Annotated[
        Path | None, typer.Option(help="problems as JSON lines; default the public data set of that name")
    ] = None,
    only_present: Annotated[
        bool, typer.Option("--only-present", help="grade only the problems that have a sample")
    ] = False,
    split: Annotated[str | None, typer.Option(help="of the public data set; default test")] = None,
) -> None:
    r"""Grade samples of any task.

    Mathematics is judged by math-verify, code in the sandbox. Answers to public data are also scored by
    lm-eval (mathematics) and evalplus (code), whose figures are called official. Public data come from the
    directory named by TROLL_DATA_MIRROR, or else from the Hugging Face hub.

    Reads samples; writes the verdicts by problem as JSON and, beside them, of public data
    disagreements.jsonl and of mathematics lm_eval/, with results_*.json and samples_*.jsonl of lm-eval.

    Example: troll grade --task chains \
    --problems results/testbed/data/chains/test.jsonl --samples samples.jsonl \
    --out grades.json
    """
    from troll.evaluation.grading import grade as judge

    judge(task, samples, problems, out, only_present=only_present, split=split)


@benchmark.command()
def oracle(
    task: Task,
    problems: Annotated[Path, typer.Option(help="problems as JSON lines")],
    out: Out,
) -> None:
    r"""Write the reference solutions as samples, for `troll grade`.

    Example: troll benchmark oracle --task gsm8k --problems test.jsonl \
    --out oracle.jsonl
    """
    from troll.evaluation.oracle import write_oracle
    from troll.tasks.registry import get_task

    write_oracle(get_task(task), problems, out)


@benchmark.command()
def table(
    answers: Annotated[
        list[str] | None, typer.Argument(help="LABEL=DIRECTORY with grades.json and samples.jsonl")
    ] = None,
    out: Stem = Path("benchmarks"),
    skipped: Annotated[str, typer.Option(help="reasons by what was left out, as JSON")] = "{}",
) -> None:
    r"""Make a table of graded answers to public benchmarks.

    Example: troll benchmark table oracle=gsm8k/oracle base=gsm8k/base \
    --out benchmarks
    """
    from troll.analysis.render.formats import write_table
    from troll.analysis.tables.benchmarks import benchmark_table, read_answers

    rows = []
    for item in answers or []:
        label, separator, directory = item.partition("=")
        if not separator:
            raise UserError(f"{item}: expected LABEL=DIRECTORY")
        files = Path(directory, "grades.json"), Path(directory, "samples.jsonl")
        rows.append(read_answers(label, *files, beside=out.parent))
    write_table(benchmark_table(rows, json_object("--skipped", skipped)), out)


@benchmark.command()
def lm_eval_tasks(out: Annotated[Path, typer.Option(help="directory for lm-eval's --include_path")]) -> None:
    r"""Write tasks for lm-eval: this package's for every mathematics set, and lm-eval's own on local data.

    `troll_*` ask and score as this package does (`troll_math_eval`: the seven sets), `local_*` as lm-eval
    does, `prompted_*` ask as this package and score as lm-eval.

    Example: troll benchmark lm-eval-tasks --out tasks && lm_eval run \
    --include_path tasks --tasks troll_math_eval --model hf \
    --model_args pretrained=Qwen/Qwen3-0.6B
    """
    from troll.evaluation.lm_eval.builtin import write_tasks

    for name in write_tasks(out):
        typer.echo(name)


def register_evaluation(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    for function in (sample, grade):
        app.command()(function)
    app.add_typer(benchmark, name="benchmark")
