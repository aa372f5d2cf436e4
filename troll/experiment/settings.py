"""The settings of an experiment file, with defaults, units and sources."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from troll.algorithms.ranges import Count, NonNegativeInt, NotNegative, Positive
from troll.common.settings import StrictModel
from troll.tasks.prompts import Thinking

Size = Count | Literal["all"]
"""Number of problems of a split."""

ThinkingOfRun = Annotated[
    Thinking,
    Field(
        description="whether models with a thinking mode (Qwen3) think, in rollouts, validation and "
        "evaluation alike; `template` leaves it to the chat template (paper)",
        exclude_if=lambda value: value == "off",
    ),
]
"""Left out at its default, so that digests of older configurations stay the same."""

ENGINE_RESPONSES = 4096
"""Most responses that a vLLM engine samples at once: TRL 1.16 starts it with ``max_num_batched_tokens=4096``,
with ``max_num_seqs`` set to its share of the rollout batch, and vLLM rejects more sequences than tokens.
"""


class Critic(StrictModel):
    """The value model of GAE and PPO-max, initialised from the policy and trained beside it."""

    learning_rate: Positive = Field(1e-5, description="AdamW's learning rate, constant (paper)")
    weight_decay: NotNegative = Field(0.0, description="AdamW's weight decay")
    warmup_steps: NonNegativeInt = Field(
        0, description="optimiser steps at the start that train only the critic"
    )
    value_clip: Positive | None = Field(
        0.5, description="largest change of a value from the rollout's in the loss (verl); none: no clip"
    )
    gradient_clipping: Positive = Field(1.0, description="largest global gradient norm")


class Regulariser(StrictModel):
    """A KL penalty to the frozen reference, which is the base model."""

    estimate: Literal["k1", "k2", "k3", "k1+", "k3+"] = Field(
        "k3", description="estimator of the KL; k1+ and k3+ use the gradient of k2"
    )
    applied_to: Literal["loss", "reward"] = Field(
        "loss", description="where the KL enters: the loss (GRPO), or the reward of each token (PPO)"
    )
    importance_weighted: bool = Field(
        False, description="multiply the KL in the loss by the token's probability ratio (DeepSeek-V3.2, TRL)"
    )
    coefficient: Positive = Field(1e-3, description="weight of the KL (verl); the initial one if it adapts")
    target: Positive | None = Field(
        None, description="KL in nats per token to which the coefficient adapts (verl: 0.1); none: constant"
    )
    horizon: Positive = Field(10000, description="responses over which the coefficient adapts (verl)")


class DynamicSampling(StrictModel):
    """DAPO's dynamic sampling: replaces prompts whose responses are all right or all wrong."""

    max_batches: Count = Field(10, description="largest number of rollout batches sampled to fill one (verl)")


class Overlong(StrictModel):
    """DAPO's penalty on long responses: grows linearly over the last tokens before max_response_tokens."""

    buffer: Count = Field(4096, description="L_c, tokens before max_response_tokens that are penalised")
    factor: Positive = Field(1.0, description="penalty at max_response_tokens, subtracted from the reward")


class Pretraining(StrictModel):
    """PPO-ptx: adds the likelihood of the task's demonstrations to the loss."""

    coefficient: Positive = Field(27.8, description="weight of mean -log pi(token) (InstructGPT)")
    demonstrations: Count = Field(8, description="demonstrations in a micro-batch")


Anchor = Literal["old", "sampler"]
Aggregation = Literal[
    "token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "released"
]
"""How token losses are reduced to one number (`troll.algorithms.aggregation`)."""


