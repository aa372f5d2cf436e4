"""`TrustRegionConfig`: TRL's configuration of GRPO with the options of a trust region beside it."""

from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from pydantic import BaseModel, ValidationError
from torch.utils.data import IterableDataset
from trl import GRPOConfig

from troll.algorithms.advantages import Estimator, make_estimator
from troll.algorithms.aggregation import check_aggregation
from troll.algorithms.trust_regions import TRUST_REGIONS, TrustRegion, make_trust_region
from troll.common.errors import UserError, unknown
from troll.experiment.settings import Critic, DynamicSampling, Overlong, Pretraining, Regulariser
from troll.training.policy_lag import Anchor
from troll.training.trl_options import aggregation_of, check_options, rule_of, rule_settings


@dataclass(frozen=True)
class Parts:
    """Blocks of settings, which an experiment file has under the same names; none for what is off."""

    critic: Critic | None = None
    regulariser: Regulariser | None = None
    dynamic_sampling: DynamicSampling | None = None
    overlong: Overlong | None = None
    pretraining: Pretraining | None = None


PARTS: dict[str, type[BaseModel]] = {part.name: get_args(part.type)[0] for part in fields(Parts)}


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
        *PARTS,
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
        """Reads JSON, checks names, settings and blocks, and refuses what would have no effect."""
        super().__post_init__()
        for name in PARTS:
            part = getattr(self.parts(), name)
            if (
                part is not None
            ):  # plain data, which loggers and checkpoints write as they do all of TRL's options
                setattr(self, name, part.model_dump())
        if self.aggregation is not None:
            check_aggregation(self.aggregation)
        self.check()

    def check(self) -> None:
        """Builds what the options name, so that a mistake is told before a model is loaded.

        Raises:
            UserError: see the class.
        """
        check_options(self)
        _check_lag(self)
        _check_vllm(self)
        rule, estimator = self.make_trust_region(), self.make_estimator()
        self.aggregation_for(rule, estimator)
        needed = estimator is not None and estimator.info.needs_values
        if needed and self.critic is None:
            raise UserError(
                f"estimator {self.estimator!r} needs a critic; critic={{}} takes one with the defaults"
            )
        if self.critic is not None and not needed:
            raise UserError(f"estimator {self.estimator!r} has no use for a critic; leave it out")
        regulariser = self.parts().regulariser
        in_reward = regulariser is not None and regulariser.applied_to == "reward"
        for name, given in {"overlong": self.overlong is not None, "a KL in the reward": in_reward}.items():
            if given and estimator is None:
                raise UserError(f"{name} has no effect on TRL's own advantages; name an estimator")

    def make_trust_region(self) -> TrustRegion:
        """The named rule with its settings."""
        name = rule_of(self)
        info = TRUST_REGIONS.get(name)
        settings = rule_settings(self, info.settings) if info else {}
        return make_trust_region(name, **settings)

    def make_estimator(self) -> Estimator | None:
        """The named estimator with its settings; none for TRL's advantages."""
        if self.estimator is None:
            return None
        settings: Any = self.estimator_settings or {}
        return make_estimator(self.estimator, **settings)

    def aggregation_for(self, rule: TrustRegion, estimator: Estimator | None) -> str:
        """How losses of tokens become one number; see `troll.training.trl_options.aggregation_of`."""
        # clip on whole responses is TRL's loss, summed as `loss_type` says; a rule's own name is the paper's.
        insists = None if self.trust_region == "clip" else rule.aggregation
        return aggregation_of(self, insists, estimator.aggregation if estimator else None)

    def check_rollouts(self, dataset: Any) -> None:
        """Refuses what cannot work with the groups, the sampler or the data set.

        Args:
            dataset: of prompts.

        Raises:
            UserError: see the class.
        """
        estimator = self.make_estimator()
        greedy = estimator is not None and estimator.info.needs_greedy
        rows = self.per_device_train_batch_size * self.steps_per_generation
        if (greedy or self.dynamic_sampling) and rows % self.num_generations:
            raise UserError(
                f"{rows} responses of a process do not divide into groups of {self.num_generations}; remax "
                "and dynamic sampling need whole groups in each process"
            )
        if greedy and (self.use_vllm or self.use_transformers_continuous_batching):
            raise UserError(
                "estimator 'remax' needs a greedy response to every prompt, which only sampling through "
                "transformers gives here; set use_vllm and use_transformers_continuous_batching to false"
            )
        if self.dynamic_sampling and isinstance(dataset, IterableDataset):
            raise UserError("dynamic sampling draws other prompts, so that it needs a dataset with a length")

    def parts(self) -> Parts:
        """The blocks of settings, checked."""
        blocks = {name: getattr(self, name) for name in PARTS}
        return Parts(**{k: _validated(k, PARTS[k], v) for k, v in blocks.items() if v is not None})  # type: ignore[arg-type]


def _validated(name: str, kind: type[BaseModel], value: Any) -> BaseModel:
    if isinstance(value, kind):
        return value
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        from troll.common.explain import explain

        raise UserError(explain(error, kind, name)) from None


def _check_vllm(args: TrustRegionConfig) -> None:
    if rule_of(args) == "vespo" and args.use_vllm and args.vllm_importance_sampling_correction:
        raise UserError(
            "vespo puts the correction of what vLLM sampled into its own weights in TRL, which is not done "
            "here; set vllm_importance_sampling_correction to false"
        )


def _check_lag(args: TrustRegionConfig) -> None:
    if not isinstance(args.policy_lag, int) or isinstance(args.policy_lag, bool) or args.policy_lag < 0:
        raise UserError(f"policy_lag is {args.policy_lag!r}, must be a number of rollout batches, 0 or more")
    anchors = get_args(Anchor)
    if args.trust_region_anchor not in anchors:
        raise UserError(f"trust_region_anchor: {unknown('name', args.trust_region_anchor, anchors)}")
    if args.use_vllm and (args.policy_lag or args.trust_region_anchor == "sampler"):
        raise UserError(
            "policy_lag and trust_region_anchor='sampler' need rollouts by transformers: vLLM gives no "
            "distributions of the policy that sampled; leave them out or set use_vllm to false"
        )
