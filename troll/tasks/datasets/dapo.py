"""DAPO-Math made fit for training: no duplicates, no contradictions, a held-out set that never changes."""

import re
from collections import defaultdict
from collections.abc import Sequence

from troll.common.seeding import derive_seed
from troll.tasks.types import Problem

HELD_OUT = 1024  # as many as the authors hold out


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
