"""What the audit feeds to the graders: right answers, right answers in other words, wrong answers."""

from collections.abc import Callable, Mapping

from troll.common.seeding import derive_seed
from troll.evaluation.audit.paraphrases import right_forms, wrong_forms
from troll.tasks.types import Problem

Case = Callable[[Problem], str]

# No data set has them for an answer.
_WRONG = "-7.0625"
_TINY = "1.1\\times 10^{-30}"


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
    """The same value, written in another way (`right_forms`)."""
    other = _one_of(right_forms(problem.answer), problem)
    return f"First a guess: \\boxed{{0}}. After more thought it is\n\\[\\boxed{{ {other} }}\\]\nas wanted."


def math_wrong(problem: Problem) -> str:
    """Another value in a box, as near as a notation allows (`wrong_forms`)."""
    return f"\\boxed{{{_one_of(wrong_forms(problem.answer) or {'other': _WRONG}, problem)}}}"


def math_tiny(problem: Problem) -> str:
    """A tiny constant, which a judge that rounds takes for any small value."""
    return f"\\boxed{{{_TINY}}}"


def _one_of(forms: Mapping[str, str], problem: Problem) -> str:
    texts = list(forms.values())
    return texts[derive_seed(stream="audit", id=problem.task_id) % len(texts)]


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
    "tiny": math_tiny,
    "unboxed": math_unboxed,
}
CODE_CASES: Mapping[str, Case] = {
    "reference": code_reference,
    "paraphrase": code_paraphrase,
    "wrong": code_wrong,
}
RIGHT = ("reference", "answer", "paraphrase")
WRONG = ("wrong", "tiny", "unboxed")

_TWO_QUESTIONS = "two questions: the reference answers the first, the last box of the solution the second"

# Exceptions of rewards whose cause is known; by data set, case and task_id.
EXPLANATIONS: Mapping[tuple[str, str, str], str] = {
    ("omni-math", "reference", "27"): _TWO_QUESTIONS,
    ("omni-math", "reference", "30"): _TWO_QUESTIONS,
    ("omni-math", "reference", "52"): _TWO_QUESTIONS,
    ("omni-math", "reference", "972"): "the reference is an inequality, and the solution boxes its bound",
    ("omni-math", "reference", "1063"): "the solution is wrong: it writes 1998 itself in base 8",
}
