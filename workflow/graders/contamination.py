"""Evaluation problems that occur among training problems."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from troll.tasks.datasets.dapo import same_text
from troll.tasks.types import Problem

# Length in words of the runs of which near duplicates share most.
_SHINGLE_WORDS = 8
_NEAR_SHARE = 0.8


def _shingles(text: str) -> set[str]:
    words = same_text(text).split()
    return {" ".join(words[i : i + _SHINGLE_WORDS]) for i in range(max(1, len(words) - _SHINGLE_WORDS + 1))}


def contamination(
    train: Sequence[Problem], evaluation: Mapping[str, Sequence[Problem]]
) -> list[dict[str, Any]]:
    """Evaluation problems that occur among training problems.

    Returns:
        Per evaluation set: ``set``, ``problems``, ``exact`` (number with the same words and numbers),
        ``near`` (number of others of which one training problem has at least 80 % of the runs of eight
        words), and the ``pairs`` (evaluation task_id, training task_id).
    """
    by_text = {same_text(problem.record["problem"]): problem.task_id for problem in train}
    index: dict[str, list[str]] = defaultdict(list)
    for problem in train:
        for shingle in _shingles(problem.record["problem"]):
            index[shingle].append(problem.task_id)
    rows = []
    for name, problems in evaluation.items():
        exact, near = [], []
        for problem in problems:
            text = problem.record["problem"]
            if (source := by_text.get(same_text(text))) is not None:
                exact.append((problem.task_id, source))
                continue
            shingles = _shingles(text)
            shared: dict[str, int] = defaultdict(int)
            for shingle in shingles:
                for task_id in index.get(shingle, ()):
                    shared[task_id] += 1
            best = max(shared, key=lambda task_id: (shared[task_id], task_id), default=None)
            if best is not None and shared[best] >= _NEAR_SHARE * len(shingles):
                near.append((problem.task_id, best))
        rows.append(
            {
                "set": name,
                "problems": len(problems),
                "exact": len(exact),
                "near": len(near),
                "pairs": exact + near,
            }
        )
    return rows