class PolicyUpdate(StrictModel):
    """How a rollout batch updates the policy; `Training` and `troll.TrustRegionConfig` have these keys."""

    policy_lag: NonNegativeInt = Field(
        0, description="rollout batches by which the sampling policy lags behind the trained one"
    )
    trust_region_anchor: Anchor = Field(
        "old",
        description="policy that the trust region stays close to: `old`, from before the updates on a "
        "rollout batch; `sampler`, which sampled it; both are the same without policy_lag",
    )
    micro_batch_tokens: Count | None = Field(
        None,
        description="split mini-batches by length instead: largest number of tokens of a micro-batch, "
        "padding included (paper: 12,000, or 6,144 for some models); a longer response forms its own",
    )
    # Left out at its default, so that digests of older configurations stay the same.
    share_prompts: bool = Field(
        False,
        description="compute a prompt once for all its responses, in sampling by transformers, in scoring "
        "and in training: the same update up to rounding, in fewer tokens; mini-batches then hold whole "
        "groups; for models of the families Llama, Qwen2 and Qwen3",
        exclude_if=lambda value: value is False,
    )
    max_prompt_tokens: Count | None = Field(
        None, description="longest prompt in tokens; what happens to longer ones: long_prompts"
    )
    keep: Count = Field(64, description="K, largest number of tokens kept of each old distribution")
    dropped_mass: NotNegative = Field(
        1e-5, lt=1, description="delta: tokens are kept until they hold 1 - delta of the mass, or K are kept"
    )
    tail: Literal["pooled", "constant"] = Field(
        "pooled",
        description="mass of the tokens not kept: `pooled`, their exact total; `constant`, the paper's 1e-12 "
        "for each",
    )
    aggregation: Aggregation | None = Field(
        None,
        description="how token losses are averaged; none: as the trust region or the estimator defines it; "
        "`released`, as in the paper's code: for TROLL's rules and where it would be token-mean, the token "
        "mean of each micro-batch of `micro_batch_tokens`, weighted by its share of the responses",
    )
    critic: Critic | None = Field(None, description="value model, required by estimators that use values")
    regulariser: Regulariser | None = Field(
        None, description="KL penalty to the base model; none, as in the paper, adds no penalty"
    )
    dynamic_sampling: DynamicSampling | None = Field(
        None, description="replace prompts whose responses are all right or all wrong"
    )
    overlong: Overlong | None = Field(None, description="penalty on responses near max_response_tokens")
    pretraining: Pretraining | None = Field(None, description="likelihood of demonstrations in the loss")


class Vllm(StrictModel):
    """Samples rollouts with vLLM, which gets the weights from TRL before each rollout batch."""

    mode: Literal["colocate", "server"] = Field(
        "colocate",
        description="`colocate`: inside the training processes; `server`: a separate server, started as "
        '`vllm serve MODEL --weight-transfer-config \'{"backend": "nccl"}\'`',
    )
    sleep: bool = Field(True, description="colocate: release vLLM's memory while the policy trains")
    memory: Positive = Field(0.3, le=1, description="colocate: share of each GPU's memory for vLLM (TRL)")
    tensor_parallel: Count = Field(1, description="colocate: GPUs that share one copy of the model")
    # Left out by default, so that digests of older configurations stay the same.
    max_model_len: Count | None = Field(
        None,
        description="colocate: longest prompt and response together, in tokens, for which vLLM reserves its "
        "cache; none: max_prompt_tokens + max_response_tokens, or the model's context without the former",
        exclude_if=lambda value: value is None,
    )
    server: str | None = Field(None, description="server: its address, such as http://host:8000")
    correction: Literal["none", "token-truncate", "token-mask", "sequence-truncate", "sequence-mask"] = Field(
        "none",
        description="weight the loss by p_trainer / p_sampler of the token or sequence; `truncate` caps "
        "weights at correction_max, `mask` drops larger ones",
    )
    correction_max: Positive = Field(3.0, description="largest weight of the correction (TRL)")

    @model_validator(mode="after")
    def _has_server(self) -> "Vllm":
        if (self.mode == "server") != (self.server is not None):
            raise ValueError("server: mode server needs an address, mode colocate takes none")
        return self


