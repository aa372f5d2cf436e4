"""What the audit feeds to the graders: right answers, right answers in other words, wrong answers."""

import re
from collections.abc import Callable, Mapping

from troll.tasks.types import Problem

Case = Callable[[Problem], str]

_INTEGER = re.compile(r"-?[0-9]+")
_WRONG = "-7.0625"  # no data set has it for an answer


def math_reference(problem: Problem) -> str:
    """The reference solution where it ends with a box, else the reference answer in one."""
    solution = str(problem.record.get("solution") or "")
    if "\\boxed{" in solution:
        return solution
    return f"{solution}\n\nThe answer is $\\boxed{{{problem.answer}}}$."


def math_answer(problem: Problem) -> str:
    """The reference answer alone, in a box."""
    return f"\\boxed{{{problem.answer}}}"


def math_paraphrase(problem: Problem) -> str:
    """The same value, written in another way."""
    answer = problem.answer
    if _INTEGER.fullmatch(answer):
        number = int(answer)
        forms = (f"{number}.0", f"\\frac{{{2 * number}}}{{2}}", f"x = {number}", f"{number - 1} + 1")
        other = forms[sum(map(ord, problem.task_id)) % len(forms)]
    else:
        other = answer.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("\\frac", "\\dfrac")
        other = other.replace("\\left", "").replace("\\right", "").replace("\\!", "")
        other = f"\\displaystyle {other}" if other == answer else other
    return f"First a guess: \\boxed{{0}}. After more thought it is\n\\[\\boxed{{ {other} }}\\]\nas wanted."


def math_wrong(problem: Problem) -> str:
    """Another value, in a box."""
    answer = problem.answer
    return f"\\boxed{{{int(answer) + 1 if _INTEGER.fullmatch(answer) else _WRONG}}}"


def math_unboxed(problem: Problem) -> str:
    """The right answer without a box, which the convention does not accept."""
    return f"The answer is {problem.answer}."


def code_reference(problem: Problem) -> str:
    """The canonical solution."""
    return problem.answer


def code_paraphrase(problem: Problem) -> str:
    """A chat answer with the whole program in a fenced block, and an example after it."""
    program = f"{problem.prompt}{problem.answer}"
    return f"Sure! Here it is:\n\n```python\n{program}\n```\n\nTry it:\n\n```python\nprint('done')\n```\n"


def code_wrong(problem: Problem) -> str:
    """A function that returns the same words whatever it is asked."""
    return f"\ndef {problem.record['entry_point']}(*_, **__):\n    return 'neither here nor there'\n"


MATH_CASES: Mapping[str, Case] = {
    "reference": math_reference,
    "answer": math_answer,
    "paraphrase": math_paraphrase,
    "wrong": math_wrong,
    "unboxed": math_unboxed,
}
CODE_CASES: Mapping[str, Case] = {
    "reference": code_reference,
    "paraphrase": code_paraphrase,
    "wrong": code_wrong,
}
RIGHT = ("reference", "answer")
WRONG = ("wrong", "unboxed")

_TWO_QUESTIONS = "two questions: the reference answers the first, the last box of the solution the second"

# Exceptions whose cause is known; by data set, case and task_id.
EXPLANATIONS: Mapping[tuple[str, str, str], str] = {
    ("aime24", "reference", "75"): "the last box holds bold text, which math-verify does not read",
    ("omni-math", "reference", "27"): _TWO_QUESTIONS,
    ("omni-math", "reference", "30"): _TWO_QUESTIONS,
    ("omni-math", "reference", "52"): _TWO_QUESTIONS,
    ("omni-math", "reference", "972"): "the reference is an inequality, and the solution boxes its bound",
    ("omni-math", "reference", "1039"): "math-verify does not read the spaces in \\left \\lfloor",
    ("omni-math", "reference", "1048"): "math-verify does not read \\dfrac n 2, without braces",
    ("omni-math", "reference", "1063"): "the solution is wrong: it writes 1998 itself in base 8",
    ("omni-math", "paraphrase", "1039"): "math-verify does not read the spaces in \\left \\lfloor",
    ("math500", "paraphrase", "test/number_theory/417.json"): "math-verify reads a list of four numbers",
    ("math", "paraphrase", "3320"): "math-verify reads a list of four numbers",
}
