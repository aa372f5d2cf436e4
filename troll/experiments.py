"""Experiment files: what they may hold, how they become runs, and where each run lives.

This is the only place that knows run names, paths and seeds of runs. An experiment file is YAML; every key is
documented in `troll.settings`, an unknown key is an error that names the nearest right one.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal

import yaml
from pydantic import BaseModel, Field, ValidationError

from troll.errors import UserError
from troll.files import write_text
from troll.recipes import estimator_problems, missing_parts, recipe_of
from troll.seeding import derive_seed
from troll.settings import (
    Cost,
    Evaluation,
    ModelSettings,
    Rule,
    Settings,
    TaskSettings,
    Training,
    Whole,
)
from troll.tasks.registry import check_settings, get_task, task_names

NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
BASE = "base"


class Block(Settings):
    """One block of the matrix: every combination of the names listed; a key left out means all."""

    models: list[str] | None = None
    tasks: list[str] | None = None
    trust_regions: list[str] | None = None
    estimators: list[str] | None = None
    conditions: list[str] | None = None


@dataclass(frozen=True)
class Run:
    """One run of an experiment, by its coordinates."""

    model: str
    task: str
    trust_region: str
    estimator: str
    condition: str
    seed: int

    @property
    def run_id(self) -> str:
        """``<model>/<task>/<trust region>/<estimator>/<condition>/seed<k>``."""
        parts = (self.model, self.task, self.trust_region, self.estimator, self.condition, f"seed{self.seed}")
        return "/".join(parts)


class Experiment(Settings):
    """A whole experiment file."""

    experiment: str = Field(description="name; results go to results/<name>")
    summary: str = ""
    seeds: list[Whole] = Field(min_length=1)
    tasks: dict[str, TaskSettings] = Field(min_length=1)
    models: dict[str, ModelSettings] = Field(min_length=1)
    trust_regions: dict[str, Rule] = Field(min_length=1)
    estimators: dict[str, Rule] = Field(min_length=1)
    conditions: dict[str, dict[str, Any]] = Field(min_length=1)
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    matrix: list[Block] = Field([Block()], description="blocks of runs; by default every combination")
    cost: Cost | None = Field(None, description="measure the cost of an update on this machine")
    approximation: bool = Field(False, description="compare sparse projections with dense ones")
    published: bool = Field(False, description="put the paper's numbers beside the runs")
    claims: list[str] = Field(["workflow/config/claims.yaml"], description="files of claims to be judged")
    allow_mixed: bool = Field(False, description="admit runs whose digests differ; marked")
    tracking: Literal["none", "tensorboard", "wandb", "trackio"] = Field(
        "tensorboard", description="where else the lines of metrics.jsonl go; part of no run's identity"
    )

    def runs(self) -> list[Run]:
        """Every run of the matrix, each once, in the order of the file."""
        found: dict[Run, None] = {}
        for block in self.matrix:
            for task in block.tasks or self.tasks:
                for model in block.models or self.models:
                    for condition in block.conditions or self.conditions:
                        for estimator in block.estimators or self.estimators:
                            for trust_region in block.trust_regions or self.trust_regions:
                                for seed in self.seeds:
                                    found[Run(model, task, trust_region, estimator, condition, seed)] = None
        return list(found)

    def bases(self) -> list[tuple[str, str]]:
        """The (model, task) pairs that runs start from, each once."""
        return list(dict.fromkeys((run.model, run.task) for run in self.runs()))

    def run(self, run_id: str) -> Run:
        """The run of this name.

        Raises:
            UserError: the experiment has no such run.
        """
        runs = {run.run_id: run for run in self.runs()}
        if run_id not in runs:
            raise UserError(
                f"experiment {self.experiment} has no run {run_id!r}{_nearest(run_id, list(runs))}"
            )
        return runs[run_id]

    def training_of(self, run: Run) -> Training:
        """The settings of a run: the experiment's, then those that others override, one after the other.

        They are the estimator's recipe (PPO-max has one), model, task, trust region, estimator, condition.
        Inside of a block such as ``critic`` single keys are overridden too; null removes the block.
        """
        overrides = (
            recipe_of(self.estimators[run.estimator].rule),
            self.models[run.model].training,
            self.tasks[run.task].training,
            self.trust_regions[run.trust_region].training,
            self.estimators[run.estimator].training,
            self.conditions[run.condition],
        )
        merged: Mapping[str, Any] = self.training.model_dump()
        for override in overrides:
            merged = _merged(merged, override)
        return Training.model_validate(merged)


def _merged(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """The base with the override's values; mappings in both are merged too."""
    merged = dict(base)
    for key, value in override.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def _nearest(name: str, valid: list[str]) -> str:
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def _choices(where: str, name: str, valid: list[str]) -> str:
    return f"{where}: unknown name {name!r}; valid: {', '.join(valid)}{_nearest(name, valid)}"


