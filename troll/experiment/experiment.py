"""Experiments: what a file of one may hold, how it becomes runs, and where each run lives.

This is the only place that knows run names, paths and seeds of runs. Every key is documented here or in
`troll.experiment.settings`; `troll.experiment.validation` says what is wrong with an experiment, and
`troll.experiment.files` reads one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pydantic import Field, model_validator

from troll.algorithms.ranges import Whole
from troll.common.errors import UserError, nearest
from troll.common.seeding import derive_seed
from troll.common.settings import StrictModel
from troll.experiment.base_seeds import with_base_models_apart
from troll.experiment.model_settings import HubModel, ModelSettings, WheelModel
from troll.experiment.recipes import recipe_of
from troll.experiment.run_config import (
    BaseConfig,
    ConditionOfRun,
    HubModelOfRun,
    RuleOfRun,
    RunConfig,
    ScratchModelOfRun,
    SeedsOfBase,
    SeedsOfRun,
    TaskOfRun,
    WheelModelOfRun,
)
from troll.experiment.settings import (
    CostBenchmark,
    Evaluation,
    MoreSeeds,
    PublicData,
    Rule,
    TaskSettings,
    Training,
)
from troll.tasks.registry import check_settings, get_task

BASE = "base"
# Of a task: what is resolved apart, and what is done with a trained model only.
_NO_TASK = {"training", "settings", "evaluate_on"}


class Block(StrictModel):
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
    def group_id(self) -> str:
        """``<model>/<task>/<trust region>/<estimator>/<condition>``: what its seeds have in common."""
        return "/".join((self.model, self.task, self.trust_region, self.estimator, self.condition))

    @property
    def run_id(self) -> str:
        """``<model>/<task>/<trust region>/<estimator>/<condition>/seed<k>``."""
        return f"{self.group_id}/seed{self.seed}"


class Experiment(StrictModel):
    """A whole experiment file."""

    experiment: str = Field(description="name; results go to results/<name>")
    summary: str = Field("", description="one line for people")
    seeds: list[Whole] = Field(min_length=1, description="a run for each, of every combination")
    more_seeds: MoreSeeds | None = Field(
        None,
        description="more seeds where claims are undecided, run by `make results`; none: only the seeds of "
        "the file",
    )
    further_seeds: dict[str, list[Whole]] = Field(
        {},
        description="seeds of single settings beside `seeds`, by "
        "`<model>/<task>/<trust region>/<estimator>/<condition>`; `make results` keeps its own in looks.json",
    )
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
    cost: CostBenchmark | None = Field(None, description="measure the cost of an update on this machine")
    approximation: bool = Field(False, description="compare sparse projections with dense ones")
    published: bool = Field(False, description="put the paper's numbers beside the runs")
    claims: list[str] = Field(
        ["default"], description="files of claims to be judged; `default`: the package's"
    )
    allow_mixed: bool = Field(False, description="admit runs with different digests; their rows are marked")
    archive: bool = Field(
        False, description="keep finished runs as rows of results/<experiment>/tidy, where they count as made"
    )
    not_finite: Literal["stop", "zero"] = Field(
        "stop",
        description="what happens when a loss is not finite: `stop` is an error; `zero` counts it as a "
        "finished run that solves no test problem (boards whose protocol says so)",
    )
    rehearsal: bool = Field(
        False,
        description="written by `troll rehearse`: rewards are coin flips, and manifests and tables say so",
    )
    tracking: Literal["none", "tensorboard", "wandb", "trackio"] = Field(
        "tensorboard", description="where else the lines of metrics.jsonl go; part of no run's identity"
    )

    @model_validator(mode="before")
    @classmethod
    def _with_base_models_apart(cls, data: Any) -> Any:
        return with_base_models_apart(data)

    def runs(self, groups: Sequence[str] = ()) -> list[Run]:
        """Every run of the matrix, each once, in the order of the file; or those of some groups."""
        if not groups:
            return list(self._runs.values())
        runs_by_group = self.groups()
        for group in groups:
            if group not in runs_by_group:
                valid = ", ".join(runs_by_group) or "none, no block has a group"
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
            for setting in [f"{model}/{task}/{trust_region}/{estimator}/{condition}"]
            for seed in dict.fromkeys([*self.seeds, *self.further_seeds.get(setting, [])])
        ]

    def groups(self) -> dict[str, list[Run]]:
        """The runs of each named group of blocks, each once; a run may belong to several groups."""
        groups: dict[str, dict[Run, None]] = {}
        for block in self.matrix:
            if block.group is not None:
                groups.setdefault(block.group, {}).update(dict.fromkeys(self._runs_of(block)))
        return {group: list(runs) for group, runs in groups.items()}

    def bases(self) -> list[tuple[str, str]]:
        """The (model, task) pairs that runs start from, each once."""
        return list(dict.fromkeys((run.model, run.task) for run in self.runs()))

    def run(self, run_id: str) -> Run:
        """The run of this name."""
        if run_id not in self._runs:
            hint = nearest(run_id, list(self._runs))
            raise UserError(f"experiment {self.experiment} has no run {run_id!r}{hint}")
        return self._runs[run_id]

    def training_of(self, run: Run) -> Training:
        """The settings of a run: the experiment's, then those that others override, one after the other.

        They are the estimator's recipe (PPO-max has one), model, task, trust region, estimator, condition.
        Inside of a block such as ``critic`` single keys are overridden too; null removes the block.
        """
        settings: Mapping[str, Any] = self.training.model_dump()
        for override in self.overrides_of(run).values():
            settings = merged(settings, override)
        return Training.model_validate(settings)

    def overrides_of(self, run: Run) -> dict[str, Mapping[str, Any]]:
        """What overrides the settings of a run, in this order, by place in the file; see `training_of`."""
        return {
            "": recipe_of(self.estimators[run.estimator].rule),
            f"models.{run.model}.training": self.models[run.model].training,
            f"tasks.{run.task}.training": self.tasks[run.task].training,
            f"trust_regions.{run.trust_region}.training": self.trust_regions[run.trust_region].training,
            f"estimators.{run.estimator}.training": self.estimators[run.estimator].training,
            f"conditions.{run.condition}": self.conditions[run.condition],
        }


def merged(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """The base with the override's values; mappings in both are merged too."""
    result = dict(base)
    for key, value in override.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result


