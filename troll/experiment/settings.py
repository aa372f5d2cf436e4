"""The settings of an experiment file, with defaults, units and sources."""

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from troll.algorithms.ranges import Count, NotNegative, Positive, Whole
from troll.common.settings import StrictModel

Size = Count | Literal["all"]
"""How many problems of a split."""


class Critic(StrictModel):
    """The value model of GAE and PPO-max: initialised from the policy, trained beside it."""

    learning_rate: Positive = Field(1e-5, description="AdamW's learning rate, constant (paper)")
    weight_decay: NotNegative = Field(0.0, description="AdamW's weight decay")
    warmup_steps: Whole = Field(0, description="first optimiser steps, in which the critic alone learns")
    value_clip: Positive | None = Field(
        0.5, description="farthest that values may leave the rollout's in the loss (verl); none for no limit"
    )
    gradient_clipping: Positive = Field(1.0, description="largest global gradient norm")


class Regulariser(StrictModel):
    """The KL to the frozen reference, which is the base model."""

    RENAMED: ClassVar = {"place": "applied_to"}

    estimate: Literal["k1", "k2", "k3", "k1+", "k3+"] = Field(
        "k3", description="see troll.algorithms.regularisers; + has the gradient of k2"
    )
    applied_to: Literal["loss", "reward"] = Field("loss", description="loss (GRPO) or reward per token (PPO)")
    importance_weighted: bool = Field(
        False, description="multiply a KL in the loss by the token's probability ratio (DeepSeek-V3.2, TRL)"
    )
    coefficient: Positive = Field(1e-3, description="weight of the KL; the first one if it adapts (verl)")
    target: Positive | None = Field(
        None, description="KL in nats per token that the coefficient adapts to (verl: 0.1); none fixes it"
    )
    horizon: Positive = Field(10000, description="responses over which the coefficient adapts (verl)")


class DynamicSampling(StrictModel):
    """DAPO: prompts whose responses are all right or all wrong are replaced by others."""

    max_batches: Count = Field(10, description="rollout batches sampled to fill one, at most (verl)")


class Overlong(StrictModel):
    """DAPO: a growing penalty on the last tokens before the limit, -factor at the limit."""

    buffer: Count = Field(4096, description="L_c: length of the zone before max_response_tokens, in tokens")
    factor: Positive = Field(1.0, description="penalty at the limit")


class Pretraining(StrictModel):
    """PPO-ptx: the likelihood of the task's demonstrations in the loss."""

    coefficient: Positive = Field(27.8, description="weight of mean -log pi(token) (InstructGPT)")
    demonstrations: Count = Field(8, description="demonstrations in a micro-batch")


class Vllm(StrictModel):
    """Rollouts by vLLM instead of transformers; TRL pushes the weights to it before each rollout batch."""

    mode: Literal["colocate", "server"] = Field(
        "colocate",
        description="inside of the training processes, or a separate server: "
        '`vllm serve MODEL --weight-transfer-config \'{"backend": "nccl"}\'`',
    )
    sleep: bool = Field(True, description="colocated: give its memory back while the policy learns")
    memory: Positive = Field(
        0.3, le=1, description="colocated: share of each GPU's memory that it takes (TRL)"
    )
    tensor_parallel: Count = Field(1, description="colocated: GPUs that share one copy of the model")
    server: str | None = Field(None, description="address of the server, such as http://host:8000")
    correction: Literal["none", "token-truncate", "token-mask", "sequence-truncate", "sequence-mask"] = Field(
        "none",
        description="weights p_trainer / p_sampler on the loss, cut or dropped beyond correction_max",
    )
    correction_max: Positive = Field(3.0, description="largest weight (TRL)")

    @model_validator(mode="after")
    def _has_server(self) -> "Vllm":
        if (self.mode == "server") != (self.server is not None):
            raise ValueError("server: mode server needs an address, and mode colocate has none")
        return self


