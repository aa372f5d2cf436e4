"""Rows in place of public data sets that cannot be had: sums and one-line functions in the sets' own form.

They are in the form in which the source has them, so that a rehearsal reads, converts, selects and grades
them as it would the real ones.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from troll.common.files import write_jsonl
from troll.tasks.datasets import convert
from troll.tasks.datasets.catalogue import DATA_SETS, DataSet

# Enough for 256 that are kept for validation where the source has no such split, a third that is for testing,
# and what is trained on.
_ROWS = 900

Row = dict[str, Any]


def _forms(number: int) -> Mapping[convert.Convert, Row]:
    """A row in the form that each converter reads."""
    left, right, name = 3 + number, 5 + 7 * number, f"add_{number}"
    question, answer = f"What is {left} plus {right}?", str(left + right)
    boxed = f"\\boxed{{{answer}}}"
    program = f"Read a whole number from standard input and print it plus {number}."
    tests = {"inputs": ["1\n", "2\n"], "outputs": [f"{1 + number}\n", f"{2 + number}\n"]}

    def eurus(ability: str, question: str, truth: Any) -> Row:
        return {
            "prompt": [{"role": "system", "content": "Think."}, {"role": "user", "content": question}],
            "ability": ability,
            "reward_model": {"ground_truth": truth},
            "extra_info": {"index": number},
        }

    return {
        convert.gsm8k: {"question": question, "answer": f"We add.\n#### {answer}"},
        convert.boxed: {"problem": question, "solution": f"It is ${boxed}$.", "level": "Level 1"},
        convert.answered: {"id": number, "problem": question, "answer": answer, "solution": f"${boxed}$"},
        convert.olympiadbench: {
            "id": number,
            "question": question,
            "final_answer": [answer],
            "solution": [f"It is {answer}."],
        },
        convert.dapo: {
            "index": f"sum-{number}",
            "prompt": question,
            "reward_model": {"ground_truth": answer},
        },
        convert.eurus_math: eurus("math", question, answer),
        convert.eurus_code: eurus("code", program, tests),
        convert.mbpp: {
            "task_id": number,
            "text": f"Write a function that adds {number} to a number.",
            "code": f"def {name}(x):\n    return x + {number}\n",
            "test_list": [f"assert {name}(1) == {1 + number}", f"assert {name}(2) == {2 + number}"],
            "test_setup_code": "",
        },
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


def _rows(item: DataSet) -> list[Row]:
    if item.convert is convert.evalplus:
        # Numbers that no real task has: evalplus treats some by number.
        owner = "HumanEval" if item.name.startswith("humaneval") else "Mbpp"
        return [_evalplus(number, owner) for number in range(9000, 9020)]
    numbers = range(1, 975) if item.convert is convert.mbpp else range(_ROWS)  # the former split by number
    return [_forms(number)[item.convert] for number in numbers]


def write_rows(name: str, directory: Path) -> None:
    """Writes rows for every split of a data set: ``<directory>/<name>/<split>.jsonl``.

    Splits that the source tells apart by number or column get all rows, of which the loader takes its own;
    others get rows of their own.
    """
    item = DATA_SETS[name]
    rows = _rows(item)
    parts = dict.fromkeys(item.parts, rows)
    if len(parts) > 1 and item.convert not in (convert.mbpp, convert.evalplus):
        tested = slice([*parts].index("test"), None, len(parts))
        parts |= {"test": rows[tested], "train": rows.copy()}
        del parts["train"][tested]
    for split, chosen in parts.items():
        write_jsonl(directory / name / f"{split}.jsonl", chosen)
    if name == "humaneval":  # its tests are those of HumanEval+
        write_rows("humaneval+", directory)
