"""`TrustRegionConfig`: TRL's `GRPOConfig` plus the options of trust regions."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from troll.common.errors import UserError
from troll.experiment.settings import Aggregation, Anchor, PolicyUpdate
from troll.training.method import Method, resolve
from troll.training.trl_parts import GRPOConfig

BLOCKS = ("critic", "regulariser", "dynamic_sampling", "overlong", "pretraining")
"""Fields of `PolicyUpdate` that are blocks of settings."""


_DEFAULTS = PolicyUpdate()
_HELP = {name: {"help": key.description} for name, key in PolicyUpdate.model_fields.items()}


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
    aggregation: Aggregation | None = field(
        default=None,
        metadata={
            "help": "How token losses are averaged; released: for troll and troll-seq, and where "
            "it would be token-mean, a token mean of each micro-batch, as in the paper's released code. If "
            "not set, the estimator's aggregation, else that of `loss_type` in TRL. A trust region that "
            "requires one overrides all of these, except released."
        },
    )
    keep: int = field(default=_DEFAULTS.keep, metadata=_HELP["keep"])
    dropped_mass: float = field(default=_DEFAULTS.dropped_mass, metadata=_HELP["dropped_mass"])
    tail: Literal["pooled", "constant"] = field(default=_DEFAULTS.tail, metadata=_HELP["tail"])
    max_prompt_tokens: int | None = field(
        default=None,
        metadata={
            "help": "Longer prompts lose their first tokens, chat template included. If not set, none."
        },
    )
    policy_lag: int = field(default=_DEFAULTS.policy_lag, metadata=_HELP["policy_lag"])
    trust_region_anchor: Anchor = field(
        default=_DEFAULTS.trust_region_anchor, metadata=_HELP["trust_region_anchor"]
    )
    micro_batch_tokens: int | None = field(default=None, metadata=_HELP["micro_batch_tokens"])
    share_prompts: bool = field(default=False, metadata=_HELP["share_prompts"])
    critic: dict[str, Any] | str | None = field(default=None, metadata=_HELP["critic"])
    regulariser: dict[str, Any] | str | None = field(default=None, metadata=_HELP["regulariser"])
    dynamic_sampling: dict[str, Any] | str | None = field(default=None, metadata=_HELP["dynamic_sampling"])
    overlong: dict[str, Any] | str | None = field(default=None, metadata=_HELP["overlong"])
    pretraining: dict[str, Any] | str | None = field(default=None, metadata=_HELP["pretraining"])
    eval_loss: bool = field(
        default=True, metadata={"help": "Whether validation also computes the loss; rewards do not need it."}
    )

    def __post_init__(self) -> None:
        """Parses JSON and validates all options, before any model is loaded."""
        super().__post_init__()
        # Blocks become plain data, which loggers and checkpoints can serialise.
        for name, block in self.resolve().model_dump(include=set(BLOCKS)).items():
            setattr(self, name, block)

    def resolve(self) -> Method:
        """Resolves the current options to a complete `Method`."""
        return resolve(self)


def checked_arguments(args: Any, model: Any) -> TrustRegionConfig:
    """Validates the trainer's ``args``; the default configuration if they are None, as in TRL."""
    if args is None:
        name = model if isinstance(model, str) else model.config.name_or_path
        return TrustRegionConfig(f"{Path(name).name}-TrustRegion")
    if not isinstance(args, TrustRegionConfig):
        raise UserError(
            f"args is a {type(args).__name__}; TrustRegionTrainer needs a troll.TrustRegionConfig, which "
            "takes the same options plus those of the trust region"
        )
    return args
