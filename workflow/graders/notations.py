"""Agreement of four judges of mathematics answers on completions, and by notation.

The judges: the exact text in the last box, the exact value of the last box (rewards), math-verify on the last
box (evaluation), and math-verify on the whole completion, where it may find an answer outside any box.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from pairs import PAIRS
from paraphrases import Forms, right_forms, wrong_forms
from troll.tasks.types import Problem
from troll.tasks.verifiers.math import judge_math, last_boxed

JUDGES = ("exact", "reward", "boxed", "math_verify")

_Item = tuple[str, str, str, bool]  # notation, reference, answer, whether it is right


def audit_pairs() -> list[dict[str, Any]]:
    """Judges the hand-written pairs.

    Returns:
        A row per pair: ``notation``, ``reference``, ``answer``, ``right``, and whether ``reward`` and
        ``evaluation`` accept it.

    Raises:
        UserError: math-verify is not installed.
    """
    return _judged([(notation, *pair) for notation, pairs in PAIRS.items() for pair in pairs])


def audit_forms(problems: Mapping[str, Sequence[Problem]], count: int) -> list[dict[str, Any]]:
    """Judges reference answers in every applicable notation, and near misses.

    Args:
        problems: by data set.
        count: number of problems of each set and notation, from the first on.

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
        A row per notation: ``notation``; the number of right answers (``right``) and of those that rewards
        and evaluation accept (``right_reward``, ``right_evaluation``); likewise ``wrong``, ``wrong_reward``
        and ``wrong_evaluation``.
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


def verdicts(answers: Sequence[str], completions: Sequence[str]) -> pd.DataFrame:
    """Judges completions by all four judges.

    Args:
        answers: reference answers.
        completions: texts, one per answer.

    Returns:
        One row per completion with the boolean columns ``exact``, ``reward``, ``boxed`` and ``math_verify``.

    Raises:
        UserError: math-verify is not installed.
    """
    boxes = [last_boxed(text) for text in completions]
    exact = [
        box is not None and bool(box.strip()) and "".join(box.split()) == "".join(answer.split())
        for box, answer in zip(boxes, answers, strict=True)
    ]
    reward = [status == "passed" for status in judge_math(answers, completions, standard="reward")]
    boxed = [status == "passed" for status in judge_math(answers, completions)]
    free = [status == "passed" for status in judge_math(answers, completions, extraction="text")]
    return pd.DataFrame({"exact": exact, "reward": reward, "boxed": boxed, "math_verify": free})


def disagreement_table(samples: Mapping[str, tuple[Sequence[str], Sequence[str]]]) -> pd.DataFrame:
    """Summarises the differences between the judges by data set.

    Args:
        samples: (answers, completions) by name of the row, usually a data set.

    Returns:
        A row per data set: ``set``, ``completions``, the share that each judge accepts, and the numbers of
        completions ``boxed_not_exact`` (other notation), ``exact_not_boxed`` (must be 0),
        ``reward_not_boxed`` (math-verify does not read the notation), ``boxed_not_reward`` (another value),
        ``math_verify_not_boxed`` (right answer without a box, or found in the wrong place) and
        ``boxed_not_math_verify`` (math-verify alone fails).
    """
    rows = []
    for name, (answers, completions) in samples.items():
        frame = verdicts(answers, completions)
        rows.append(
            {
                "set": name,
                "completions": len(frame),
                **{judge: float(frame[judge].mean()) if len(frame) else float("nan") for judge in JUDGES},
                "boxed_not_exact": int((frame["boxed"] & ~frame["exact"]).sum()),
                "exact_not_boxed": int((frame["exact"] & ~frame["boxed"]).sum()),
                "reward_not_boxed": int((frame["reward"] & ~frame["boxed"]).sum()),
                "boxed_not_reward": int((frame["boxed"] & ~frame["reward"]).sum()),
                "math_verify_not_boxed": int((frame["math_verify"] & ~frame["boxed"]).sum()),
                "boxed_not_math_verify": int((frame["boxed"] & ~frame["math_verify"]).sum()),
            }
        )
    return pd.DataFrame(rows)


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
