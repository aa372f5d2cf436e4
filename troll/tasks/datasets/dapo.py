"""DAPO-Math made fit for training: no duplicates, no contradictions, a held-out set that never changes."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from troll.common.seeding import derive_seed
from troll.tasks.types import Problem

HELD_OUT = 1024  # as many as the authors hold out
# Texts that share most of their runs of so many words are one problem told twice.
_SHINGLE_WORDS = 8
_NEAR_SHARE = 0.8


def same_text(text: str) -> str:
    """What is compared across data sets: words, numbers and operators, whatever the typesetting."""
    return " ".join(re.findall(r"[^\W_]+|[-+*/^=<>]", text.lower()))


def split_dapo(problems: Sequence[Problem]) -> tuple[dict[str, list[Problem]], dict[str, int]]:
    """De-duplicates, drops problems with contradicting answers, and holds out 1,024.

    Problems that differ in typesetting only count as one: some 150 pairs of the source do. Which problems are
    held out depends on their texts alone, so the order of the rows does not move them.
    """
    groups: dict[str, list[Problem]] = defaultdict(list)
    for problem in problems:
        groups[same_text(problem.record["problem"])].append(problem)
    kept = {
        text: members[0]
        for text, members in groups.items()
        if len({int(member.answer) for member in members}) == 1
    }
    conflicting = sum(len(members) for text, members in groups.items() if text not in kept)
    order = sorted(kept, key=lambda text: (derive_seed(stream="dapo-held-out", problem=text), text))
    held_out = set(order[:HELD_OUT])
    splits = {
        "train": [problem for text, problem in kept.items() if text not in held_out],
        "test": [problem for text, problem in kept.items() if text in held_out],
    }
    facts = {
        "rows": len(problems),
        "duplicates": len(problems) - conflicting - len(kept),
        "conflicting": conflicting,
        **{split: len(members) for split, members in splits.items()},
    }
    return splits, facts


def _shingles(text: str) -> set[str]:
    words = same_text(text).split()
    return {" ".join(words[i : i + _SHINGLE_WORDS]) for i in range(max(1, len(words) - _SHINGLE_WORDS + 1))}


def contamination(
    train: Sequence[Problem], evaluation: Mapping[str, Sequence[Problem]]
) -> list[dict[str, Any]]:
    """Evaluation problems that occur among training problems.

    Returns:
        Per evaluation set: ``set``, ``problems``, ``exact`` (same words and numbers), ``near`` (at least 80 %
        of its runs of eight words are in one training problem, exact ones left out), and the ``pairs``
        (evaluation task_id, training task_id).
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
