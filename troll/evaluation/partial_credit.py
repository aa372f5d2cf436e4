"""Partial credit in grades: the mean share of tests that samples pass, beside the verdicts on all tests."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from troll.tasks.verifiers.code import code_fractions
from troll.tasks.verifiers.fractions import SCORED


def with_rewards(
    grades: Mapping[str, Any],
    problems: Mapping[str, Mapping[str, Any]],
    completions: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """Adds ``reward`` to the grades of code, if the problems' rewards are shares of tests.

    Each problem gets the rewards of its samples, in input order, and ``metrics`` their mean: over problems of
    the mean over samples.
    """
    if not any(SCORED in problem for problem in problems.values()):
        return dict(grades)
    pairs = list(dict.fromkeys((task_id, text) for task_id, texts in completions.items() for text in texts))
    found = code_fractions([problems[task_id] for task_id, _ in pairs], [text for _, text in pairs])
    reward_of = dict(zip(pairs, found, strict=True))
    rewards = {
        task_id: [reward_of[task_id, text] for text in texts] for task_id, texts in completions.items()
    }
    mean = statistics.fmean(statistics.fmean(values) for values in rewards.values())
    return {
        **grades,
        "metrics": {**grades["metrics"], "reward": mean},
        "problems": {name: {**row, "reward": rewards[name]} for name, row in grades["problems"].items()},
    }
