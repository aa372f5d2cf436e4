"""Jobs that make problems, tokenizers, base models and run files, and train runs."""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

import typer

from troll.cli.options import Config, Gpus, Out, read_settings
from troll.common.errors import Stopped, UserError
from troll.common.progress import say

app = typer.Typer()


@app.command()
def problems(config: Config, out: Out) -> None:
    r"""Write the problems of a task: train, validation and test.

    Writes train.jsonl, validation.jsonl and test.jsonl into OUT, for the splits in CONFIG.

    CONFIG has the task and split sizes, such as {name: chains, train: 100, validation: 10, test: 10}.

    Example: troll job problems --config chains.yaml --out data
    """
    from troll.experiment.run_config import ProblemsConfig
    from troll.tasks.registry import write_problems
    from troll.tasks.types import SPLITS

    given = read_settings(config, ProblemsConfig).model_dump(exclude_none=True)
    if not set(SPLITS) & set(given):
        raise UserError(f"{config}: names no split; at least one of {', '.join(SPLITS)} is needed")
    write_problems(given, out)


@app.command()
def tokenizer(config: Config, out: Out) -> None:
    r"""Train the tokenizer of an experiment's from-scratch models.

    Writes tokenizer.json and its settings into OUT. A tokenizer that was trained before with the same
    settings is copied from resources/base-models.

    CONFIG holds tasks, vocabulary and demonstrations, such as
    {tasks: {chains: {}}, vocabulary: 512, demonstrations: 20000}.

    Example: troll job tokenizer --config tokenizer.yaml --out tokenizer
    """
    from troll.experiment.run_config import TokenizerConfig
    from troll.training.tokenizer import make_tokenizer

    settings = read_settings(config, TokenizerConfig)
    make_tokenizer(settings.tasks, settings.vocabulary, settings.demonstrations, out, shared=True)


@app.command()
def base_model(
    config: Config, tokenizer: Annotated[Path, typer.Option(help="directory of the tokenizer")], out: Out
) -> None:
    r"""Train a from-scratch base model on flawed demonstrations.

    Reads the tokenizer; writes checkpoint/ and manifest.json into OUT. Weights that were trained before with
    the same settings are copied from resources/base-models. The workflow writes CONFIG; the example only
    shows the command.

    Example: snakemake -n -p -f results/testbed/base/tiny/chains/manifest.json \
    | grep base-model
    """
    from troll.experiment.run_config import BaseConfig
    from troll.training.base_model import shared_base_model

    shared_base_model(read_settings(config, BaseConfig), tokenizer, out)


@app.command()
def configure(config: Config, out: Out) -> None:
    r"""Write a run.yaml: everything that defines one run.

    The workflow writes CONFIG; the example only shows the command.

    Example: snakemake -n -p -f \
    results/testbed/runs/tiny/chains/troll/grpo/stale/seed0/run.yaml \
    | grep configure
    """
    from troll.experiment.files import write_run_file
    from troll.experiment.run_config import RunConfig

    write_run_file(out, read_settings(config, RunConfig))


@app.command()
def hub_model(config: Config, out: Out, gpus: Gpus = 0) -> None:
    """Make a base model from a pretrained model of the hub or of a Python package.

    Writes manifest.json and checkpoint/ into OUT: links or, after supervised steps, the trained model.

    Instead of downloading, it reads from the directory that TROLL_MODEL_MIRROR names, with OWNER/NAME of a
    model, or the package's wheel. The workflow writes CONFIG below .snakemake/settings.

    Example: troll job hub-model --config base-model.json --out base
    """
    from troll.common.gpus import require_gpus
    from troll.common.models import parameters_of
    from troll.common.processor import use_all_instructions
    from troll.experiment.run_config import BaseConfig
    from troll.training.base_model import pretrained, pretrained_base_model, scratch_in

    require_gpus(gpus, "--gpus")
    settings = read_settings(config, BaseConfig)
    with scratch_in(out) as scratch:
        parameters = parameters_of(pretrained(settings, scratch)[0].files.values())
    use_all_instructions(parameters)
    pretrained_base_model(settings, out)


