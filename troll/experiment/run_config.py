"""What defines a run or a base model, including defaults: the contents of run.yaml and of manifests."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from troll.algorithms.ranges import Count, NonNegativeInt
from troll.common.settings import StrictModel
from troll.experiment.measurement_settings import Evaluation
from troll.experiment.model_settings import Adapter, FromScratch, Hub, SupervisedSteps, Wheel
from troll.experiment.settings import Size, Suite, ThinkingOfRun, Training
from troll.tasks.prompts import Thinking


class ScratchModelOfRun(FromScratch):
    """A model made from scratch."""

    name: str = Field(description="name in the experiment file")
    hub: None = None
    # Left out if None, so that digests of older configurations stay the same.
    base_seed: NonNegativeInt | None = Field(
        None,
        description="base seed, if there are several base models of one kind",
        exclude_if=lambda value: value is None,
    )


# Left out if None, as above.
_Supervised = Annotated[SupervisedSteps | None, Field(exclude_if=lambda value: value is None)]
_Adapter = Annotated[Adapter | None, Field(exclude_if=lambda value: value is None)]


class Pretrained(StrictModel):
    """A model of the hub or from a wheel."""

    hub: Hub | None = Field(None, exclude_if=lambda value: value is None)
    wheel: Wheel | None = Field(None, exclude_if=lambda value: value is None)

    @model_validator(mode="after")
    def _has_one_source(self) -> "Pretrained":
        if (self.hub is None) == (self.wheel is None):
            raise ValueError("a model comes from the hub or from a wheel; give one of hub and wheel")
        return self


class PretrainedOfRun(Pretrained):
    """A pretrained model, which defines its own sizes."""

    name: str = Field(description="name in the experiment file")
    supervised: _Supervised = None
    adapter: _Adapter = None


def _kind_of_model(value: Any) -> str:
    named = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return "from scratch" if named.get("hub") is None and named.get("wheel") is None else "pretrained"


ModelOfRun = Annotated[
    Annotated[ScratchModelOfRun, Tag("from scratch")] | Annotated[PretrainedOfRun, Tag("pretrained")],
    Discriminator(_kind_of_model),
]
"""A model with everything that defines it."""


class ProblemsConfig(StrictModel):
    """Problems to write, of the splits that are named."""

    name: str = Field(description="name of the task")
    train: Size | None = None
    validation: NonNegativeInt | Literal["all"] | None = None
    test: Size | None = None
    settings: dict[str, Any] = Field({}, description="settings of the task's generator")


class TaskOfRun(StrictModel):
    """A task with all its settings."""

    name: str
    train: Size
    validation: NonNegativeInt | Literal["all"]
    test: Size
    settings: dict[str, Any]


class RuleOfRun(StrictModel):
    """A trust region or an estimator with all its settings."""

    name: str = Field(description="name in the experiment file")
    rule: str = Field(description="registered name, or file.py:function")
    file_sha256: str | None = Field(None, description="SHA-256 of the rule's file; none if registered")
    settings: dict[str, Any]


class ConditionOfRun(StrictModel):
    """A condition; its overrides are part of ``training``."""

    name: str


DerivedSeed = Annotated[int, Field(ge=0, lt=2**32)]
"""A seed of 32 bits, the most that numpy accepts."""


class SeedsOfRun(StrictModel):
    """Derived seeds of the order of prompts and the rollouts, and of the samples for evaluation."""

    training: DerivedSeed
    evaluation: DerivedSeed


class SeedsOfBase(StrictModel):
    """Derived seeds of a base model's weights and training order, and of its demonstrations."""

    model: DerivedSeed
    data: DerivedSeed


Rehearsal = Annotated[
    bool, Field(description="part of a `troll rehearse`", exclude_if=lambda value: not value)
]
"""Left out if false, so that the files of real runs stay the same."""


class RunConfig(StrictModel):
    """A run."""

    experiment: str
    run_id: str
    seed: NonNegativeInt
    model: ModelOfRun
    task: TaskOfRun
    trust_region: RuleOfRun
    estimator: RuleOfRun
    condition: ConditionOfRun
    training: Training
    # Left out if empty, as above.
    validate_on: dict[str, Size] = Field(
        {}, description="data sets to validate on, by name", exclude_if=lambda value: not value
    )
    files_sha256: dict[str, str] = Field(
        {},
        description="SHA-256 of the files of `training.reward`, `training.tools` and `training.environment`",
        exclude_if=lambda value: not value,
    )
    thinking: ThinkingOfRun = "off"
    seeds: SeedsOfRun
    rehearsal: Rehearsal = False


class BaseConfig(StrictModel):
    """A base model."""

    experiment: str
    run_id: str
    model: ModelOfRun
    task: TaskOfRun
    thinking: ThinkingOfRun = "off"
    seeds: SeedsOfBase
    rehearsal: Rehearsal = False


class TaskOfAdapter(StrictModel):
    """The task whose demonstrations an adapter learns."""

    name: str
    settings: dict[str, Any] = Field({}, description="settings of the task's generator")


class AdapterRecipe(Pretrained):
    """How a low-rank adapter is trained: the input of `troll job adapter`."""

    task: TaskOfAdapter
    rank: Count = Field(4, description="R, rank of the adapter; its scale is 2")
    supervised: SupervisedSteps
    seed: NonNegativeInt = 0


class TokenizerConfig(StrictModel):
    """The tokenizer that an experiment's models from scratch share."""

    tasks: dict[str, dict[str, Any]] = Field(description="settings of the tasks by name")
    vocabulary: Count
    demonstrations: Count = Field(description="demonstrations of each task that it is trained on")


class SamplingConfig(Evaluation):
    """How a checkpoint is sampled."""

    max_tokens: Count = Field(64, description="longest response in tokens")
    seed: DerivedSeed = Field(0, description="seed of the random streams")
    chat: Literal["auto", "on", "off"] = Field("auto", description="use the chat template; auto: if any")
    thinking: Thinking = Field("off", description="whether models with a thinking mode think")
    cut_prompts: bool = Field(False, description="cut the start of prompts that are too long")


class SuitesConfig(StrictModel):
    """How further data sets are sampled."""

    suites: dict[str, Suite] = Field(description="samples and temperature by data set")
    max_tokens: Count = Field(4096, description="longest response in tokens")
    batch_size: Count = Field(256, description="responses sampled at a time")
    seed: DerivedSeed = Field(0, description="seed of the random streams")
    engine: Literal["transformers", "vllm"] = Field("transformers", description="engine that samples")
    engine_options: dict[str, Any] = Field({}, description="arguments of `vllm.LLM`")
    thinking: ThinkingOfRun = "off"