def _model_at(model: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel] | None:
    """The model whose key ``location[-1]`` was refused, found by walking the annotations."""
    current: Any = model
    for part in location[:-1]:
        if isinstance(current, type) and issubclass(current, BaseModel):
            field = current.model_fields.get(str(part))
            current = field.annotation if field else None
            if isinstance(current, UnionType):  # an optional block: X | None
                current = current.__args__[0]
        else:  # dict[str, X] or list[X]
            arguments = getattr(current, "__args__", ())
            current = arguments[-1] if arguments else None
    return current if isinstance(current, type) and issubclass(current, BaseModel) else None


def explain(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    """The first problem of a validation error as one line: field, what is wrong, what would be right."""
    first = error.errors(include_url=False)[0]
    location = tuple(part for part in first["loc"] if part != "int")
    where = ".".join([*([prefix] if prefix else []), *(str(part) for part in location)])
    owner = _model_at(model, location) if location else None
    if first["type"] == "extra_forbidden" and owner is not None:
        valid = list(owner.model_fields)
        key = str(location[-1])
        return f"{where}: unknown key {key!r}; valid: {', '.join(valid)}{_nearest(key, valid)}"
    if first["type"] == "missing":
        return f"{where}: is missing"
    message = first["msg"].removeprefix("Value error, ")
    shown = "" if isinstance(first["input"], dict) else f" (found {first['input']!r})"
    return f"{where or 'experiment'}: {message[0].lower()}{message[1:]}{shown}"


def _problems(experiment: Experiment) -> Iterator[str]:
    """Everything that the shape of the file does not show, as one line each."""
    from troll.algorithms.advantages import make_estimator
    from troll.algorithms.trust_regions import make_trust_region

    sections = ("tasks", "models", "trust_regions", "estimators", "conditions")
    for name in [
        experiment.experiment,
        *(name for section in sections for name in getattr(experiment, section)),
    ]:
        if not NAME.match(name) or name == BASE:
            yield f"name {name!r}: letters, digits, dots, dashes and underscores only, and not {BASE!r}"
    if len(set(experiment.seeds)) != len(experiment.seeds):
        yield f"seeds: {experiment.seeds} names a seed twice"
    for name, task in experiment.tasks.items():
        if name not in task_names():
            yield _choices("tasks", name, task_names())
            continue
        try:
            check_settings(get_task(name), task.settings)
        except UserError as error:
            yield f"tasks.{name}.settings: {error}"
    for section, make in (("trust_regions", make_trust_region), ("estimators", make_estimator)):
        for name, rule in getattr(experiment, section).items():
            try:
                make(rule.rule, **rule.settings)
            except UserError as error:
                yield f"{section}.{name}: {error}"
    for name, rule in experiment.estimators.items():
        yield from estimator_problems(f"estimators.{name}", rule)
    for name, model in experiment.models.items():
        if model.hub is not None:
            yield f"models.{name}.hub: hub models are not supported yet; leave it out"
    for number, block in enumerate(experiment.matrix):
        for section in sections:
            for name in getattr(block, section) or []:
                if name not in getattr(experiment, section):
                    yield _choices(f"matrix[{number}].{section}", name, list(getattr(experiment, section)))
    overrides: list[tuple[str, Mapping[str, Any]]] = [
        *((f"models.{name}.training", model.training) for name, model in experiment.models.items()),
        *((f"tasks.{name}.training", task.training) for name, task in experiment.tasks.items()),
        *(
            (f"trust_regions.{name}.training", rule.training)
            for name, rule in experiment.trust_regions.items()
        ),
        *((f"estimators.{name}.training", rule.training) for name, rule in experiment.estimators.items()),
        *((f"conditions.{name}", condition) for name, condition in experiment.conditions.items()),
    ]
    for where, override in overrides:
        try:
            Training.model_validate(_merged(experiment.training.model_dump(), override))
        except ValidationError as error:
            # A single override may clash with what another one sets: only the merged run decides that.
            if error.errors()[0]["loc"]:
                yield explain(error, Training, where)


def _parse_shape(data: Any, source: str) -> Experiment:
    """The file's keys and types; names, settings and combinations are not looked at."""
    if not isinstance(data, dict):
        raise UserError(f"{source}: expected a mapping with keys {', '.join(Experiment.model_fields)}")
    try:
        return Experiment.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{source}: {explain(error, Experiment)}") from None


def parse_experiment(data: Any, source: str) -> Experiment:
    """Checks the contents of an experiment file.

    Args:
        data: the parsed YAML.
        source: what to call the file in messages.

    Raises:
        UserError: the first problem, as one line with file, field, value and the valid choices.
    """
    experiment = _parse_shape(data, source)
    for problem in _problems(experiment):
        raise UserError(f"{source}: {problem}")
    for run in experiment.runs():
        try:
            training = experiment.training_of(run)
        except ValidationError as error:
            raise UserError(f"{source}: run {run.run_id}: {explain(error, Training)}") from None
        where = f"estimators.{run.estimator}"
        for problem in missing_parts(where, experiment.estimators[run.estimator], training):
            raise UserError(f"{source}: {problem}")
    return experiment


def _read_yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such experiment file") from None
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not YAML ({' '.join(str(error).split())})") from None


def load_experiment(path: Path) -> Experiment:
    """Reads and checks an experiment file.

    Raises:
        UserError: it is missing, no YAML, or wrong.
    """
    return parse_experiment(_read_yaml(path), str(path))


def read_experiment(path: Path) -> Experiment:
    """Reads an experiment file that has been checked before: keys and types only, without torch, at once.

    Raises:
        UserError: it is missing, no YAML, or has a wrong key or type.
    """
    return _parse_shape(_read_yaml(path), str(path))


def resolve(experiment: Experiment, run: Run) -> dict[str, Any]:
    """Everything that defines a run, defaults included, as plain data: the contents of its run.yaml."""
    from troll.algorithms.advantages import make_estimator
    from troll.algorithms.trust_regions import make_trust_region

    task = experiment.tasks[run.task]
    trust_region, estimator = experiment.trust_regions[run.trust_region], experiment.estimators[run.estimator]
    return {
        "experiment": experiment.experiment,
        "run_id": run.run_id,
        "seed": run.seed,
        "model": {"name": run.model, **experiment.models[run.model].model_dump(exclude={"training"})},
        "task": {
            "name": run.task,
            **task.model_dump(exclude={"training", "settings"}),
            "settings": check_settings(get_task(run.task), task.settings),
        },
        "trust_region": {
            "name": run.trust_region,
            "rule": trust_region.rule,
            "settings": make_trust_region(trust_region.rule, **trust_region.settings).settings,
        },
        "estimator": {
            "name": run.estimator,
            "rule": estimator.rule,
            "settings": make_estimator(estimator.rule, **estimator.settings).settings,
        },
        "condition": {"name": run.condition},
        "training": experiment.training_of(run).model_dump(),
        "seeds": run_seeds(experiment.experiment, run),
    }


def resolve_base(experiment: Experiment, model: str, task: str) -> dict[str, Any]:
    """Everything that defines a base model, as plain data."""
    settings = experiment.tasks[task]
    return {
        "experiment": experiment.experiment,
        "run_id": f"{model}/{task}/{BASE}",
        "model": {"name": model, **experiment.models[model].model_dump(exclude={"training"})},
        "task": {
            "name": task,
            **settings.model_dump(exclude={"training", "settings"}),
            "settings": check_settings(get_task(task), settings.settings),
        },
        "seeds": {"model": _clip_seed(derive_seed(stream="base", model=model, task=task)), "data": 0},
    }


def _clip_seed(seed: int) -> int:
    """Seeds that numpy accepts too have 32 bits."""
    return seed % 2**32


def run_seeds(experiment: str, run: Run) -> dict[str, int]:
    """The derived seeds of a run.

    They depend on model, task and seed only: every trust region, estimator and condition of one seed sees the
    same prompts in the same order, and samples with the same streams.
    """
    del experiment  # the same run in two experiments is the same run
    coordinates: dict[str, str | int] = {"model": run.model, "task": run.task, "seed": run.seed}
    return {
        "training": _clip_seed(derive_seed(stream="training", **coordinates)),
        "evaluation": _clip_seed(derive_seed(stream="evaluation", **coordinates)),
    }


def write_run_file(path: Path, config: Mapping[str, Any]) -> None:
    """Writes a run.yaml."""
    write_text(path, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))


def read_run_file(path: Path) -> dict[str, Any]:
    """Reads a run.yaml.

    Raises:
        UserError: it is missing or no mapping.
    """
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such run file") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not YAML ({' '.join(str(error).split())})") from None
    if not isinstance(config, dict) or "run_id" not in config:
        raise UserError(f"{path}: not a run file; `troll configure` writes them")
    return config
