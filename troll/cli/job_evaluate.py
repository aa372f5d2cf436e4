"""Jobs that sample from models and grade samples, also on public benchmarks."""

from pathlib import Path
from typing import Annotated

import typer

from troll.cli.options import Config, Gpus, Out, Stem, Task, read_mapping, read_settings
from troll.common.errors import UserError

app = typer.Typer()

Checkpoint = Annotated[Path, typer.Option(help="a saved model")]


@app.command()
def sample(
    config: Config,
    checkpoint: Checkpoint,
    problems: Annotated[Path, typer.Option(help="problems as JSON lines")],
    task: Task,
    out: Out,
    gpus: Gpus = 0,
) -> None:
    r"""Sample responses from a checkpoint.

    Reads a checkpoint and problems; writes one JSON line per sample. The same seed gives the same text for
    every batch size, and an interrupted call resumes.

    CONFIG has the settings, such as {samples: 8, max_tokens: 64, temperature: 0}.

    Example: troll job sample --config sampling.yaml --task chains --out samples.jsonl \
    --checkpoint results/testbed/base/tiny/chains/checkpoint \
    --problems results/testbed/data/chains/test.jsonl
    """
    from troll.common.gpus import require_gpus
    from troll.common.models import parameters_of
    from troll.common.processor import use_all_instructions

    use_all_instructions(parameters_of(checkpoint.glob("*")))

    from troll.evaluation.sampling import sample as draw
    from troll.experiment.run_config import SamplingConfig
    from troll.tasks.registry import get_task

    how = read_settings(config, SamplingConfig).model_dump()
    require_gpus(gpus, "--gpus")
    draw(
        checkpoint,
        get_task(task).load(problems),
        samples_per_problem=how.pop("samples"),
        max_new_tokens=how.pop("max_tokens"),
        out=out,
        **how,
    )


@app.command()
def sample_suites(
    config: Config,
    checkpoint: Checkpoint,
    data: Annotated[Path, typer.Option(help="directory with NAME/test.jsonl for each data set")],
    out: Out,
    gpus: Gpus = 0,
) -> None:
    r"""Sample responses to further data sets.

    Reads DATA/NAME/test.jsonl, which `troll job problems` writes; writes OUT/NAME.samples.jsonl and, last,
    OUT/sampled.json.

    CONFIG has the settings, such as {suites: {math500: {samples: 4}}, max_tokens: 4096}.

    Example: troll job sample-suites --config suites.yaml \
    --checkpoint results/testbed/base/tiny/chains/checkpoint --data data --out samples
    """
    from troll.common.gpus import require_gpus
    from troll.common.models import parameters_of
    from troll.common.processor import use_all_instructions

    use_all_instructions(parameters_of(checkpoint.glob("*")))

    from troll.evaluation.suites import sample_suites as draw
    from troll.experiment.run_config import SuitesConfig

    given = read_settings(config, SuitesConfig)
    require_gpus(gpus, "--gpus")
    how = given.model_dump(exclude={"suites"})
    draw(checkpoint, given.suites, data, out, max_new_tokens=how.pop("max_tokens"), **how)


@app.command()
def grade_suites(
    data: Annotated[Path, typer.Option(help="directory with NAME/test.jsonl for each data set")],
    out: Annotated[Path, typer.Option(help="directory with the samples, also for the grades")],
) -> None:
    """Grade samples of further data sets.

    Reads what `troll job sample-suites` wrote; writes OUT/NAME.grades.json and, last, OUT/graded.json.

    Example: troll job grade-suites --data data --out samples
    """
    from troll.evaluation.suites import grade_suites as judge

    judge(data, out)


@app.command()
def oracle(
    task: Task, problems: Annotated[Path, typer.Option(help="problems as JSON lines")], out: Out
) -> None:
    r"""Write reference solutions as samples, for `troll grade`.

    Example: troll job oracle --task gsm8k --problems test.jsonl \
    --out oracle.jsonl
    """
    from troll.evaluation.sampling import write_oracle
    from troll.tasks.registry import get_task

    write_oracle(get_task(task), problems, out)


@app.command()
def benchmark_table(
    answers: Annotated[
        list[str] | None, typer.Argument(help="LABEL=DIRECTORY, with grades.json and samples.jsonl there")
    ] = None,
    out: Stem = Path("benchmarks"),
    skipped: Annotated[
        Path | None, typer.Option(help="JSON or YAML file: reason by name of a skipped data set")
    ] = None,
) -> None:
    r"""Make a table from graded answers to public benchmarks.

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
        rows.append(read_answers(label, *files, directory=out.parent))
    write_table(make(rows, read_mapping(skipped) if skipped else {}), out)


@app.command()
def lm_eval_tasks(out: Annotated[Path, typer.Option(help="directory for lm-eval's --include_path")]) -> None:
    r"""Write tasks for lm-eval: mathematics data sets as this package and as lm-eval evaluate them.

    `troll_*` use this package's prompts and scores (`troll_math_eval`: all seven sets), `local_*` those of
    lm-eval on local data, `prompted_*` this package's prompts and lm-eval's scores.

    Example: troll job lm-eval-tasks --out tasks && lm_eval run \
    --include_path tasks --tasks troll_math_eval --model hf \
    --model_args pretrained=Qwen/Qwen3-0.6B
    """
    from troll.evaluation.lm_eval.builtin import write_tasks

    for name in write_tasks(out):
        typer.echo(name)
