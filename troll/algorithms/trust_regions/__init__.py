"""Trust regions by name: how far one update may move the policy."""

from troll.algorithms.trust_regions import dppo, quatro
from troll.algorithms.trust_regions.adaptive import (
    BoundController,
    PenaltyController,
    kl_penalty,
    troll_adaptive,
)
from troll.algorithms.trust_regions.certificate import Certificate, CertificateBreach, Thresholds
from troll.algorithms.trust_regions.projected import troll, troll_seq
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
    Setting,
    TrustRegion,
    make_trust_region,
    register,
)
from troll.algorithms.trust_regions.types import GroupContext, TokenLosses, TokenPolicy

__all__ = [
    "TRUST_REGIONS",
    "Certificate",
    "CertificateBreach",
    "GroupContext",
    "RuleInfo",
    "Setting",
    "Thresholds",
    "TokenLosses",
    "TokenPolicy",
    "TrustRegion",
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
register("troll", troll, needs_distribution=True)
register("troll-seq", troll_seq, needs_distribution=True, aggregation="seq-mean-token-mean")
register("troll-adaptive", troll_adaptive, needs_distribution=True, controller=BoundController)
register("kl-penalty", kl_penalty, controller=PenaltyController)
register("dppo-binary-tv", dppo.binary_tv)
register("dppo-binary-kl", dppo.binary_kl)
register("dppo-topk-tv", dppo.topk_tv, needs_distribution=True)
register("dppo-topk-kl", dppo.topk_kl, needs_distribution=True)
register(
    "quatro-recon-gradient", quatro.quatro_gradient, aggregation="seq-mean-token-mean", reconstruction=True
)
register(
    "quatro-recon-regression",
    quatro.quatro_regression,
    aggregation="seq-mean-token-mean",
    reconstruction=True,
)