def resolve(experiment: Experiment, run: Run) -> RunConfig:
    """Everything that defines a run, defaults included: the contents of its run.yaml."""
    from troll.algorithms.advantages import ESTIMATORS
    from troll.algorithms.trust_regions import TRUST_REGIONS
    from troll.algorithms.trust_regions.rule_files import file_digest

    trust_region, estimator = experiment.trust_regions[run.trust_region], experiment.estimators[run.estimator]
    return RunConfig(
        experiment=experiment.experiment,
        run_id=run.run_id,
        seed=run.seed,
        model=resolve_model(experiment, run.model),
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
        training=experiment.training_of(run),
        seeds=run_seeds(run),
        rehearsal=experiment.rehearsal,
    )


def resolve_model(experiment: Experiment, name: str) -> ScratchModelOfRun | HubModelOfRun | WheelModelOfRun:
    """Everything that defines a model."""
    model = experiment.models[name]
    supervised = model.supervised_steps
    if model.hub is not None:
        hub = HubModel(**model.hub.model_dump(exclude={"billions"}))
        return HubModelOfRun(name=name, hub=hub, supervised=supervised)
    if model.wheel is not None:
        wheel = WheelModel(**model.wheel.model_dump(exclude={"billions"}))
        return WheelModelOfRun(name=name, wheel=wheel, supervised=supervised)
    return ScratchModelOfRun(name=name, **model.model_dump(exclude={"training", "base_seeds", "wheel"}))


def _resolve_task(experiment: Experiment, name: str) -> TaskOfRun:
    task = experiment.tasks[name]
    return TaskOfRun(
        name=name,
        **task.model_dump(exclude=_NO_TASK),
        settings=check_settings(get_task(name), task.settings),
    )


def resolve_base(experiment: Experiment, model: str, task: str) -> BaseConfig:
    """Everything that defines a base model."""
    return BaseConfig(
        experiment=experiment.experiment,
        run_id=f"{model}/{task}/{BASE}",
        model=resolve_model(experiment, model),
        task=_resolve_task(experiment, task),
        seeds=SeedsOfBase(
            model=_seed(stream="base", model=model, task=task), data=experiment.models[model].base_seed or 0
        ),
        rehearsal=experiment.rehearsal,
    )


def _seed(**coordinates: str | int) -> int:
    """A derived seed of 32 bits, as numpy accepts them too."""
    return derive_seed(**coordinates) % 2**32


def run_seeds(run: Run) -> SeedsOfRun:
    """The derived seeds of a run.

    They depend on model, task and seed only: every trust region, estimator and condition of one seed sees the
    same prompts in the same order, and samples with the same streams; and the same run in two experiments is
    the same run.
    """
    coordinates: dict[str, str | int] = {"model": run.model, "task": run.task, "seed": run.seed}
    return SeedsOfRun(
        training=_seed(stream="training", **coordinates),
        evaluation=_seed(stream="evaluation", **coordinates),
    )
