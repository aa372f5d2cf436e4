"""How rewards and evaluation judge each notation: pairs by hand, and reference answers of the data sets."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from troll.evaluation.audit.pairs import PAIRS
from troll.evaluation.audit.paraphrases import Forms, right_forms, wrong_forms
from troll.tasks.types import Problem
from troll.tasks.verifiers.math import judge_math

_Item = tuple[str, str, str, bool]  # notation, reference, answer, whether it is right


def audit_pairs() -> list[dict[str, Any]]:
    """Judges the pairs that were written by hand.

    Returns:
        A row per pair: ``notation``, ``reference``, ``answer``, ``right``, and whether ``reward`` and
        ``evaluation`` accept it.

    Raises:
        UserError: math-verify is not installed.
    """
    return _judged([(notation, *pair) for notation, pairs in PAIRS.items() for pair in pairs])


def audit_forms(problems: Mapping[str, Sequence[Problem]], count: int) -> list[dict[str, Any]]:
    """Judges reference answers in every notation that suits them, and near misses.

    Args:
        problems: by data set.
        count: how many problems of each set and notation to take, from its first.

    Returns:
        Rows as of `audit_pairs`.

    Raises:
        UserError: math-verify is not installed.
    """
    items: list[_Item] = []
    makers: tuple[tuple[bool, Callable[[str], Forms]], ...] = ((True, right_forms), (False, wrong_forms))
    for part in problems.values():
        for right, make in makers:
            taken: Counter[str] = Counter()
            for problem in part:
                forms = make(problem.answer).items()
                chosen = [(name, form) for name, form in forms if taken[name] < count]
                taken.update(name for name, _ in chosen)
                items += [(name, problem.answer, form, right) for name, form in chosen]
    return _judged(items)


def by_notation(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Counts rows of `audit_pairs` or `audit_forms`.

    Returns:
        A row per notation: ``notation``; of right answers the number (``right``) and how many
        ``right_reward`` and ``right_evaluation`` accept; likewise ``wrong``, ``wrong_reward`` and
        ``wrong_evaluation``.
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        kind = "right" if row["right"] else "wrong"
        accepted = [f"{kind}_{judge}" for judge in ("reward", "evaluation") if row[judge]]
        counts[row["notation"]].update([kind, *accepted])
    names = [f"{kind}{judge}" for kind in ("right", "wrong") for judge in ("", "_reward", "_evaluation")]
    return [
        {"notation": notation, **{name: found[name] for name in names}} for notation, found in counts.items()
    ]


def _judged(items: Sequence[_Item]) -> list[dict[str, Any]]:
    answers, texts = [item[1] for item in items], [f"\\boxed{{{item[2]}}}" for item in items]
    reward = judge_math(answers, texts, standard="reward")
    evaluation = judge_math(answers, texts)
    return [
        {
            **dict(zip(("notation", "reference", "answer", "right"), item, strict=True)),
            "reward": mine == "passed",
            "evaluation": published == "passed",
        }
        for item, mine, published in zip(items, reward, evaluation, strict=True)
    ]
