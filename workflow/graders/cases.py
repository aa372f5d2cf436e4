"""Inputs of the audit: right answers, paraphrases and other formats of them, and wrong answers."""

from collections.abc import Callable, Mapping

from paraphrases import right_forms, wrong_forms
from troll.common.seeding import derive_seed
from troll.tasks.types import Problem

Case = Callable[[Problem], str]

# No data set has these answers.
_WRONG = "-7.0625"
_TINY = "1.1\\times 10^{-30}"


def math_reference(problem: Problem) -> str:
    """The reference solution if it ends with a box, else the reference answer in a box."""
    solution = str(problem.record.get("solution") or "")
    if "\\boxed{" in solution:
        return solution
    return f"{solution}\n\nThe answer is $\\boxed{{{problem.answer}}}$."


def math_answer(problem: Problem) -> str:
    """The reference answer in a box."""
    return f"\\boxed{{{problem.answer}}}"


def math_paraphrase(problem: Problem) -> str:
    """The same value in another notation (`right_forms`)."""
    other = _one_of(right_forms(problem.answer), problem)
    return f"First a guess: \\boxed{{0}}. After more thought it is\n\\[\\boxed{{ {other} }}\\]\nas wanted."


def math_wrong(problem: Problem) -> str:
    """A wrong value in a box, a near miss if the notation has one (`wrong_forms`)."""
    return f"\\boxed{{{_one_of(wrong_forms(problem.answer) or {'other': _WRONG}, problem)}}}"


def math_tiny(problem: Problem) -> str:
    """A tiny constant, which a judge that rounds would accept for any small value."""
    return f"\\boxed{{{_TINY}}}"


def _one_of(forms: Mapping[str, str], problem: Problem) -> str:
    texts = list(forms.values())
    return texts[derive_seed(stream="audit", id=problem.task_id) % len(texts)]


def math_unboxed(problem: Problem) -> str:
    """The right answer without the required box."""
    return f"The answer is {problem.answer}."


def code_reference(problem: Problem) -> str:
    """The canonical solution."""
    return problem.answer


def code_paraphrase(problem: Problem) -> str:
    """A chat answer with the whole program in a fenced block, followed by an example."""
    program = f"{problem.prompt}{problem.answer}"
    return f"Sure! Here it is:\n\n```python\n{program}\n```\n\nTry it:\n\n```python\nprint('done')\n```\n"


def code_wrong(problem: Problem) -> str:
    """A function that always returns the same text."""
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

# Known causes of the rewards' exceptions, by data set, case and task_id.
EXPLANATIONS: Mapping[tuple[str, str, str], str] = {
    ("omni-math", "reference", "27"): _TWO_QUESTIONS,
    ("omni-math", "reference", "30"): _TWO_QUESTIONS,
    ("omni-math", "reference", "52"): _TWO_QUESTIONS,
    ("omni-math", "reference", "972"): "the reference is an inequality, and the solution boxes its bound",
    ("omni-math", "reference", "1063"): "the solution is wrong: it writes 1998 itself in base 8",
}

SHAPE_PROMPT = '''from typing import List


def f(x: int) -> int:
    """Three times x, plus one.

    >>> f(1)
    4
    """
'''
_BODY = "    y = 3 * x\n    return y + 1\n"
_WHOLE = f"def f(x):\n{_BODY}"
_HELPED = "def f(x):\n    return g(x) + 1\n"
_HELPER = "def g(x):\n    return 3 * x\n"
_WRONG_WHOLE = "def f(x):\n    if x:\n        return 3\n"


def _fenced(code: str, language: str = "python") -> str:
    return f"```{language}\n{code}```\n"


