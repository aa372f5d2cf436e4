"""`troll grade`: a checkpoint, or samples from anywhere, on one task."""

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
    Task,
    Temperature,
    Thinking,
    json_object,
)
from troll.common.errors import UserError

app = typer.Typer()


@app.command()
def grade(
    task: Task,
    out: Out,
    checkpoint: Annotated[Path | None, typer.Option(help="a saved model")] = None,
    samples: Annotated[Path | None, typer.Option(help="existing samples to grade, as JSON lines")] = None,
    problems: Annotated[
        Path | None, typer.Option(help="problems as JSON lines; default the public data set named by TASK")
    ] = None,
    split: Split = None,
    only_present: OnlyPresent = False,
    per_problem: Annotated[int, typer.Option(help="samples for each problem", min=1)] = 8,
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
    r"""Sample a checkpoint's responses to a task, and grade them.

    Writes grades to OUT and the samples next to it; with --samples FILE it only grades those.

    Example: troll grade --task chains --out grades.json \
    --checkpoint results/testbed/base/tiny/chains/checkpoint \
    --problems results/testbed/data/chains/test.jsonl
    """
    if (checkpoint is None) == (samples is None):
        raise UserError("grade: name a model, --checkpoint DIRECTORY, or samples that exist, --samples FILE")
    from troll.evaluation.grading import beside, problems_of
    from troll.evaluation.grading import grade as judge

    if checkpoint is not None:
        from troll.common.gpus import require_gpus
        from troll.evaluation.sampling import sample

        require_gpus(gpus, "--gpus")
        samples = beside(out, "samples.jsonl")
        sample(
            checkpoint,
            problems_of(task, problems, split),
            samples_per_problem=per_problem,
            temperature=temperature,
            max_new_tokens=max_tokens,
            batch_size=batch_size,
            seed=seed,
            chat=chat,
            thinking=thinking,
            cut_prompts=cut_prompts,
            engine=engine,
            engine_options=json_object("--engine-options", engine_options),
            out=samples,
        )
    if samples is not None:
        judge(task, samples, problems, out, only_present=only_present, split=split)
