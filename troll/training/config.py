"""`TrustRegionConfig`: TRL's configuration of GRPO with the options of a trust region beside it."""

from dataclasses import dataclass, field
from typing import Any, Literal

from trl import GRPOConfig

from troll.training.method import BLOCKS, Anchor, Method, resolve


@dataclass
class TrustRegionConfig(GRPOConfig):
    """Configuration of `troll.TrustRegionTrainer`: all of `trl.GRPOConfig`, and what its fields below add.

    Works with `trl.TrlParser`, YAML files and ``--help`` as every configuration of TRL does. Blocks of
    settings are given as a mapping, or as JSON on a command line (``--critic '{"learning_rate": 1e-5}'``;
    ``{}`` for the defaults). What becomes of GRPO's own options: see `troll.training.trl_options`.

    Raises:
        troll.common.errors.UserError: unknown names or settings, values out of range, options that clash or
            would have no effect.
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
            "one that `loss_type` names (cispo, sapo, vespo, luspo), else troll. With "
            "`importance_sampling_level` 'sequence', troll and clip stand for troll-seq and gspo-clip."
        },
    )
    trust_region_settings: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Settings of the trust region, such as {'kl_bound': 0.05}."}
    )
    estimator: str | None = field(
        default=None,
        metadata={
            "help": "Registered advantage estimator: grpo, dr-grpo, rloo, gae, ... If not set, advantages "
            "are TRL's (`scale_rewards`)."
        },
    )
    estimator_settings: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Settings of the estimator."}
    )
    aggregation: str | None = field(
        default=None,
        metadata={
            "help": "How losses of tokens become one number: token-mean, seq-mean-token-mean, "
            "seq-mean-token-sum or seq-mean-token-sum-norm. If not set, the estimator's own, else what "
            "`loss_type` means in TRL. A trust region that insists on one has the last word."
        },
    )
    keep: int = field(default=64, metadata={"help": "K, tokens kept of each old distribution (paper: 64)."})
    dropped_mass: float = field(
        default=1e-5,
        metadata={"help": "Mass that may be left to the tokens that are not kept (paper: 1e-5)."},
    )
    tail: Literal["pooled", "constant"] = field(
        default="pooled",
        metadata={
            "help": "Tokens that are not kept: 'pooled' gives them their exact mass, as one atom. 'constant' "
            "is the paper's treatment: old and new policy each keep their own tokens, and where one of them "
            "has dropped a token it has 1e-12 there. It takes one more pass of the head."
        },
    )
    policy_lag: int = field(
        default=0,
        metadata={
            "help": "Rollout batches that the policy which samples is behind: 0 samples with the policy as "
            "it is. The weights in between are kept in main memory and in checkpoints."
        },
    )
    trust_region_anchor: Anchor = field(
        default="old",
        metadata={
            "help": "What the trust region calls the old policy: 'old' the policy before the updates on a "
            "rollout batch, 'sampler' the one that sampled it. They differ where `policy_lag` is not 0."
        },
    )
    critic: dict[str, Any] | str | None = field(
        default=None,
        metadata={"help": "The value model; needed by estimators that use values, refused by others."},
    )
    regulariser: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "KL to the frozen reference, in place of `beta`."}
    )
    dynamic_sampling: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "DAPO: replaces prompts whose responses are all right or all wrong."}
    )
    overlong: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "DAPO: a growing penalty on the last tokens before the limit."}
    )
    micro_batch_tokens: int | None = field(
        default=None,
        metadata={
            "help": "Cuts `per_device_train_batch_size` responses into parts of at most so many tokens, "
            "padding included, each with passes of its own; the update stays the same."
        },
    )
    pretraining: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "PPO-ptx: the likelihood of demonstrations in the loss."}
    )
    eval_loss: bool = field(
        default=True, metadata={"help": "Whether validation computes the loss, too; rewards need none of it."}
    )

    def __post_init__(self) -> None:
        """Reads JSON, and resolves, so that a mistake is told before a model is loaded."""
        super().__post_init__()
        method = resolve(self)
        for name in BLOCKS:
            block = getattr(method, name)
            if block is not None:  # plain data, which loggers and checkpoints write as TRL's options
                setattr(self, name, block.model_dump())

    def resolve(self) -> Method:
        """What these options mean, as they are now."""
        return resolve(self)
