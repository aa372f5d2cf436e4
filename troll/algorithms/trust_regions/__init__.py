"""Trust regions by name: rules that limit how far one update moves the policy."""

from troll.algorithms.trust_regions import dppo, masks, quatro, sequences, token_clips, whole_step
from troll.algorithms.trust_regions.adaptive import (
    BoundController,
    PenaltyController,
    kl_penalty,
    troll_adaptive,
)
from troll.algorithms.trust_regions.constraint_check import ConstraintBreach, ConstraintCheck, Thresholds
from troll.algorithms.trust_regions.projected import troll, troll_seq, troll_with_common_metrics
from troll.algorithms.trust_regions.ratio import (
    cispo,
    cispo_verl,
    clip,
    gspo_clip,
    importance_weighted,
    policy_gradient,
    sapo,
)
from troll.algorithms.trust_regions.registry import (
    TRUST_REGIONS,
    RuleInfo,
    TrustRegion,
    make_trust_region,
    register,
)
from troll.algorithms.trust_regions.stop import StopController, kl_stop
from troll.algorithms.trust_regions.types import (
    GroupRewards,
    StepTokens,
    TokenLosses,
    TokenPolicy,
    log_ratio,
)

__all__ = [
    "TRUST_REGIONS",
    "ConstraintBreach",
    "ConstraintCheck",
    "GroupRewards",
    "RuleInfo",
    "StepTokens",
    "Thresholds",
    "TokenLosses",
    "TokenPolicy",
    "TrustRegion",
    "log_ratio",
    "make_trust_region",
    "register",
]

register("none", importance_weighted)
register("pg", policy_gradient)
register("pg-is", importance_weighted)
register("clip", clip)
register("gspo-clip", gspo_clip, aggregation="seq-mean-token-mean")
register("gspo-clip-tight", gspo_clip, aggregation="seq-mean-token-mean", epsilon_low=3e-4, epsilon_high=4e-4)
register("cispo", cispo)
register("cispo-verl", cispo_verl)
register("sapo", sapo, aggregation="seq-mean-token-mean")
register("drpo", masks.drpo)
register("spo", masks.spo)
register("ipo", masks.ipo)
register("icepop", masks.icepop)
register("cppo", masks.cppo)
register("dcpo", token_clips.dcpo)
register("ripo", token_clips.ripo)
register("aspo", token_clips.aspo)
register("ce-gppo", token_clips.ce_gppo)
register("luspo", sequences.luspo, aggregation="seq-mean-token-sum")
register("gmpo", sequences.gmpo, aggregation="seq-mean-token-mean")
register("vespo", sequences.vespo)
register("topr", sequences.topr)
register("opsm", sequences.opsm)
register("m2po", whole_step.m2po)
register("bapo", whole_step.bapo)
register("clip-cov", whole_step.clip_cov)
register("kl-cov", whole_step.kl_cov)
register("troll", troll, needs_distribution=True, fused=troll_with_common_metrics)
register("troll-seq", troll_seq, needs_distribution=True, aggregation="seq-mean-token-mean")
register("troll-adaptive", troll_adaptive, needs_distribution=True, controller=BoundController)
register("kl-penalty", kl_penalty, controller=PenaltyController)
register("kl-stop", kl_stop, controller=StopController)
register("dppo-binary-tv", dppo.binary_tv)
register("dppo-binary-kl", dppo.binary_kl)
register("dppo-topk-tv", dppo.topk_tv, needs_distribution=True)
register("dppo-topk-kl", dppo.topk_kl, needs_distribution=True)
register("dppo-predictive", dppo.predictive, needs_distribution=True)
register(
    "quatro-recon-gradient", quatro.quatro_gradient, aggregation="seq-mean-token-mean", reconstruction=True
)
register(
    "quatro-recon-regression",
    quatro.quatro_regression,
    aggregation="seq-mean-token-mean",
    reconstruction=True,
)
