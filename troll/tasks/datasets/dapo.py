"""Prepares DAPO-Math for training: removes duplicates and contradictions, and holds out a fixed test set."""

import re
from collections import defaultdict
from collections.abc import Sequence

from troll.common.seeding import derive_seed
from troll.tasks.types import Problem

HELD_OUT = 1024  # as many as the authors hold out


def same_text(text: str) -> str:
    """Returns the words, numbers and operators of a text: equal for texts that differ only in typesetting."""
    return " ".join(re.findall(r"[^\W_]+|[-+*/^=<>]", text.lower()))


def split_dapo(problems: Sequence[Problem]) -> tuple[dict[str, list[Problem]], dict[str, int]]:
    """Removes duplicates and problems with contradicting answers, and holds out 1,024 problems.

    Problems that differ only in typesetting are duplicates (about 150 pairs of the source). Which problems
    are held out depends on their texts alone, not on the order of the rows.

    Returns:
        The problems of each split, and counts of all rows, duplicates, contradictions and each split.
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
