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


class Critic(Settings):
    """The value model of GAE and PPO-max: initialised from the policy, trained beside it."""

    learning_rate: Positive = Field(1e-5, description="AdamW's learning rate, constant (paper)")
    weight_decay: NotNegative = Field(0.0, description="AdamW's weight decay")
    warmup_steps: Whole = Field(0, description="first optimiser steps, in which the critic alone learns")
    value_clip: Positive | None = Field(
        0.5, description="farthest that values may leave the rollout's in the loss (verl); none for no limit"
    )
    gradient_clipping: Positive = Field(1.0, description="largest global gradient norm")


class Regulariser(Settings):
    """The KL to the frozen reference, which is the base model."""

    estimate: Literal["k1", "k2", "k3", "k1+", "k3+"] = Field(
        "k3", description="see troll.algorithms.regularisers; + has the gradient of k2"
    )
    place: Literal["loss", "reward"] = Field("loss", description="loss (GRPO) or reward per token (PPO)")
    importance_weighted: bool = Field(
        False, description="multiply a KL in the loss by the token's probability ratio (DeepSeek-V3.2, TRL)"
    )
    coefficient: Positive = Field(1e-3, description="weight of the KL; the first one if it adapts (verl)")
    target: Positive | None = Field(
        None, description="KL in nats per token that the coefficient adapts to (verl: 0.1); none fixes it"
    )
    horizon: Positive = Field(10000, description="responses over which the coefficient adapts (verl)")


class DynamicSampling(Settings):
    """DAPO: prompts whose responses are all right or all wrong are replaced by others."""

    max_batches: Count = Field(10, description="rollout batches sampled to fill one, at most (verl)")


class Overlong(Settings):
    """DAPO: a growing penalty on the last tokens before the limit, -factor at the limit."""

    buffer: Count = Field(4096, description="L_c: length of the zone before max_response_tokens, in tokens")
    factor: Positive = Field(1.0, description="penalty at the limit")


class Pretraining(Settings):
    """PPO-ptx: the likelihood of the task's demonstrations in the loss."""

    coefficient: Positive = Field(27.8, description="weight of mean -log pi(token) (InstructGPT)")
    demonstrations: Count = Field(8, description="demonstrations in a micro-batch")


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
    critic: Critic | None = Field(None, description="needed by estimators that use values")
    regulariser: Regulariser | None = Field(None, description="KL to the base model; none for none (paper)")
    dynamic_sampling: DynamicSampling | None = Field(None, description="replace prompts without signal")
    overlong: Overlong | None = Field(None, description="penalty on responses near the limit")
    pretraining: Pretraining | None = Field(None, description="likelihood of demonstrations in the loss")
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
        if self.overlong and self.overlong.buffer > self.max_response_tokens:
            raise ValueError(
                f"overlong.buffer is {self.overlong.buffer}, longer than max_response_tokens "
                f"({self.max_response_tokens}); shorten it"
            )
        if self.dynamic_sampling and self.responses_per_prompt == 1:
            raise ValueError(
                "dynamic_sampling can never fill a batch with responses_per_prompt 1: one response cannot be "
                "right and wrong; sample at least 2"
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


class StepCost(Settings):
    """Whole optimiser steps of a random language model: clip, TROLL, and clip with a critic, side by side."""

    shape: str = Field("20m", description="qwen3-0.6b, 20m or tiny")
    responses: Count = Field(8, description="B, responses of the mini-batch")
    prompt: Count = Field(64, description="tokens of each prompt")
    response: Count = Field(192, description="T, tokens of each response")


class Cost(Settings):
    """The cost table: forward and backward of the output layer and the loss, clip and TROLL side by side."""

    tokens: Count = Field(512, description="N, tokens of the update")
    widths: list[Count] = Field([1024], description="D, hidden widths")
    vocabulary: Count = Field(151_936, description="V; Qwen3's by default")
    repeats: Count = Field(3, description="measurements of each variant")
    step: StepCost | None = Field(None, description="whole optimiser steps too; none for not")