class Training(PolicyUpdate):
    """How a run trains. Defaults are those released with the paper (arXiv 2510.03817), except where noted.

    A model, a task, a trust region, an estimator and a condition may override single keys; of several, the
    later in this order wins.
    """

    rollout_batches: Count = Field(1001, description="number of rollout batches of a run")
    # Left out at its default, so that digests of older configurations stay the same.
    epochs: Count | None = Field(
        None,
        description="largest number of times that a run goes through the training problems, in whole rollout "
        "batches; it ends then, or after rollout_batches, whichever comes first (paper: 20); none: no limit",
        exclude_if=lambda value: value is None,
    )
    prompts_per_batch: Count = Field(256, description="prompts in a rollout batch (P)")
    responses_per_prompt: Count = Field(8, description="responses sampled for each prompt (G)")
    mini_batches: Count = Field(8, description="optimiser steps in one pass over a rollout batch")
    num_iterations: Count = Field(1, description="passes over a rollout batch; more make its data staler")
    micro_batches: Count = Field(1, description="equal parts into which a mini-batch is split to save memory")
    gpus: NonNegativeInt = Field(0, description="GPUs of a run, one process each; 0: one GPU if there is one")
    # The next two are left out at their defaults, so that digests of older configurations stay the same.
    mixed_precision: bool = Field(
        True,
        description="on GPUs: forward and backward passes in bfloat16 (paper); false: in float32, which is "
        "faster for tiny models",
        exclude_if=lambda value: value is True,
    )
    gradient_checkpointing: bool = Field(
        True,
        description="on GPUs: recompute activations in the backward pass to save memory",
        exclude_if=lambda value: value is True,
    )
    learning_rate: Positive = Field(1e-6, description="AdamW's learning rate, constant")
    weight_decay: NotNegative = Field(0.0, description="AdamW's weight decay")
    gradient_clipping: Positive = Field(1.0, description="largest global gradient norm")
    temperature: Positive = Field(1.0, description="sampling temperature of rollouts")
    # Left out at its default, so that digests of older configurations stay the same.
    long_prompts: Literal["omit", "cut"] = Field(
        "omit",
        description="problems whose prompts have more than max_prompt_tokens: they are neither trained "
        "nor validated on (omit), or their prompts lose their first tokens (cut; paper); both are counted",
        exclude_if=lambda value: value == "omit",
    )
    max_response_tokens: Count = Field(4096, description="longest response in tokens")
    # The next four are left out at their defaults, so that digests of older configurations stay the same.
    reward: str | None = Field(
        None,
        description="`file.py:function` of a reward, such as a learned reward model, in place of the task's "
        "verifier ([how to write one](adding.md#a-reward-of-your-own))",
        exclude_if=lambda value: value is None,
    )
    tools: list[str] = Field(
        [],
        description="`file.py:function` of each tool that a response may call, if the model's chat template "
        "has tools ([how to write one](adding.md#tools))",
        exclude_if=lambda value: not value,
    )
    environment: str | None = Field(
        None,
        description="`file.py:Class` of an environment, whose methods a response may call; each response has "
        "its own ([how to write one](adding.md#an-environment))",
        exclude_if=lambda value: value is None,
    )
    tool_turns: Count = Field(
        4,
        description="largest number of turns of a response that call tools or methods of the environment",
        exclude_if=lambda value: value == 4,
    )
    vllm: Vllm | None = Field(None, description="sample rollouts with vLLM; none: with transformers")
    validate_every: NonNegativeInt = Field(10, description="rollout batches between validations; 0: never")
    checkpoint_every: Count = Field(10, description="rollout batches between checkpoints")
    checkpoints_kept: Count = Field(2, description="newest checkpoints to keep until the run is complete")

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
                f"micro_batches is {self.micro_batches} and micro_batch_tokens {self.micro_batch_tokens}; "
                "leave out one of them"
            )
        in_part = responses // (self.mini_batches * self.micro_batches * max(1, self.gpus))
        if self.share_prompts and in_part % self.responses_per_prompt:
            raise ValueError(
                f"share_prompts needs whole groups of {self.responses_per_prompt} responses in each "
                f"micro-batch, which has {in_part}; use fewer mini_batches, micro_batches or gpus, or leave "
                "share_prompts out"
            )
        if self.vllm and (self.policy_lag or self.trust_region_anchor == "sampler"):
            raise ValueError(
                "policy_lag and trust_region_anchor: sampler need rollouts by transformers; leave vllm out"
            )
        self._check_engine()
        if self.overlong and self.overlong.buffer > self.max_response_tokens:
            raise ValueError(
                f"overlong.buffer is {self.overlong.buffer}, longer than max_response_tokens "
                f"({self.max_response_tokens}); shorten it"
            )
        if self.dynamic_sampling and self.responses_per_prompt == 1:
            raise ValueError(
                "responses_per_prompt is 1; dynamic_sampling needs at least 2, since it keeps only prompts "
                "with right and wrong responses"
            )
        return self

    def user_functions(self) -> dict[str, str]:
        """Returns the names of functions in files of the user, each with the key that names it."""
        single = {self.reward: "training.reward", self.environment: "training.environment"}
        named = {name: key for name, key in single.items() if name is not None}
        return named | dict.fromkeys(self.tools, "training.tools")

    def within_epochs(self, problems: int | None) -> "Training":
        """Returns these settings with the rollout batches that ``epochs`` allows with this many problems.

        An epoch has as many rollout batches as can be filled: the rest of its problems is left out, as TRL
        and verl do. Unchanged if the number of problems is unknown (None) or too small for a batch.
        """
        if self.epochs is None or problems is None or problems < self.prompts_per_batch:
            return self
        allowed = self.epochs * (problems // self.prompts_per_batch)
        return self.model_copy(update={"rollout_batches": min(self.rollout_batches, allowed)})

    def _check_engine(self) -> None:
        """Checks what vLLM inside the training processes refuses when it starts."""
        vllm, gpus = self.vllm, max(1, self.gpus)
        if vllm is None or vllm.mode != "colocate":
            return
        if gpus % vllm.tensor_parallel:
            raise ValueError(f"vllm.tensor_parallel is {vllm.tensor_parallel}; it must divide gpus ({gpus})")
        responses = self.prompts_per_batch * self.responses_per_prompt // gpus * vllm.tensor_parallel
        if responses > ENGINE_RESPONSES:
            raise ValueError(
                f"vllm: one engine would sample {responses} responses at once, and the limit is "
                f"{ENGINE_RESPONSES} (TRL's max_num_batched_tokens); use more gpus or smaller "
                "prompts_per_batch or tensor_parallel"
            )
        needed = (self.max_prompt_tokens or 0) + self.max_response_tokens
        if vllm.max_model_len is not None and vllm.max_model_len < needed:
            raise ValueError(
                f"vllm.max_model_len is {vllm.max_model_len}, less than prompt and response ({needed} tokens)"
            )

    @property
    def longest_sequence(self) -> int | None:
        """Longest prompt and response together in tokens, for vLLM; None if the model's context is."""
        if self.vllm is not None and self.vllm.max_model_len is not None:
            return self.vllm.max_model_len
        return None if self.max_prompt_tokens is None else self.max_prompt_tokens + self.max_response_tokens

    @property
    def steps_per_batch(self) -> int:
        """Optimiser steps per rollout batch."""
        return self.mini_batches * self.num_iterations

    @property
    def steps(self) -> int:
        """Optimiser steps of the whole run."""
        return self.steps_per_batch * self.rollout_batches


class Suite(StrictModel):
    """A further data set, on whose test split the models of a task are evaluated."""

    samples: Count = Field(1, description="samples for each problem")
    temperature: NotNegative = Field(0.0, description="sampling temperature; 0 is greedy")
    test: Size = Field("all", description="number of test problems, or all")


class TaskSettings(StrictModel):
    """A task of the experiment: sizes of its splits, settings, and overrides of training."""

    train: Size = Field(2000, description="number of training problems, or all of a public data set")
    validation: NonNegativeInt | Literal["all"] = Field(
        64,
        description="number of validation problems, which are solved every `validate_every` rollout "
        "batches with one response at the temperature of rollouts; a public data set without a validation "
        "split takes them out of its training problems, unless this is 0",
    )
    test: Size = Field(64, description="number of test problems, for the final evaluation")
    settings: dict[str, Any] = Field(
        {}, description="settings of the task's generator (listed in docs/configuration.md)"
    )
    evaluate_on: dict[str, Suite] = Field({}, description="further data sets to evaluate on, by name")
    validate_on: dict[str, Size] = Field(
        {},
        description="data sets whose test problems are solved every `validate_every` rollout batches, "
        "each with one greedy response (paper): the number of problems, or all, by name; metrics.jsonl has a "
        "curve for each, `validation_success/<data set>`; judged leniently if the task's `answers` are",
    )
    training: dict[str, Any] = Field({}, description="overrides of training for this task")


class Rule(StrictModel):
    """A trust region or an estimator: a registered rule and its settings."""

    rule: str = Field(
        description="registered name (listed in docs/configuration.md), or `file.py:function` for a trust "
        "region"
    )
    settings: dict[str, Any] = Field({}, description="settings of the rule")
    training: dict[str, Any] = Field({}, description="overrides of training for this rule")
