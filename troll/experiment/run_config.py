"""What defines one run or one base model, defaults included: the contents of run.yaml and of manifests."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from troll.algorithms.ranges import Count, Whole
from troll.common.settings import StrictModel
from troll.experiment.model_settings import FromScratch, HubModel, SupervisedSteps, WheelModel
from troll.experiment.settings import Evaluation, Size, Suite, Training


class ScratchModelOfRun(FromScratch):
    """A model made from scratch."""

    name: str = Field(description="in the experiment file")
    hub: None = None
    # Configurations without one stay what they were to the last byte: runs are known by their digests.
    base_seed: Whole | None = Field(
        None,
        description="where there are several base models of one kind",
        exclude_if=lambda value: value is None,
    )


# As above.
_Supervised = Annotated[SupervisedSteps | None, Field(exclude_if=lambda value: value is None)]


class HubModelOfRun(StrictModel):
    """A model of the hub: its id alone, for the sizes are its own."""

    name: str = Field(description="in the experiment file")
    hub: HubModel
    supervised: _Supervised = None


class WheelModelOfRun(StrictModel):
    """A model from a package."""

    name: str = Field(description="in the experiment file")
    wheel: WheelModel
    supervised: _Supervised = None


def _kind_of_model(value: Any) -> str:
    for kind, name in (("hub", "of the hub"), ("wheel", "from a wheel")):
        if (value.get(kind) if isinstance(value, dict) else getattr(value, kind, None)) is not None:
            return name
    return "from scratch"


ModelOfRun = Annotated[
    Annotated[ScratchModelOfRun, Tag("from scratch")]
    | Annotated[HubModelOfRun, Tag("of the hub")]
    | Annotated[WheelModelOfRun, Tag("from a wheel")],
    Discriminator(_kind_of_model),
]
"""A model with everything that defines it."""


class ProblemsConfig(StrictModel):
    """Problems to be written: of the splits that are named."""

    name: str = Field(description="of the task")
    train: Size | None = None
    validation: Size | None = None
    test: Size | None = None
    settings: dict[str, Any] = Field({}, description="of the task's generator")


class TaskOfRun(StrictModel):
    """A task with all its settings."""

    name: str
    train: Size
    validation: Size
    test: Size
    settings: dict[str, Any]


class RuleOfRun(StrictModel):
    """A trust region or an estimator with all its settings."""

    name: str = Field(description="in the experiment file")
    rule: str = Field(description="its registered name, or file.py:function")
    file_sha256: str | None = Field(None, description="of the rule's file, if it has one of its own")
    settings: dict[str, Any]


class ConditionOfRun(StrictModel):
    """The condition, whose overrides are in ``training``."""

    name: str


DerivedSeed = Annotated[int, Field(ge=0, lt=2**32)]
"""As many bits as numpy accepts."""


class SeedsOfRun(StrictModel):
    """Derived seeds: of the order of prompts and rollouts, and of sampling for the evaluation."""

    training: DerivedSeed
    evaluation: DerivedSeed


class SeedsOfBase(StrictModel):
    """Derived seeds: of a base model's weights and order, and of its demonstrations."""

    model: DerivedSeed
    data: DerivedSeed


Rehearsal = Annotated[bool, Field(description="of `troll rehearse`", exclude_if=lambda value: not value)]
"""Written where it is true only: the files of real runs stay as they were."""


class RunConfig(StrictModel):
    """One run."""

    experiment: str
    run_id: str
    seed: Whole
    model: ModelOfRun
    task: TaskOfRun
    trust_region: RuleOfRun
    estimator: RuleOfRun
    condition: ConditionOfRun
    training: Training
    seeds: SeedsOfRun
    rehearsal: Rehearsal = False


class BaseConfig(StrictModel):
    """One base model."""

    experiment: str
    run_id: str
    model: ModelOfRun
    task: TaskOfRun
    seeds: SeedsOfBase
    rehearsal: Rehearsal = False


class TokenizerConfig(StrictModel):
    """The tokenizer that an experiment's models from scratch share."""

    tasks: dict[str, dict[str, Any]] = Field(description="settings by name of the task")
    vocabulary: Count
    demonstrations: Count = Field(description="texts of each task that it is made from")


class SamplingConfig(Evaluation):
    """How a checkpoint is sampled."""

    max_tokens: Count = Field(64, description="longest response")
    seed: DerivedSeed = Field(0, description="of the random streams")
    chat: Literal["auto", "on", "off"] = Field("auto", description="chat template; auto: if there is one")
    thinking: bool = Field(False, description="let a model that can (Qwen3) think first")
    cut_prompts: bool = Field(False, description="cut the start of prompts that are too long")


class SuitesConfig(StrictModel):
    """How further data sets are sampled."""

    suites: dict[str, Suite] = Field(description="samples and temperature by data set")
    max_tokens: Count = Field(4096, description="longest response")
    batch_size: Count = Field(256, description="responses sampled at a time")
    seed: DerivedSeed = Field(0, description="of the random streams")
    engine: Literal["transformers", "vllm"] = Field("transformers", description="what samples")
    engine_options: dict[str, Any] = Field({}, description="arguments of `vllm.LLM`")
