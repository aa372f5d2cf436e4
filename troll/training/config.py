"""`TrustRegionConfig`: TRL's `GRPOConfig` plus the options of trust regions."""

from dataclasses import dataclass, field
from typing import Any, Literal

from troll.training.method import BLOCKS, Anchor, Method, resolve
from troll.training.trl_parts import GRPOConfig


@dataclass
class TrustRegionConfig(GRPOConfig):
    """Configuration of `troll.TrustRegionTrainer`: `trl.GRPOConfig` plus the fields below.

    Works with `trl.TrlParser`, YAML files and ``--help`` like any TRL configuration. Blocks of settings are
    mappings, or JSON on the command line (``--critic '{"learning_rate": 1e-5}'``; ``{}`` for the defaults).
    How GRPO's own options are handled: see `troll.training.trl_options`.

    Raises:
        troll.common.errors.UserError: unknown names or settings, values out of range, options that conflict
            or would have no effect.
    """

    _VALID_DICT_FIELDS = [  # noqa: RUF012 - TRL's own declaration
        *GRPOConfig._VALID_DICT_FIELDS,
        "trust_region_settings",
        "estimator_settings",
        *BLOCKS,
    ]

    trust_region: str | None = field(
        default=None,
        metadata={
            "help": "Registered trust region: troll, clip, gspo-clip, troll-seq, none, ... If not set, the "
            "one named by `loss_type` (cispo, sapo, vespo, luspo), else troll. With "
            "`importance_sampling_level` 'sequence', troll and clip mean troll-seq and gspo-clip."
        },
    )
    trust_region_settings: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Settings of the trust region, such as {'kl_bound': 0.05}."}
    )
    estimator: str | None = field(
        default=None,
        metadata={
            "help": "Registered advantage estimator: grpo, dr-grpo, rloo, gae, ... If not set, TRL's "
            "advantages (`scale_rewards`)."
        },
    )
    estimator_settings: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Settings of the estimator."}
    )
    aggregation: str | None = field(
        default=None,
        metadata={
            "help": "How token losses are reduced to one number: token-mean, seq-mean-token-mean, "
            "seq-mean-token-sum, seq-mean-token-sum-norm, or released: for troll and troll-seq, and where it "
            "would be token-mean, a token mean of each micro-batch, as in the paper's released code. If not "
            "set, the estimator's aggregation, else that of `loss_type` in TRL. A trust region that requires "
            "one overrides all of these, except released."
        },
    )
    keep: int = field(default=64, metadata={"help": "K, tokens kept of each old distribution (paper: 64)."})
    dropped_mass: float = field(
        default=1e-5,
        metadata={"help": "Tokens are dropped once the remaining mass is at most this (paper: 1e-5)."},
    )
    tail: Literal["pooled", "constant"] = field(
        default="pooled",
        metadata={
            "help": "Treatment of the dropped tokens. 'pooled': one atom with their exact mass. 'constant', "
            "as in the paper: old and new policy each keep their own tokens and assign 1e-12 to a token "
            "that only the other one keeps; needs one more pass of the language-model head."
        },
    )
    max_prompt_tokens: int | None = field(
        default=None,
        metadata={
            "help": "Longer prompts lose their first tokens, chat template included. If not set, none."
        },
    )
    policy_lag: int = field(
        default=0,
        metadata={
            "help": "Number of rollout batches by which the sampling policy lags behind; 0 samples with the "
            "current policy. The weights in between are kept in main memory and in checkpoints."
        },
    )
    trust_region_anchor: Anchor = field(
        default="old",
        metadata={
            "help": "The old policy of the trust region: 'old' is the policy before the updates on a "
            "rollout batch, 'sampler' the policy that sampled it. They differ if `policy_lag` is not 0."
        },
    )
    critic: dict[str, Any] | str | None = field(
        default=None,
        metadata={"help": "The value model; required by estimators that use values, rejected otherwise."},
    )
    regulariser: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "KL to the frozen reference model; replaces `beta`."}
    )
    dynamic_sampling: dict[str, Any] | str | None = field(
        default=None,
        metadata={"help": "DAPO: replaces prompts whose responses are all correct or all wrong."},
    )
    overlong: dict[str, Any] | str | None = field(
        default=None,
        metadata={"help": "DAPO: a growing penalty on the last tokens before the length limit."},
    )
    micro_batch_tokens: int | None = field(
        default=None,
        metadata={
            "help": "Splits the `per_device_train_batch_size` responses into parts of at most this many "
            "tokens, padding included, each with separate passes; the update is the same."
        },
    )
    share_prompts: bool = field(
        default=False,
        metadata={
            "help": "Computes a prompt once for all responses of its group, in sampling by transformers, "
            "in scoring and in training: the same update up to rounding, in fewer tokens. Mini-batches then "
            "hold whole groups. For Llama, Qwen2 and Qwen3 with attention `sdpa` or `eager`."
        },
    )
    pretraining: dict[str, Any] | str | None = field(
        default=None,
        metadata={"help": "PPO-ptx: adds the loss of demonstrations to that of the policy."},
    )
    eval_loss: bool = field(
        default=True, metadata={"help": "Whether validation also computes the loss; rewards do not need it."}
    )

    def __post_init__(self) -> None:
        """Parses JSON and validates all options, before any model is loaded."""
        super().__post_init__()
        method = resolve(self)
        for name in BLOCKS:
            block = getattr(method, name)
            if block is not None:  # plain data, which loggers and checkpoints can serialise
                setattr(self, name, block.model_dump())

    def resolve(self) -> Method:
        """Resolves the current options to a complete `Method`."""
        return resolve(self)