class Training(StrictModel):
    """How a run trains. Defaults are the paper's (released configurations of arXiv 2510.03817).

    Other blocks of an experiment file (a model, a task, a trust region, an estimator, a condition) may
    override single keys, in this order.
    """

    RENAMED: ClassVar = {"passes": "num_iterations"}

    rollout_batches: Count = Field(1001, description="rollout batches of a run")
    prompts_per_batch: Count = Field(256, description="prompts in a rollout batch (P)")
    responses_per_prompt: Count = Field(8, description="responses sampled for each prompt (G)")
    mini_batches: Count = Field(8, description="optimiser steps in one pass over a rollout batch")
    num_iterations: Count = Field(1, description="passes over a rollout batch; more make its data staler")
    policy_lag: Whole = Field(
        0,
        description="rollout batches that the policy which samples is behind the one that learns; 0 for none",
    )
    trust_region_anchor: Literal["old", "sampler"] = Field(
        "old",
        description="the old policy of a trust region: that before the updates on a rollout batch, or the "
        "one that sampled it; the same without policy_lag",
    )
    micro_batches: Count = Field(1, description="equal parts into which a mini-batch is cut to save memory")
    micro_batch_tokens: Count | None = Field(
        None,
        description="cut by length instead: tokens, padding included, that a process learns from at a time "
        "(paper: 12,000, and 6,144 for some models); a longer response is a micro-batch alone",
    )
    gpus: Whole = Field(0, description="GPUs of a run, with a process for each; 0 takes one if there is one")
    # Where the next two are not set, configurations stay what they were to the last byte, and so do digests.
    mixed_precision: bool = Field(
        True,
        description="on GPUs: forward and backward in bfloat16 (paper); false computes all in float32, which "
        "is faster for models so small that casts outweigh products",
        exclude_if=lambda value: value is True,
    )
    gradient_checkpointing: bool = Field(
        True,
        description="on GPUs: activations are computed again in the backward pass, to save memory",
        exclude_if=lambda value: value is True,
    )
    learning_rate: Positive = Field(1e-6, description="AdamW's learning rate, constant")
    weight_decay: NotNegative = Field(0.0, description="AdamW's weight decay")
    gradient_clipping: Positive = Field(1.0, description="largest global gradient norm")
    temperature: Positive = Field(1.0, description="sampling temperature of rollouts")
    max_prompt_tokens: Count | None = Field(
        None, description="longest prompt in tokens; longer ones are left out of training, and counted"
    )
    max_response_tokens: Count = Field(4096, description="longest response in tokens")
    keep: Count = Field(64, description="K: tokens kept of each old distribution")
    dropped_mass: NotNegative = Field(
        1e-5, lt=1, description="delta: mass that may be left to the pooled tail"
    )
    tail: Literal["pooled", "constant"] = Field(
        "pooled", description="of tokens not kept: their exact mass, or the paper's 1e-12 for each of them"
    )
    aggregation: (
        Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"] | None
    ) = Field(
        None,
        description="how token losses become one number; none takes the trust region's or estimator's own",
    )
    critic: Critic | None = Field(None, description="needed by estimators that use values")
    regulariser: Regulariser | None = Field(
        None, description="KL to the base model; none, as in the paper, leaves it out"
    )
    dynamic_sampling: DynamicSampling | None = Field(None, description="replace prompts without signal")
    overlong: Overlong | None = Field(None, description="penalty on responses near the limit")
    pretraining: Pretraining | None = Field(None, description="likelihood of demonstrations in the loss")
    vllm: Vllm | None = Field(None, description="rollouts by vLLM; none for transformers")
    validate_every: Whole = Field(10, description="rollout batches between validations; 0 for never")
    checkpoint_every: Count = Field(10, description="rollout batches between checkpoints")
    checkpoints_kept: Count = Field(2, description="newest checkpoints that stay until the run is complete")

    @model_validator(mode="after")
    def _check_batch_sizes(self) -> "Training":
        responses = self.prompts_per_batch * self.responses_per_prompt
        if responses % (self.mini_batches * self.micro_batches * max(1, self.gpus)):
            shared = f" on {self.gpus} gpus" if self.gpus > 1 else ""
            raise ValueError(
                f"{responses} responses (prompts_per_batch x responses_per_prompt) do not divide into "
                f"{self.mini_batches} mini_batches of {self.micro_batches} micro_batches{shared}"
            )
        if self.micro_batch_tokens and self.micro_batches > 1:
            raise ValueError(
                f"micro_batches is {self.micro_batches} and micro_batch_tokens {self.micro_batch_tokens}; a "
                "mini-batch is cut by one of them, leave out the other"
            )
        if self.vllm and (self.policy_lag or self.trust_region_anchor == "sampler"):
            raise ValueError(
                "policy_lag and trust_region_anchor: sampler need rollouts by transformers; leave vllm out"
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
        return self.mini_batches * self.num_iterations

    @property
    def steps(self) -> int:
        """Optimiser steps of the whole run."""
        return self.steps_per_batch * self.rollout_batches


class Suite(StrictModel):
    """How a further data set is sampled, on whose test split models of a task are evaluated too."""

    samples: Count = Field(1, description="samples for each problem")
    temperature: NotNegative = Field(0.0, description="sampling temperature; 0 is greedy")
    test: Size = Field("all", description="number of test problems, or all")


class TaskSettings(StrictModel):
    """A task of the experiment: sizes of its splits, its own settings, overrides of training."""

    train: Size = Field(2000, description="number of problems; a public data set also has all")
    validation: Size = Field(64, description="number of problems on which training is watched")
    test: Size = Field(64, description="number of problems for the final evaluation")
    settings: dict[str, Any] = Field({}, description="of the task's generator: see Tasks")
    evaluate_on: dict[str, Suite] = Field({}, description="further data sets to evaluate on, by name")
    training: dict[str, Any] = Field({}, description="overrides of training that belong to the task")


class Rule(StrictModel):
    """A trust region or an estimator: a registered rule and its settings."""

    rule: str = Field(
        description="its registered name: see Trust regions and Estimators; of a trust region also "
        "`file.py:function`"
    )
    settings: dict[str, Any] = Field({}, description="of the rule: see there")
    training: dict[str, Any] = Field({}, description="overrides of training that belong to the rule")


class Evaluation(StrictModel):
    """How checkpoints are sampled and graded on the test split."""

    samples: Count = Field(8, description="samples for each problem")
    temperature: NotNegative = Field(1.0, description="sampling temperature; 0 is greedy")
    batch_size: Count = Field(256, description="responses sampled at a time")
    engine: Literal["transformers", "vllm"] = Field(
        "transformers", description="what samples; vllm is for models of the hub"
    )
    engine_options: dict[str, Any] = Field(
        {}, description="arguments of `vllm.LLM`, such as gpu_memory_utilization or tensor_parallel_size"
    )

    @model_validator(mode="after")
    def _options_have_an_engine(self) -> "Evaluation":
        if self.engine_options and self.engine != "vllm":
            raise ValueError(f"engine_options are for the engine vllm; {self.engine} has none")
        return self


class MoreSeeds(StrictModel):
    """Seeds where they decide: after the first, in settings in which a claim is undecided."""

    most: Count = Field(description="seeds of a setting, at most; looks are planned for as many")
    minutes: Positive = Field(
        18.0, description="since the start of `make results`, after which no further seeds are begun"
    )


class PublicData(StrictModel):
    """Work on public data sets that trains nothing: the graders' audit, and benchmarks of the base models."""

    source: Literal["mirror", "hub"] = Field(
        "mirror",
        description="mirror: leave all this out where TROLL_DATA_MIRROR is not set; hub: download instead",
    )
    audit: Literal["none", "fast", "full"] = Field("none", description="full: all problems of all sets")
    benchmarks: list[str] = Field([], description="data sets for reference solutions and base models")
    problems: Size = Field(32, description="number of test problems of each benchmark, or all")
    samples: Count = Field(1, description="samples of a base model for each of them")
    max_tokens: Count = Field(64, description="longest response of a base model, in tokens")


class StepBenchmark(StrictModel):
    """Whole optimiser steps of a random language model: clip, TROLL, and clip with a critic, side by side."""

    shape: str = Field("20m", description="qwen3-0.6b, 20m or tiny")
    responses: Count = Field(8, description="B, responses of the mini-batch")
    prompt: Count = Field(64, description="tokens of each prompt")
    response: Count = Field(192, description="T, tokens of each response")


class CostBenchmark(StrictModel):
    """The cost table: forward and backward of the output layer and the loss, clip and TROLL side by side."""

    tokens: Count = Field(512, description="N, tokens of the update")
    widths: list[Count] = Field([1024], description="D, hidden widths")
    vocabulary: Count = Field(151_936, description="V; Qwen3's by default")
    repeats: Count = Field(3, description="measurements of each variant")
    step: StepBenchmark | None = Field(
        None, description="whole optimiser steps too; none measures updates alone"
    )
