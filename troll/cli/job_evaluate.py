"""Jobs that sample and grade: models, samples from anywhere, answers to public benchmarks."""

from pathlib import Path
from typing import Annotated

import typer

from troll.cli.options import (
    BatchSize,
    Chat,
    CutPrompts,
    EngineName,
    EngineOptions,
    Gpus,
    MaxTokens,
    OnlyPresent,
    Out,
    Seed,
    Split,
    Stem,
    Task,
    Temperature,
    Thinking,
    json_object,
    read_settings,
)
from troll.common.errors import UserError

app = typer.Typer()


@app.command()
def sample(
    checkpoint: Annotated[Path, typer.Option(help="a saved model")],
    problems: Annotated[Path, typer.Option(help="problems as JSON lines")],
    task: Task,
    out: Out,
    samples: Annotated[int, typer.Option(help="samples for each problem")] = 8,
    temperature: Temperature = 1.0,
    max_tokens: MaxTokens = 64,
    batch_size: BatchSize = 256,
    seed: Seed = 0,
    chat: Chat = "auto",
    thinking: Thinking = False,
    cut_prompts: CutPrompts = False,
    engine: EngineName = "transformers",
    engine_options: EngineOptions = "{}",
    gpus: Gpus = 0,
) -> None:
    r"""Sample responses from a checkpoint.

    Reads a checkpoint and problems; writes a line for each sample. The same seed gives the same text whatever
    the batch size, and an interrupted call resumes.

    Example: troll job sample --task chains --out samples.jsonl \
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


@app.command()
def grade(
    task: Task,
    samples: Annotated[Path, typer.Option(help="samples as JSON lines: task_id, completion")],
    out: Out,
    problems: Annotated[
        Path | None, typer.Option(help="problems as JSON lines; default the public data set named by TASK")
    ] = None,
    only_present: OnlyPresent = False,
    split: Split = None,
) -> None:
    r"""Grade samples of any task.

    Mathematics is judged by math-verify, code in the sandbox. Answers to public data are also scored by
    lm-eval (mathematics) and evalplus (code); their figures are called official. Public data come from the
    directory named by TROLL_DATA_MIRROR, or else from the Hugging Face hub.

    Reads samples; writes the verdicts by problem as JSON and, next to them, disagreements.jsonl for public
    data and lm_eval/ for mathematics, with lm-eval's results_*.json and samples_*.jsonl.

    Example: troll job grade --task chains \
    --problems results/testbed/data/chains/test.jsonl --samples samples.jsonl \
    --out grades.json
    """
    from troll.evaluation.grading import grade as judge

    judge(task, samples, problems, out, only_present=only_present, split=split)


@app.command()
def sample_suites(
    config: Annotated[Path, typer.Option(help="file of samples and temperature by data set")],
    checkpoint: Annotated[Path, typer.Option(help="a saved model")],
    data: Annotated[Path, typer.Option(help="directory with NAME/test.jsonl for each data set")],
    out: Out,
    max_tokens: MaxTokens = 4096,
    batch_size: BatchSize = 256,
    seed: Seed = 0,
    engine: EngineName = "transformers",
    engine_options: EngineOptions = "{}",
    gpus: Gpus = 0,
) -> None:
    r"""Sample responses to further data sets.

    Reads DATA/NAME/test.jsonl, which `troll job problems` writes; writes OUT/NAME.samples.jsonl and, last,
    OUT/sampled.json.

    Example: troll job sample-suites --config suites.yaml \
    --checkpoint Qwen/Qwen3-0.6B --data data --out samples
    """
    from troll.common.gpus import require_gpus
    from troll.evaluation.suites import sample_suites as draw
    from troll.experiment.run_config import SuitesConfig

    require_gpus(gpus, "--gpus")
    draw(
        checkpoint,
        read_settings(config, SuitesConfig).root,
        data,
        out,
        max_new_tokens=max_tokens,
        batch_size=batch_size,
        seed=seed,
        engine=engine,
        engine_options=json_object("--engine-options", engine_options),
    )


@app.command()
def grade_suites(
    data: Annotated[Path, typer.Option(help="directory with NAME/test.jsonl for each data set")],
    out: Annotated[Path, typer.Option(help="directory with the samples; the grades go there too")],
) -> None:
    """Grade samples of further data sets.

    Reads what `troll job sample-suites` wrote; writes OUT/NAME.grades.json and, last, OUT/graded.json.

    Example: troll job grade-suites --data data --out samples
    """
    from troll.evaluation.suites import grade_suites as judge

    judge(data, out)


@app.command()
def oracle(
    task: Task,
    problems: Annotated[Path, typer.Option(help="problems as JSON lines")],
    out: Out,
) -> None:
    r"""Write the reference solutions as samples, for `troll job grade`.

    Example: troll job oracle --task gsm8k --problems test.jsonl \
    --out oracle.jsonl
    """
    from troll.evaluation.oracle import write_oracle
    from troll.tasks.registry import get_task

    write_oracle(get_task(task), problems, out)


@app.command()
def benchmark_table(
    answers: Annotated[
        list[str] | None, typer.Argument(help="LABEL=DIRECTORY with grades.json and samples.jsonl")
    ] = None,
    out: Stem = Path("benchmarks"),
    skipped: Annotated[str, typer.Option(help="reasons by name of what was left out, as JSON")] = "{}",
) -> None:
    r"""Make a table of graded answers to public benchmarks.

    Example: troll job benchmark-table oracle=gsm8k/oracle base=gsm8k/base \
    --out benchmarks
    """
    from troll.analysis.render.formats import write_table
    from troll.analysis.tables.benchmarks import benchmark_table as make
    from troll.analysis.tables.benchmarks import read_answers

    rows = []
    for item in answers or []:
        label, separator, directory = item.partition("=")
        if not separator:
            raise UserError(f"{item}: expected LABEL=DIRECTORY")
        files = Path(directory, "grades.json"), Path(directory, "samples.jsonl")
        rows.append(read_answers(label, *files, beside=out.parent))
    write_table(make(rows, json_object("--skipped", skipped)), out)


@app.command()
def lm_eval_tasks(out: Annotated[Path, typer.Option(help="directory for lm-eval's --include_path")]) -> None:
    r"""Write tasks for lm-eval: this package's for every mathematics set, and lm-eval's own on local data.

    `troll_*` ask and score as this package does (`troll_math_eval`: the seven sets), `local_*` as lm-eval
    does, `prompted_*` ask as this package and score as lm-eval.

    Example: troll job lm-eval-tasks --out tasks && lm_eval run \
    --include_path tasks --tasks troll_math_eval --model hf \
    --model_args pretrained=Qwen/Qwen3-0.6B
    """
    from troll.evaluation.lm_eval.builtin import write_tasks

    for name in write_tasks(out):
        typer.echo(name)
