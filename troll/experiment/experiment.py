"""The keys of an experiment file, the runs that it plans, and their names and derived seeds.

Only this module defines names, paths and seeds of runs. The keys are documented here and in
`troll.experiment.settings`; `troll.experiment.validation` checks experiments, `troll.experiment.files` reads
them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pydantic import Field, model_validator

from troll.algorithms.ranges import NonNegativeInt, Positive
from troll.common.errors import UserError, nearest
from troll.common.seeding import derive_seed
from troll.common.settings import StrictModel
from troll.experiment.base_seeds import with_base_models_apart
from troll.experiment.measurement_settings import CostBenchmark, Evaluation, PublicData
from troll.experiment.model_settings import ModelSettings
from troll.experiment.recipes import recipe_of
from troll.experiment.run_config import (
    BaseConfig,
    ConditionOfRun,
    PretrainedOfRun,
    RuleOfRun,
    RunConfig,
    ScratchModelOfRun,
    SeedsOfBase,
    SeedsOfRun,
    TaskOfRun,
)
from troll.experiment.settings import Rule, TaskSettings, ThinkingOfRun, Training
from troll.experiment.sizes import train_problems
from troll.tasks.registry import check_settings, get_task

BASE = "base"
# Keys of a task that run.yaml leaves out, or takes with defaults filled in (`settings`).
_NO_TASK = {"training", "settings", "evaluate_on", "validate_on"}


class Block(StrictModel):
    """A block of the matrix: every combination of the names listed."""

    group: str | None = Field(
        None, description="group of blocks that this one belongs to: `snakemake GROUP` runs it"
    )
    models: list[str] | None = Field(None, description="names of models; none: all")
    tasks: list[str] | None = Field(None, description="names of tasks; none: all")
    trust_regions: list[str] | None = Field(None, description="names of trust regions; none: all")
    estimators: list[str] | None = Field(None, description="names of estimators; none: all")
    conditions: list[str] | None = Field(None, description="names of conditions; none: all")


COORDINATES = ("model", "task", "trust_region", "estimator", "condition")
"""What runs that differ only in their seed share, in the order of their names."""


@dataclass(frozen=True)
class Run:
    """A run of an experiment, by its coordinates."""

    model: str
    task: str
    trust_region: str
    estimator: str
    condition: str
    seed: int

    @property
    def group_id(self) -> str:
        """``<model>/<task>/<trust region>/<estimator>/<condition>``, which all seeds of a cell share."""
        return "/".join(getattr(self, name) for name in COORDINATES)

    @property
    def run_id(self) -> str:
        """``<model>/<task>/<trust region>/<estimator>/<condition>/seed<k>``."""
        return f"{self.group_id}/seed{self.seed}"


class Experiment(StrictModel):
    """An experiment file."""

    experiment: str = Field(description="name of the experiment; results go to `results/<name>`")
    summary: str = Field("", description="one-line description")
    seeds: list[NonNegativeInt] = Field(min_length=1, description="seeds with which every combination is run")
    tasks: dict[str, TaskSettings] = Field(
        min_length=1, description="tasks by registered name (listed in docs/configuration.md)"
    )
    models: dict[str, ModelSettings] = Field(min_length=1, description="models by names of your choice")
    trust_regions: dict[str, Rule] = Field(min_length=1, description="trust regions by names of your choice")
    estimators: dict[str, Rule] = Field(
        min_length=1, description="advantage estimators by names of your choice"
    )
    conditions: dict[str, dict[str, Any]] = Field(
        min_length=1, description="overrides of training, by names of your choice"
    )
    training: Training = Field(Training(), description="training settings of every run")
    evaluation: Evaluation = Field(
        Evaluation(), description="how final checkpoints and base models are evaluated"
    )
    thinking: ThinkingOfRun = "off"
    matrix: list[Block] = Field(
        [Block()], min_length=1, description="blocks of runs; by default every combination"
    )
    public_data: PublicData | None = Field(None, description="audit and benchmarks on public data sets")
    cost: CostBenchmark | None = Field(None, description="measure the cost of an update on this machine")
    approximation: bool = Field(False, description="compare sparse projections with dense ones")
    published: bool = Field(False, description="show the paper's numbers next to the runs")
    claims: list[str] = Field(
        ["default"],
        min_length=1,
        description="files of claims to judge; `default`: the claims of the package",
    )
    allow_mixed: bool = Field(
        False, description="allow runs with different digests in one table; their rows are marked"
    )
    archive: bool = Field(
        False,
        description="keep finished runs as rows of `results/<experiment>/tidy`; these and the rows of "
        "`results/released/<experiment>/tidy` are not made again",
    )
    repeat: bool = Field(
        False,
        description="also make the runs again that are in `results/released/<experiment>`; usually set by "
        "`make results REPEAT=1` or `troll run --repeat`",
    )
    not_finite: Literal["stop", "zero"] = Field(
        "stop",
        description="when a loss is not finite: `stop` ends with an error; `zero` counts the run as finished "
        "and as solving no test problem (for boards whose protocol says so)",
    )
    rehearsal: bool = Field(
        False, description="set by `troll rehearse`: rewards are coin flips; manifests and tables say so"
    )
    gpu_memory: Positive | None = Field(
        None,
        description="memory of each GPU in GiB (40, 80), for [estimates of what fits]"
        "(cluster.md#memory-of-gpus); none: that of the GPUs of this machine; changes no run's key",
    )
    tracking: Literal["none", "tensorboard", "wandb", "trackio"] = Field(
        "tensorboard", description="also log metrics.jsonl to this tracker; changes no run's key"
    )

    @model_validator(mode="after")
    def _seeds_differ(self) -> "Experiment":
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds: {self.seeds} names a seed twice")
        return self

    @model_validator(mode="before")
    @classmethod
    def _with_base_models_apart(cls, data: Any) -> Any:
        return with_base_models_apart(data)

    def runs(self, groups: Sequence[str] = ()) -> list[Run]:
        """Returns all runs of the matrix, or those of some groups, each once, in the order of the file."""
        if not groups:
            return list(self._runs.values())
        runs_by_group = self.groups()
        for group in groups:
            if group not in runs_by_group:
                valid = ", ".join(runs_by_group) or "none, because no block of matrix names one"
                raise UserError(f"experiment {self.experiment} has no group {group!r}; valid: {valid}")
        return list(dict.fromkeys(run for group in groups for run in runs_by_group[group]))

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
            for seed in dict.fromkeys(self.seeds)
        ]

    def groups(self) -> dict[str, list[Run]]:
        """Returns the runs of each group of blocks, each once; a run may belong to several groups."""
        groups: dict[str, dict[Run, None]] = {}
        for block in self.matrix:
            if block.group is not None:
                groups.setdefault(block.group, {}).update(dict.fromkeys(self._runs_of(block)))
        return {group: list(runs) for group, runs in groups.items()}

    def bases(self) -> list[tuple[str, str]]:
        """Returns the base models that runs start from, each once, as (model, task)."""
        return list(dict.fromkeys((run.model, run.task) for run in self.runs()))

    def run(self, run_id: str) -> Run:
        """Returns the run with this run_id."""
        if run_id not in self._runs:
            hint = nearest(run_id, list(self._runs))
            raise UserError(f"experiment {self.experiment} has no run {run_id!r}{hint}")
        return self._runs[run_id]

    def training_of(self, run: Run) -> Training:
        """Returns the training settings of a run: the experiment's with all overrides; later ones win.

        Overrides come, in this order, from the estimator's recipe (PPO-max has one), model, task, trust
        region, estimator and condition. Blocks such as ``critic`` are merged key by key; null removes one.
        ``epochs`` limits the rollout batches if the number of training problems is known.
        """
        settings: Mapping[str, Any] = self.training.model_dump()
        for override in self.overrides_of(run).values():
            settings = merged(settings, override)
        problems = train_problems(run.task, self.tasks[run.task])
        return Training.model_validate(settings).within_epochs(problems)

    def how_evaluated(self) -> dict[str, Any]:
        """Returns how models are sampled for evaluation, with ``thinking`` unless it is off."""
        return self.evaluation.model_dump() | self.model_dump(include={"thinking"})

    def overrides_of(self, run: Run) -> dict[str, Mapping[str, Any]]:
        """Returns the overrides of a run's training settings, in order, by their key path in the file."""
        return {
            "": recipe_of(self.estimators[run.estimator].rule),
            f"models.{run.model}.training": self.models[run.model].training,
            f"tasks.{run.task}.training": self.tasks[run.task].training,
            f"trust_regions.{run.trust_region}.training": self.trust_regions[run.trust_region].training,
            f"estimators.{run.estimator}.training": self.estimators[run.estimator].training,
            f"conditions.{run.condition}": self.conditions[run.condition],
        }