@app.command()
def adapter(config: Config, out: Out) -> None:
    r"""Train a low-rank adapter of a pretrained model on a task's demonstrations.

    Writes adapter_model.safetensors (bfloat16), adapter_config.json and adapter.json into OUT, with the
    digest of the merged weights that an experiment file names. Needs PEFT; merging does not.

    CONFIG holds wheel or hub, task, supervised, rank and seed.

    Example: troll job adapter \
    --config workflow/adapters/SmolLM2-135M-Instruct/chains.yaml --out chains
    """
    from troll.common.models import parameters_of
    from troll.common.processor import use_all_instructions
    from troll.experiment.run_config import AdapterRecipe
    from troll.training.adapter import train_adapter
    from troll.training.base_model import pretrained_source, scratch_in

    recipe = read_settings(config, AdapterRecipe)
    with scratch_in(out.parent) as scratch:
        model = pretrained_source(recipe, scratch)
        use_all_instructions(parameters_of(model.files.values()))
        facts = train_adapter(recipe, model, out)
    say(f"{out}: the merged weights have sha256 {facts['merged_weights_sha256']}")


@app.command()
def train(
    run: Annotated[Path, typer.Argument(help="a run.yaml; results are written next to it")],
    base: Annotated[Path, typer.Option(help="checkpoint of the base model")],
    data: Annotated[Path, typer.Option(help="directory with the task's problems")],
    suites: Annotated[
        Path | None, typer.Option(help="directory of the data sets that the run validates on")
    ] = None,
    tracking: Annotated[
        str, typer.Option(envvar="TROLL_TRACKING", help="also log metrics to tensorboard, wandb or trackio")
    ] = "none",
    not_finite: Annotated[
        Literal["stop", "zero"],
        typer.Option(
            envvar="TROLL_NOT_FINITE",  # set by the workflow from the experiment file; not part of a run
            help="if the loss is not finite: stop with an error, or count the run as solving nothing (zero)",
        ),
    ] = "stop",
    on_limit: Annotated[
        Literal["exit", "requeue"],
        typer.Option(help="after SIGUSR1: exit with status 75, or have SLURM requeue the job first"),
    ] = "exit",
) -> None:
    r"""Train one run, or resume it where it was interrupted.

    After SIGUSR1 or SIGTERM it saves its state at the end of the rollout batch, and exits with status 75.

    Reads run.yaml, the base model, DATA/{train,validation}.jsonl and, for each data set in validate_on,
    SUITES/<data set>/test.jsonl; writes metrics.jsonl, checkpoint/ and manifest.json next to run.yaml.

    Example: troll job train \
    results/testbed/runs/tiny/chains/troll/grpo/stale/seed0/run.yaml \
    --base results/testbed/base/tiny/chains/checkpoint \
    --data results/testbed/data/chains
    """
    from troll.common.models import parameters_of
    from troll.common.processor import use_all_instructions
    from troll.common.signals import hold_signals

    use_all_instructions(parameters_of(base.glob("*")))
    hold_signals()  # before the libraries start their threads

    from troll.common.digests import digest_of_json
    from troll.common.files import only_writer, read_json
    from troll.common.machine_errors import as_user_error
    from troll.experiment.files import read_run_file

    config, manifest = read_run_file(run), run.parent / "manifest.json"
    gpus, rank = config.training.gpus, os.environ.get("LOCAL_RANK")
    try:
        if gpus > 1 and rank is None:
            from troll.training.launch import run_in_processes

            mixed = config.training.mixed_precision
            run_in_processes(gpus, manifest, mixed_precision=mixed)
            return
        if rank is None:
            from troll.common.gpus import require_gpus

            require_gpus(gpus, "training.gpus")
        # Of the processes of a run, the first locks the directory for all.
        held = only_writer(run.parent) if rank in (None, "0") else nullcontext(False)
        with as_user_error(run.parent), held as waited:
            finished = read_json(manifest)["config"] if waited and manifest.exists() else None
            if finished is not None and digest_of_json(finished) == digest_of_json(config.model_dump()):
                return  # another attempt, for which this one waited, finished the run
            from troll.training.run import train_run

            train_run(config, base, data, run.parent, suites, tracking, not_finite)
    except Stopped as stopped:
        if rank in (None, "0"):
            say(str(stopped))
        if on_limit == "requeue" and rank is None:
            from troll.training.launch import requeue

            requeue(stopped.signal)
        raise typer.Exit(Stopped.status) from None
