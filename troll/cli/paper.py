"""Commands for experiments with pretrained models and public data: fetch, link, evaluate, count the cost."""

from pathlib import Path
from typing import Annotated

import typer

from troll.cli.options import (
    AROUND_A_RUN,
    Config,
    EngineName,
    EngineOptions,
    Gpus,
    Out,
    json_object,
    settings_of,
)

File = Annotated[Path, typer.Argument(help="an experiment file")]


def fetch(
    config: Annotated[Path, typer.Option(help="an experiment file")],
    only: Annotated[list[str] | None, typer.Option(help="a group of its runs; may be repeated")] = None,
) -> None:
    """Download the models and data of an experiment.

    Their revisions and digests go to the lock file.

    Run it where the hub can be reached, as often as it takes: it resumes where it was. Jobs on machines that
    cannot reach the hub then run with HF_HUB_OFFLINE=1, with the same HF_HOME and lock file.

    Example: troll fetch --config workflow/config/paper.yaml --only paper_sizes
    """
    from troll.experiment.files import load_experiment
    from troll.operations.fetch import fetch as download

    download(load_experiment(config), only or [])


def budget(file: File) -> None:
    """Estimate what an experiment costs.

    Runs, GPU-hours and disk, by group.

    Example: troll budget workflow/config/paper.yaml
    """
    from troll.experiment.budget import budget_lines
    from troll.experiment.files import load_experiment

    typer.echo("\n".join(budget_lines(load_experiment(file))))


def hub_model(
    config: Config,
    out: Out,
    gpus: Gpus = 0,
) -> None:
    """Make a pretrained model, of the hub or from a package, a base model: linked, or trained first.

    The environment variable TROLL_MODEL_MIRROR names a directory to take it from instead: OWNER/NAME of a
    model, or a package's wheel.

    Writes checkpoint/, with links or, after supervised steps, a model of its own, and manifest.json into OUT.

    Example: troll hub-model --config '{"experiment": "mine",
    "run_id": "Qwen3-0.6B/gsm8k/base", "seeds": {"data": 0, "model": 0},
    "model": {"name": "Qwen3-0.6B", "hub": {"id": "Qwen/Qwen3-0.6B"}},
    "task": {"name": "gsm8k", "train": "all", "validation": 64, "test": "all",
    "settings": {}}}' --out base
    """
    from troll.common.gpus import require_gpus
    from troll.experiment.run_config import BaseConfig
    from troll.training.base_model import pretrained_base_model

    require_gpus(gpus, "--gpus")
    pretrained_base_model(settings_of("--config", config, BaseConfig), out)


def sample_suites(
    config: Annotated[str, typer.Option(help="samples and temperature by data set, as JSON")],
    checkpoint: Annotated[Path, typer.Option(help="a saved model")],
    data: Annotated[Path, typer.Option(help="directory with NAME/test.jsonl for each data set")],
    out: Out,
    max_tokens: Annotated[int, typer.Option(help="longest response")] = 4096,
    batch_size: Annotated[int, typer.Option(help="responses at a time")] = 256,
    seed: Annotated[int, typer.Option(help="seed of the random streams")] = 0,
    engine: EngineName = "transformers",
    engine_options: EngineOptions = "{}",
    gpus: Gpus = 0,
) -> None:
    r"""Sample responses to further data sets.

    Reads DATA/NAME/test.jsonl, which `troll problems` writes; writes OUT/NAME.samples.jsonl and, last,
    OUT/sampled.json.

    Example: troll sample-suites --config '{"math500": {}}' \
    --checkpoint Qwen/Qwen3-0.6B --data data --out samples
    """
    from troll.common.gpus import require_gpus
    from troll.evaluation.suites import sample_suites as draw
    from troll.experiment.run_config import SuitesConfig

    require_gpus(gpus, "--gpus")
    draw(
        checkpoint,
        settings_of("--config", config, SuitesConfig).root,
        data,
        out,
        max_new_tokens=max_tokens,
        batch_size=batch_size,
        seed=seed,
        engine=engine,
        engine_options=json_object("--engine-options", engine_options),
    )


def grade_suites(
    data: Annotated[Path, typer.Option(help="directory with NAME/test.jsonl for each data set")],
    out: Annotated[Path, typer.Option(help="directory with the samples; the grades go there too")],
) -> None:
    """Grade samples of further data sets.

    Reads what `troll sample-suites` wrote; writes OUT/NAME.grades.json and, last, OUT/graded.json.

    Example: troll grade-suites --data data --out samples
    """
    from troll.evaluation.suites import grade_suites as judge

    judge(data, out)


def register_paper(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    for function in (fetch, budget, hub_model, sample_suites, grade_suites):
        app.command(rich_help_panel=AROUND_A_RUN if function in (fetch, budget) else None)(function)
