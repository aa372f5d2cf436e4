"""The settings of an experiment file, with defaults, units and sources."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


class Settings(BaseModel):
    """Base of all models here: unknown keys are refused, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _no_flag(value: Any) -> Any:
    # YAML reads yes and no as flags, and Python takes a flag for a number; a user never means that.
    if isinstance(value, bool):
        raise ValueError("expected a number, found a flag")
    return value


Count = Annotated[int, BeforeValidator(_no_flag), Field(gt=0)]
Whole = Annotated[int, BeforeValidator(_no_flag), Field(ge=0)]
Positive = Annotated[float, BeforeValidator(_no_flag), Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, BeforeValidator(_no_flag), Field(ge=0, allow_inf_nan=False)]


class Training(Settings):
    """How a run trains. Defaults are the paper's (released configurations of arXiv 2510.03817).

    Other blocks of an experiment file (a model, a task, a trust region, an estimator, a condition) may
    override single keys, in this order.
    """

    rollout_batches: Count = Field(1001, description="rollout batches of a run")
    prompts_per_batch: Count = Field(256, description="prompts in a rollout batch (P)")
    responses_per_prompt: Count = Field(8, description="responses sampled for each prompt (G)")
    mini_batches: Count = Field(8, description="optimiser steps in one pass over a rollout batch")
    passes: Count = Field(1, description="passes over a rollout batch; more make its data staler")
    micro_batches: Count = Field(1, description="parts into which a mini-batch is cut to save memory")
    learning_rate: Positive = Field(1e-6, description="AdamW's learning rate, constant")
    weight_decay: NotNegative = Field(0.0, description="AdamW's weight decay")
    gradient_clipping: Positive = Field(1.0, description="largest global gradient norm")
    temperature: Positive = Field(1.0, description="sampling temperature of rollouts")
    max_response_tokens: Count = Field(4096, description="longest response in tokens")
    keep: Count = Field(64, description="K: tokens kept of each old distribution")
    dropped_mass: NotNegative = Field(1e-5, description="delta: mass that may be left to the pooled tail")
    aggregation: (
        Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"] | None
    ) = Field(None, description="how token losses become one number; none takes the estimator's own")
    validate_every: Whole = Field(10, description="rollout batches between validations; 0 for never")
    checkpoint_every: Count = Field(10, description="rollout batches between checkpoints")

    @model_validator(mode="after")
    def _divides(self) -> "Training":
        responses = self.prompts_per_batch * self.responses_per_prompt
        if responses % (self.mini_batches * self.micro_batches):
            raise ValueError(
                f"{responses} responses (prompts_per_batch x responses_per_prompt) do not divide into "
                f"{self.mini_batches} mini_batches of {self.micro_batches} micro_batches"
            )
        return self

    @property
    def steps_per_batch(self) -> int:
        """Optimiser steps for each rollout batch."""
        return self.mini_batches * self.passes

    @property
    def steps(self) -> int:
        """Optimiser steps of the whole run."""
        return self.steps_per_batch * self.rollout_batches


class TaskSettings(Settings):
    """A task of the experiment: sizes of its splits, its own settings, overrides of training."""

    train: Count = 2000
    validation: Count = 64
    test: Count = 64
    settings: dict[str, Any] = {}
    training: dict[str, Any] = {}


class Supervised(Settings):
    """Supervised training of a from-scratch base model on flawed demonstrations."""

    steps: Count = 700
    batch_size: Count = 64
    learning_rate: Positive = 1.5e-3
    weight_decay: NotNegative = 0.01
    demonstrations_for_tokenizer: Count = 20000


class ModelSettings(Settings):
    """A model: either made from scratch (Qwen3 architecture), or named on the Hugging Face hub."""

    hub: str | None = Field(None, description="id on the Hugging Face hub; none makes a model from scratch")
    vocabulary: Count = 512
    layers: Count = 2
    width: Count = 128
    heads: Count = 4
    key_value_heads: Count = 2
    head_width: Count = Field(32, description="vLLM serves multiples of 32")
    context: Count = Field(256, description="longest prompt and response together, in tokens")
    supervised: Supervised = Supervised()
    training: dict[str, Any] = {}


class Rule(Settings):
    """A trust region or an estimator: a registered rule and its settings."""

    rule: str
    settings: dict[str, Any] = {}
    training: dict[str, Any] = Field({}, description="overrides of training that belong to the rule")


class Evaluation(Settings):
    """How checkpoints are sampled and graded on the test split."""

    samples: Count = Field(8, description="samples for each problem")
    temperature: NotNegative = Field(1.0, description="sampling temperature; 0 is greedy")
    batch_size: Count = Field(256, description="responses sampled at a time")
