"""Recipes of advantage estimators, and what estimators require of a run.

A recipe holds the training settings of a whole method. It overrides the experiment's `training` block for an
estimator of that name; the experiment file can change or switch off each part, as in
``training: {regulariser: null}``.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from troll.experiment.settings import Rule, Training

_PPO_MAX: Mapping[str, Any] = {
    # Section 5.4 of the paper: the critic is trained before the policy. There it starts from a reward model,
    # with an unstated number of steps; here it starts from the policy.
    "critic": {"learning_rate": 1.65e-6, "value_clip": 0.2, "gradient_clipping": 1.0, "warmup_steps": 8},
    "regulariser": {"estimate": "k1", "applied_to": "reward", "coefficient": 0.05},
    "gradient_clipping": 1.0,
    "pretraining": {"coefficient": 27.8},  # InstructGPT's; the paper gives no weight
}

RECIPES: Mapping[str, Mapping[str, Any]] = {
    "ppo-max": _PPO_MAX,
    # The released code: other coefficients, no warm-up of the critic and no pretraining loss.
    "ppo-max-code": {
        "critic": {**_PPO_MAX["critic"], "learning_rate": 1.5e-6, "warmup_steps": 0},
        "regulariser": {**_PPO_MAX["regulariser"], "coefficient": 0.02},
        "gradient_clipping": 1.0,
        "pretraining": None,
    },
}
"""PPO-max as in "Secrets of RLHF I" (arXiv 2307.04964, section 5, figure 7) and as in OpenLMLab/MOSS-RLHF.

Reward normalisation and clipping are settings of the estimator: see `troll.algorithms.advantages.critic`.
"""


def recipe_of(estimator: str) -> Mapping[str, Any]:
    """Returns an estimator's overrides of `troll.experiment.settings.Training`; empty for most."""
    return RECIPES.get(estimator, {})


def missing_parts(where: str, rule: Rule, training: Training) -> Iterator[str]:
    """Yields a line for everything that an estimator requires and a run's settings lack."""
    from troll.algorithms.advantages import ESTIMATORS

    info = ESTIMATORS[rule.rule]
    if info.needs_values and training.critic is None:
        yield (
            f"{where}: rule {rule.rule!r} needs a critic; add {where}.training.critic, for instance "
            "{learning_rate: 1.0e-5, warmup_steps: 8}"
        )
    if info.uses_groups and training.responses_per_prompt == 1:
        yield (
            f"{where}: rule {rule.rule!r} compares the responses to one prompt, but responses_per_prompt is "
            "1; sample at least 2, or use a rule without groups (gae, reinforce++, remax)"
        )
    if info.needs_greedy and training.environment is not None:
        yield (
            f"{where}: rule {rule.rule!r} needs a greedy response to every prompt, which "
            "training.environment does not give; leave it out or choose another rule, such as rloo"
        )
