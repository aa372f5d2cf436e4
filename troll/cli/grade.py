"""`troll grade`: a checkpoint, or samples from anywhere, on one task."""

from pathlib import Path
from typing import Annotated

import typer

from troll.cli.options import Gpus, Out, Task, read_mapping
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
    split: Annotated[str | None, typer.Option(help="split of the public data set; default test")] = None,
    only_present: Annotated[
        bool, typer.Option("--only-present", help="grade only the problems that have a sample")
    ] = False,
    per_problem: Annotated[int, typer.Option(help="samples for each problem", min=1)] = 8,
    temperature: Annotated[float, typer.Option(help="0 is greedy")] = 1.0,
    max_tokens: Annotated[int, typer.Option(help="longest response")] = 64,
    batch_size: Annotated[int, typer.Option(help="responses at a time")] = 256,
    seed: Annotated[int, typer.Option(help="seed of the random streams")] = 0,
    chat: Annotated[str, typer.Option(help="chat template: on, off; auto: if there is one")] = "auto",
    thinking: Annotated[
        bool, typer.Option("--thinking", help="let a model that can (Qwen3) think first")
    ] = False,
    cut_prompts: Annotated[
        bool, typer.Option("--cut-prompts", help="cut the start of prompts that are too long")
    ] = False,
    engine: Annotated[str, typer.Option(help="transformers or vllm")] = "transformers",
    engine_options: Annotated[
        Path | None, typer.Option(help="file with arguments of vllm.LLM, JSON or YAML")
    ] = None,
    gpus: Gpus = 0,
) -> None:
    r"""Sample a checkpoint's responses to a task, and grade them.

    Writes grades to OUT and the samples next to it; with --samples FILE it only grades those. Answers to
    public data are also scored by lm-eval or evalplus, and disagreements.jsonl is written next to OUT.

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
            engine_options=read_mapping(engine_options) if engine_options else None,
            out=samples,
        )
    if samples is not None:
        judge(task, samples, problems, out, only_present=only_present, split=split)
