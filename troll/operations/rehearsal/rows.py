"""Rows in place of public data sets that cannot be had: sums and one-line functions in the sets' own form.

They are in the form in which the source has them, so that a rehearsal reads, converts, selects and grades
them as it would the real ones.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from troll.common.files import write_jsonl
from troll.tasks.datasets import convert
from troll.tasks.datasets.catalogue import DATA_SETS, DataSet

# Enough for 256 that are kept for validation where the source has no such split, a third that is for testing,
# and what is trained on.
_ROWS = 900

Row = dict[str, Any]


def _sum(number: int) -> tuple[str, str]:
    left, right = 3 + number, 5 + 7 * number
    return f"What is {left} plus {right}?", str(left + right)


def _gsm8k(number: int) -> Row:
    question, answer = _sum(number)
    return {"question": question, "answer": f"We add.\n#### {answer}"}


def _boxed(number: int) -> Row:
    question, answer = _sum(number)
    return {"problem": question, "solution": f"It is $\\boxed{{{answer}}}$.", "level": "Level 1"}


def _answered(number: int) -> Row:
    question, answer = _sum(number)
    return {"id": number, "problem": question, "answer": answer, "solution": f"$\\boxed{{{answer}}}$"}


def _olympiadbench(number: int) -> Row:
    question, answer = _sum(number)
    return {"id": number, "question": question, "final_answer": [answer], "solution": [f"It is {answer}."]}


def _dapo(number: int) -> Row:
    question, answer = _sum(number)
    return {"index": f"sum-{number}", "prompt": question, "reward_model": {"ground_truth": answer}}


def _eurus(number: int, ability: str, question: str, truth: Any) -> Row:
    return {
        "prompt": [{"role": "system", "content": "Think."}, {"role": "user", "content": question}],
        "ability": ability,
        "reward_model": {"ground_truth": truth},
        "extra_info": {"index": number},
    }


def _eurus_math(number: int) -> Row:
    return _eurus(number, "math", *_sum(number))


def _eurus_code(number: int) -> Row:
    tests = {"inputs": ["1\n", "2\n"], "outputs": [f"{1 + number}\n", f"{2 + number}\n"]}
    question = f"Read a whole number from standard input and print it plus {number}."
    return _eurus(number, "code", question, tests)


def _mbpp(number: int) -> Row:
    name = f"add_{number}"
    return {
        "task_id": number,
        "text": f"Write a function that adds {number} to a number.",
        "code": f"def {name}(x):\n    return x + {number}\n",
        "test_list": [f"assert {name}(1) == {1 + number}", f"assert {name}(2) == {2 + number}"],
        "test_setup_code": "",
    }


def _evalplus(number: int, owner: str) -> Row:
    name, body = f"add_{number}", f"    return x + {number}\n"
    whole = owner == "Mbpp"  # its solutions are whole functions, HumanEval's go on from the prompt
    head = f"def {name}(x: int) -> int:\n"
    docstring = f'    """Add {number} to a number."""\n'
    return {
        "task_id": f"{owner}/{number}",
        "prompt": f'"""\nAdd {number} to a number.\nassert {name}(1) == {1 + number}\n"""\n'
        if whole
        else head + docstring,
        "entry_point": name,
        "canonical_solution": head + body if whole else body,
        "contract": "",
        "base_input": [[1], [2]],
        "plus_input": [[3]],
        "atol": 0,
        "assertion": f"assert {name}(1) == {1 + number}",
    }


_FORMS: Mapping[convert.Convert, Callable[[int], Row]] = {
    convert.gsm8k: _gsm8k,
    convert.boxed: _boxed,
    convert.answered: _answered,
    convert.olympiadbench: _olympiadbench,
    convert.dapo: _dapo,
    convert.eurus_math: _eurus_math,
    convert.eurus_code: _eurus_code,
    convert.mbpp: _mbpp,
}


def _rows(item: DataSet) -> Iterator[Row]:
    if item.convert is convert.evalplus:
        # Numbers that no real task has: evalplus treats some by number.
        first, owner = (9000, "HumanEval" if item.name.startswith("humaneval") else "Mbpp")
        return (_evalplus(first + number, owner) for number in range(20))
    if item.convert is convert.mbpp:
        return (_mbpp(number) for number in range(1, 975))  # split by number
    return (_FORMS[item.convert](number) for number in range(_ROWS))


def write_rows(name: str, directory: Path) -> None:
    """Writes rows for every split of a data set: ``<directory>/<name>/<split>.jsonl``.

    Splits that the source tells apart by number or column get all rows, of which the loader takes its own;
    others get rows of their own.
    """
    item = DATA_SETS[name]
    rows = list(_rows(item))
    splits = list(item.parts)
    apart = item.convert not in (convert.mbpp, convert.evalplus)
    for place, split in enumerate(splits):
        chosen = rows[place :: len(splits)] if apart and len(splits) > 1 and split == "test" else rows
        if apart and len(splits) > 1 and split == "train":
            chosen = [row for number, row in enumerate(rows) if number % len(splits) != splits.index("test")]
        write_jsonl(directory / name / f"{split}.jsonl", chosen)
    if name == "humaneval":  # its tests are those of HumanEval+
        write_rows("humaneval+", directory)