def merged(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the base with the override's values; mappings in both are merged recursively."""
    result = dict(base)
    for key, value in override.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result


def resolve(experiment: Experiment, run: Run) -> RunConfig:
    """Returns everything that defines a run, including defaults: the contents of its run.yaml."""
    from troll.algorithms.advantages import ESTIMATORS
    from troll.algorithms.trust_regions import TRUST_REGIONS
    from troll.common.user_files import file_digest

    training = experiment.training_of(run)
    trust_region, estimator = experiment.trust_regions[run.trust_region], experiment.estimators[run.estimator]
    return RunConfig(
        experiment=experiment.experiment,
        run_id=run.run_id,
        seed=run.seed,
        model=resolve_model(experiment, run.model, run.task),
        task=_resolve_task(experiment, run.task),
        trust_region=RuleOfRun(
            name=run.trust_region,
            rule=trust_region.rule,
            file_sha256=file_digest(trust_region.rule),
            settings=TRUST_REGIONS.complete(trust_region.rule, trust_region.settings),
        ),
        estimator=RuleOfRun(
            name=run.estimator,
            rule=estimator.rule,
            settings=ESTIMATORS.complete(estimator.rule, estimator.settings),
        ),
        condition=ConditionOfRun(name=run.condition),
        training=training,
        files_sha256={
            name: file_digest(name, what) or "" for name, what in training.user_functions().items()
        },
        validate_on=experiment.tasks[run.task].validate_on,
        thinking=experiment.thinking,
        seeds=run_seeds(run),
        rehearsal=experiment.rehearsal,
    )


def resolve_model(experiment: Experiment, name: str, task: str) -> ScratchModelOfRun | PretrainedOfRun:
    """Returns everything that defines a model for a task."""
    model = experiment.models[name]
    if model.pretrained is None:
        left_out = {"training", "base_seeds", "wheel", "adapters"}
        return ScratchModelOfRun(name=name, **model.model_dump(exclude=left_out))
    return PretrainedOfRun(
        name=name,
        hub=model.hub and model.hub.model_copy(update={"billions": None}),
        wheel=model.wheel and model.wheel.model_copy(update={"billions": None}),
        supervised=model.supervised_steps,
        adapter=model.adapters.get(task),
    )


def _resolve_task(experiment: Experiment, name: str) -> TaskOfRun:
    task = experiment.tasks[name]
    return TaskOfRun(
        name=name, **task.model_dump(exclude=_NO_TASK), settings=check_settings(get_task(name), task.settings)
    )


def resolve_base(experiment: Experiment, model: str, task: str) -> BaseConfig:
    """Returns everything that defines a base model."""
    return BaseConfig(
        experiment=experiment.experiment,
        run_id=f"{model}/{task}/{BASE}",
        model=resolve_model(experiment, model, task),
        task=_resolve_task(experiment, task),
        thinking=experiment.thinking,
        seeds=SeedsOfBase(
            model=_seed(stream="base", model=model, task=task), data=experiment.models[model].base_seed or 0
        ),
        rehearsal=experiment.rehearsal,
    )


def _seed(**coordinates: str | int) -> int:
    """Derives a seed of 32 bits, the most that numpy accepts."""
    return derive_seed(**coordinates) % 2**32


def run_seeds(run: Run) -> SeedsOfRun:
    """Derives the seeds of a run from model, task and seed only.

    So all trust regions, estimators and conditions of one seed see the same prompts in the same order and
    sample with the same random streams, and a run is the same in every experiment.
    """
    coordinates: dict[str, str | int] = {"model": run.model, "task": run.task, "seed": run.seed}
    return SeedsOfRun(
        training=_seed(stream="training", **coordinates), evaluation=_seed(stream="evaluation", **coordinates)
    )
