"""Advantage estimators by name: from rewards of whole responses to an advantage per token.

An estimator is a function `estimator(batch, *, setting=default, ...) -> Advantages` and a call of `register`.
The reward R_i is earned at the last token of response i; rewards per token are added to it. Formulas are
those of the papers; differences between reference implementations are named settings.

Conventions of all estimators: advantages are 0 at masked positions, and so for responses without tokens. A
group of equal rewards gets 0 from every group estimator (before any whitening). A group of one has no
baseline, so its advantage is the reward itself (as in verl).
"""

from troll.algorithms.advantages.critic import gae, ppo_max
from troll.algorithms.advantages.estimators import (
    dr_grpo,
    grpo,
    opo,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    remax,
    rloo,
)
from troll.algorithms.advantages.registry import (
    ESTIMATORS,
    Estimator,
    EstimatorInfo,
    make_estimator,
    register,
)
from troll.algorithms.advantages.types import Advantages, RewardBatch

__all__ = [
    "ESTIMATORS",
    "Advantages",
    "Estimator",
    "EstimatorInfo",
    "RewardBatch",
    "make_estimator",
    "register",
]

register("grpo", grpo, uses_groups=True)
register("dr-grpo", dr_grpo, uses_groups=True, aggregation="seq-mean-token-sum-norm")
register("rloo", rloo, uses_groups=True)
register("reinforce++", reinforce_plus_plus)
register("reinforce++-baseline", reinforce_plus_plus_baseline, uses_groups=True)
register("remax", remax, needs_greedy=True)
register("opo", opo, uses_groups=True)
register("gae", gae, needs_values=True)
register("ppo-max", ppo_max, needs_values=True)
register("ppo-max-code", ppo_max, needs_values=True, reward_norm="std", reward_clip=None)