# The right function in the formats that models write after the prompt.
SHAPES: Mapping[str, str] = {
    # --- continuations, and what follows them
    "body": _BODY,
    "body without an end of line": _BODY.rstrip(),
    "body after empty lines": f"\n\n{_BODY}",
    "body after a comment": f"    # multiply\n{_BODY}",
    "body after another docstring": f'    """Three times."""\n{_BODY}',
    "body with a function inside": "    def g(y):\n        return 3 * y\n    return g(x) + 1\n",
    "body with Windows line ends": _BODY.replace("\n", "\r\n"),
    "body, function": f"{_BODY}\n\n{_WHOLE.replace('f(', 'g(')}",
    "body, function cut off in a statement": f"{_BODY}\n\ndef g(x):\n    y = (",
    "body, function cut off in its head": f"{_BODY}\n\ndef g(x",
    "body, function cut off after its head": f"{_BODY}\n\ndef g(x):\n",
    "body, function cut off in its docstring": f'{_BODY}\n\ndef g(x):\n    """Twice x.\n\n    >>> g(',
    "body, class cut off": f"{_BODY}\n\nclass Test:\n    def test(self):\n        assert f(",
    "body, call cut off": f"{_BODY}\nprint(f(",
    "body, text cut off": f"{_BODY}\nprint('The answer",
    "body, try cut off": f"{_BODY}\ntry:\n    print(f(1))\n",
    "body, statement cut off in it": f"{_BODY}    y = [",
    "body, nested statement cut off in it": f"{_BODY}    for i in range(3):\n        if i:\n",
    "body, prompt again, cut off": _BODY + SHAPE_PROMPT[: SHAPE_PROMPT.index(">>>")],
    "body, prompt again": _BODY + SHAPE_PROMPT,
    "body, another attempt": f"{_BODY}\n\n{_WRONG_WHOLE}    return None\n",
    "body, another attempt cut off": f"{_BODY}\n\n{_WRONG_WHOLE}    el",
    "body, prose": f"{_BODY}\nThis function multiplies x by three.\n",
    "body, prose with apostrophes": f"{_BODY}\nIt's right, isn't it? Yes: it's 3 * x.\n",
    "body, indented prose": f"{_BODY}    This function multiplies x by three.\n",
    "body, Markdown": f"{_BODY}\n## Explanation\n\n- *Multiply* by `3`.\n1. Add 1.\n",
    "body, prose, function": f"{_BODY}\nAnother way:\n\ndef g(x):\n    return x + 2 * x + 1\n",
    "body, text in quotes that never end": f'{_BODY}\n"""\nThis function multiplies.\n',
    "body, session": f"{_BODY}\n>>> f(1)\n4\n",
    "body, shell": f"{_BODY}\n$ python f.py\n4\n",
    "body, main guard": f"{_BODY}\nif __name__ == '__main__':\n    print(f(1))\n",
    "body, main guard cut off": f"{_BODY}\nif __name__ == '__main__':\n    print(f(",
    "body, head of a main guard": f"{_BODY}\nif __name__ == '__main__':\n",
    "body, print": f"{_BODY}\nprint(f(1))\n",
    "body, print of what is not there": f"{_BODY}\nprint(f(numbers))\n",
    "body, assertions": f"{_BODY}\nassert f(1) == 4\n",
    "body, wrong assertion": f"{_BODY}\nassert f(1) == 5\n",
    "body, check of the data set": f"{_BODY}\ncheck(f)\n",
    "body, doctest": f"{_BODY}\nimport doctest\ndoctest.testmod()\n",
    "body, unittest": f"{_BODY}\nimport unittest\nclass Test(unittest.TestCase): pass\nunittest.main()\n",
    "body, exit": f"{_BODY}\nimport sys\nsys.exit(f(1))\n",
    "body, loop over inputs": f"{_BODY}\nwhile True:\n    print(f(int(input())))\n",
    "body, main": f"{_BODY}\ndef main():\n    print(f(int(input())))\n\nmain()\n",
    "body, missing package": f"{_BODY}\nimport pytest\n",
    "body, call, helper": f"    return g(x) + 1\n\nprint(f(1))\n\n{_HELPER}",
    "body, end of text": f"{_BODY.rstrip()}<|endoftext|>",
    "body, end of text, more": f"{_BODY.rstrip()}</s>\n<|im_start|>user\nThanks!",
    "body, end of a fence": f"{_BODY}```\n",
    "body, end of a fence, prose": f"{_BODY}```\n\nThis function multiplies.\n",
    "body, end of a fence, output": f"{_BODY}```\n\nOutput:\n\n```\n4\n```\n",
    "body, end of a fence, example": f"{_BODY}```\n\nFor example:\n\n```python\nprint(f(1))\n```\n",
    "body, example in a fence": f"{_BODY}\nFor example:\n\n{_fenced('print(f(1))')}",
    # --- bodies with another indentation
    "body in tabs": _BODY.replace("    ", "\t"),
    "body in two spaces": _BODY.replace("    ", "  "),
    "body in eight spaces": _BODY.replace("    ", "        "),
    "body without indentation": _BODY.replace("    ", ""),
    "body whose first line has no indentation": _BODY.lstrip(),
    "body in a fence": _fenced(_BODY),
    "body without indentation in a fence": _fenced(_BODY.replace("    ", "")),
    # --- whole functions
    "function": f"\n{_WHOLE}",
    "function, prose": f"\n{_WHOLE}\nThis function multiplies.\n",
    "prose, function": f"Here is the function:\n\n{_WHOLE}",
    "prose, function, prose": f"Sure! Here's the function:\n\n{_WHOLE}\nIt's simple.\n",
    "prose, helper, prose, function": f"First:\n\n{_HELPER}\nThen:\n\n{_HELPED}",
    "prompt again, body": f"{SHAPE_PROMPT}{_BODY}",
    "prompt again, body, prose": f"{SHAPE_PROMPT}{_BODY}\nThis function multiplies.\n",
    "pass, function": f"    pass\n\n{_WHOLE}",
    "function in tags": f"[PYTHON]\n{_WHOLE}[/PYTHON]\n",
    "word, function": f"python\n{_WHOLE}",
    "thoughts, body": f"<think>\nThree times?\n</think>\n{_BODY}",
    # --- fences
    "fence": _fenced(_WHOLE),
    "fence without a language": _fenced(_WHOLE, ""),
    "fence of tildes": f"~~~python\n{_WHOLE}~~~\n",
    "prose, fence, prose": f"Sure!\n\n{_fenced(_WHOLE)}\nIt multiplies.\n",
    "fence cut off": f"```python\n{_WHOLE}",
    "fence cut off in a statement": f"```python\n{_WHOLE}\nprint(f(",
    "fence, example": f"{_fenced(_WHOLE)}\nTry it:\n\n{_fenced('print(f(1))')}",
    "fence, session": f"{_fenced(_WHOLE)}\n{_fenced('>>> f(1)', 'pycon')}",
    "fence with a wrong assertion": _fenced(f"{_WHOLE}\nassert f(1) == 5\n"),
    "fence with prose": _fenced(f"{_WHOLE}\nOutput: 4\n"),
    "fence with inputs": _fenced(f"{_WHOLE}\nprint(f(int(input())))\n"),
    "stub in a fence, fence": f"{_fenced('def f(x): ...')}\nSo:\n\n{_fenced(_WHOLE)}",
    "first try in a fence, fence": f"{_fenced(_WRONG_WHOLE)}\nBetter:\n\n{_fenced(_WHOLE)}",
    "thoughts, fence": f"<think>\n{_fenced('def f(x): ?')}</think>\n{_fenced(_WHOLE)}",
    "fence with a lambda": _fenced("f = lambda x: 3 * x + 1\n"),
}
