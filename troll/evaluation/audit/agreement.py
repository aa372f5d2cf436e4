r"""How far ways of judging the same mathematics answers agree.

Four judges side by side: the exact text in the last box, the exact value of the last box (rewards),
math-verify on the last box (evaluation), and math-verify on the whole completion, where it may find an answer
outside any box.
"""

from collections.abc import Mapping, Sequence

import pandas as pd

from troll.tasks.verifiers.math import judge_math, last_boxed

JUDGES = ("exact", "reward", "boxed", "math_verify")


def verdicts(answers: Sequence[str], completions: Sequence[str]) -> pd.DataFrame:
    """Judges completions in the four ways.

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
    """Sums up per data set how the judges differ.

    Args:
        samples: (answers, completions) by name of the data set, or of whatever the rows shall be.

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
