"""The user commands for results: compare, rank, grade."""

from pathlib import Path
from typing import Annotated

import typer

from troll.cli.options import Cores, Gpus, Out, Task, core_count, read_mapping
from troll.common.errors import UserError

app = typer.Typer()


@app.command()
def compare(
    results: Annotated[Path, typer.Argument(help="directory of your results")],
    reference: Annotated[
        Path | None, typer.Option(help="directory of other results; default: those in results/released")
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="commit or tag of whose release the results are compared with")
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="list every run that differs; fail if any")] = False,
) -> None:
    """Check whether your runs replicate the released ones.

    Says how many settings are within the prediction interval of the release, and how many runs equal it to
    the last digit. Exits with status 1 if more settings are outside than chance explains.

    Example: troll compare results/testbed
    """
    from troll.analysis.data.replication import describe_replication, made_here, predictions, replicates
    from troll.analysis.data.reproduction import compare_runs, describe, read_released
    from troll.analysis.data.tidy import BASE, read_tidy
    from troll.analysis.render.formats import counted

    ours = read_tidy(results)
    theirs = read_tidy(reference) if reference else read_released(results, revision)
    if reference is None:
        ours, copied = made_here(ours, theirs)
        remedy = "`make results ... REPEAT=1` or `troll run ... --repeat` makes them here"
        if copied and set(ours.runs["trust_region"]) <= {BASE}:
            raise UserError(f"{results}: all {copied} runs are the released ones themselves; {remedy}")
        if copied:
            typer.echo(f"not compared: {counted(copied, 'run')} of the release itself; {remedy}")
    compared, predicted = compare_runs(ours, theirs), predictions(ours.runs, theirs.runs)
    lines = describe_replication(predicted)
    lines += describe(compared, *(tidy.runs["run_id"].nunique() for tidy in (ours, theirs)), every=exact)
    for line in lines:
        typer.echo(line)
    equal = not compared.empty and not compared["different"].any()
    if not (equal or (replicates(predicted) and not exact)):
        raise typer.Exit(1)


@app.command()
def rank(
    what: Annotated[
        str, typer.Argument(metavar="RULE|PROTOCOL", help="my_rules.py:soft_wall, or a protocol.yaml")
    ],
    space: Annotated[
        list[str] | None, typer.Option(help="values to try of a setting of RULE, name=1,2,3; may be repeated")
    ] = None,
    protocol: Annotated[
        Path | None, typer.Option(help="protocol for RULE; default: workflow/config/duel.yaml")
    ] = None,
    repeat: Annotated[
        bool, typer.Option("--repeat", help="also make the runs of PROTOCOL again that results/released has")
    ] = False,
    cores: Cores = "all",
) -> None:
    """Compare your own trust region with clip, or run a whole protocol.

    RULE gets what every rule of the protocol gets: the contract tests, the same number of trials (runs that
    try settings), and fresh seeds with the best settings; the runs of clip, TROLL and GSPO's clipping are
    those of the duel. PROTOCOL runs all trials of its rules and the fresh seeds, and makes the board (the
    table of results) and the contrasts.

    You can interrupt it at any time: the same command resumes, and no run is repeated. Runs that
    results/released has are taken from there, unless you add --repeat. The board is in results/duel-NAME
    for a rule, and in results/NAME for a protocol.

    Example: troll rank my_rules.py:soft_wall --space coefficient=0.1,1,10
    """
    if Path(what).suffix in (".yaml", ".yml"):
        if space or protocol:
            raise UserError(f"rank: {what} is a protocol; --space and --protocol go with a rule")
        from troll.operations.leaderboard import run_protocol

        lines = [run_protocol(Path(what), core_count(cores), repeat=repeat)]
    else:
        if repeat:
            raise UserError("rank: --repeat makes the runs of a protocol again: troll rank PROTOCOL.yaml")
        from troll.operations.rank import PROTOCOL
        from troll.operations.rank import rank as rank_rule

        lines = rank_rule(what, space or (), protocol or PROTOCOL, cores=core_count(cores))
    for line in lines:
        typer.echo(line)


@app.command()
def grade(
    task: Task,
    out: Out,
    checkpoint: Annotated[Path | None, typer.Option(help="a saved model")] = None,
    samples: Annotated[Path | None, typer.Option(help="existing samples to grade, as JSON lines")] = None,
    problems: Annotated[
        Path | None, typer.Option(help="problems as JSON lines; default: the public data set TASK")
    ] = None,
    split: Annotated[str | None, typer.Option(help="split of the public data set; default: test")] = None,
    only_present: Annotated[
        bool, typer.Option("--only-present", help="grade only the problems that have a sample")
    ] = False,
    per_problem: Annotated[int, typer.Option(help="samples for each problem", min=1)] = 8,
    temperature: Annotated[float, typer.Option(help="0 is greedy")] = 1.0,
    max_tokens: Annotated[int, typer.Option(help="maximum length of a response")] = 64,
    batch_size: Annotated[int, typer.Option(help="responses per batch")] = 256,
    seed: Annotated[int, typer.Option(help="random seed")] = 0,
    chat: Annotated[str, typer.Option(help="chat template: on, off, or auto (if there is one)")] = "auto",
    thinking: Annotated[str, typer.Option(help="of models that can: on, off, or template")] = "off",
    cut_prompts: Annotated[
        bool, typer.Option("--cut-prompts", help="truncate the start of prompts that are too long")
    ] = False,
    engine: Annotated[str, typer.Option(help="transformers or vllm")] = "transformers",
    engine_options: Annotated[
        Path | None, typer.Option(help="JSON or YAML file with arguments of vllm.LLM")
    ] = None,
    gpus: Gpus = 0,
) -> None:
    r"""Sample a checkpoint's responses to a task, and grade them.

    Writes grades to OUT and the samples next to it; with --samples FILE it only grades those. Answers to
    public data sets are also scored by lm-eval or evalplus, with differences in disagreements.jsonl.

    Example: troll grade --task chains --out grades.json \
    --checkpoint results/testbed/base/tiny/chains/checkpoint \
    --problems results/testbed/data/chains/test.jsonl
    """
    if (checkpoint is None) == (samples is None):
        raise UserError("grade: name a model, --checkpoint DIRECTORY, or existing samples, --samples FILE")
    from troll.evaluation.graded_input import problems_of
    from troll.evaluation.grading import grade as judge
    from troll.evaluation.grading import sibling_path

    if checkpoint is not None:
        from troll.common.gpus import require_gpus
        from troll.evaluation.sampling import sample

        require_gpus(gpus, "--gpus")
        samples = sibling_path(out, "samples.jsonl")
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
