"""Experiments: what a file of one may hold, how it becomes runs, and where each run lives.

This is the only place that knows run names, paths and seeds of runs. Every key is documented here or in
`troll.settings`; `troll.checks` says what is wrong with an experiment, `troll.experiment_files` reads one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pydantic import Field

from troll.errors import UserError
from troll.recipes import recipe_of
from troll.seeding import derive_seed
from troll.settings import (
    Cost,
    Evaluation,
    ModelSettings,
    PublicData,
    Rule,
    Settings,
    TaskSettings,
    Training,
    Whole,
)
from troll.tasks.registry import check_settings, get_task

BASE = "base"
# Of a task: what is resolved apart, and what is done with a trained model only.
_NO_TASK = {"training", "settings", "evaluate_on"}


class Block(Settings):
    """One block of the matrix: every combination of the names listed; a key left out means all."""

    group: str | None = Field(None, description="a name to run this block by: `snakemake GROUP`")
    models: list[str] | None = Field(None, description="names; none means all")
    tasks: list[str] | None = Field(None, description="names; none means all")
    trust_regions: list[str] | None = Field(None, description="names; none means all")
    estimators: list[str] | None = Field(None, description="names; none means all")
    conditions: list[str] | None = Field(None, description="names; none means all")


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
    summary: str = Field("", description="one line for people")
    seeds: list[Whole] = Field(min_length=1, description="a run for each, of every combination")
    tasks: dict[str, TaskSettings] = Field(min_length=1, description="by registered name: see Tasks")
    models: dict[str, ModelSettings] = Field(min_length=1, description="by names of your choice")
    trust_regions: dict[str, Rule] = Field(min_length=1, description="by names of your choice")
    estimators: dict[str, Rule] = Field(min_length=1, description="by names of your choice")
    conditions: dict[str, dict[str, Any]] = Field(
        min_length=1, description="overrides of training, by names of your choice"
    )
    training: Training = Field(Training(), description="settings of every run")
    evaluation: Evaluation = Field(Evaluation(), description="of final checkpoints and base models")
    matrix: list[Block] = Field([Block()], description="blocks of runs; by default every combination")
    public_data: PublicData | None = Field(None, description="audit and benchmarks on public data sets")
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
        return list(self._runs.values())

    @cached_property
    def _runs(self) -> dict[str, Run]:
        return {run.run_id: run for block in self.matrix for run in self._runs_of(block)}

    def _runs_of(self, block: Block) -> list[Run]:
        return [
            Run(model, task, trust_region, estimator, condition, seed)
            for task in block.tasks or self.tasks
            for model in block.models or self.models
            for condition in block.conditions or self.conditions
            for estimator in block.estimators or self.estimators
            for trust_region in block.trust_regions or self.trust_regions
            for seed in self.seeds
        ]

    def groups(self) -> dict[str, list[Run]]:
        """The runs of each named group of blocks, each once; a run may belong to several groups."""
        found: dict[str, dict[Run, None]] = {}
        for block in self.matrix:
            if block.group is not None:
                found.setdefault(block.group, {}).update(dict.fromkeys(self._runs_of(block)))
        return {group: list(runs) for group, runs in found.items()}

    def bases(self) -> list[tuple[str, str]]:
        """The (model, task) pairs that runs start from, each once."""
        return list(dict.fromkeys((run.model, run.task) for run in self.runs()))

    def run(self, run_id: str) -> Run:
        """The run of this name.

        Raises:
            UserError: the experiment has no such run.
        """
        if run_id not in self._runs:
            from troll.checks import nearest

            hint = nearest(run_id, list(self._runs))
            raise UserError(f"experiment {self.experiment} has no run {run_id!r}{hint}")
        return self._runs[run_id]

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
        settings: Mapping[str, Any] = self.training.model_dump()
        for override in overrides:
            settings = merged(settings, override)
        return Training.model_validate(settings)


def merged(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """The base with the override's values; mappings in both are merged too."""
    result = dict(base)
    for key, value in override.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result


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
        "model": _resolve_model(experiment, run.model),
        "task": {
            "name": run.task,
            **task.model_dump(exclude=_NO_TASK),
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


def _resolve_model(experiment: Experiment, name: str) -> dict[str, Any]:
    """What defines a model: of one of the hub its id alone, for the sizes are its own."""
    model = experiment.models[name]
    if model.hub is not None:
        return {"name": name, "hub": model.hub.model_dump(exclude={"billions"})}
    return {"name": name, **model.model_dump(exclude={"training"})}


def resolve_base(experiment: Experiment, model: str, task: str) -> dict[str, Any]:
    """Everything that defines a base model, as plain data."""
    settings = experiment.tasks[task]
    return {
        "experiment": experiment.experiment,
        "run_id": f"{model}/{task}/{BASE}",
        "model": _resolve_model(experiment, model),
        "task": {
            "name": task,
            **settings.model_dump(exclude=_NO_TASK),
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
