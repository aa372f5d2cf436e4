r"""Converts rows of public data sets to `Problem`s.

Each set has its own place for the answer: after ``####`` in GSM8K, the last ``\boxed{}`` of the solution in
MATH and Minerva, the list ``final_answer`` in OlympiadBench, a column with an integer in DAPO.
"""

import ast
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from troll.common.errors import UserError
from troll.tasks.types import Problem
from troll.tasks.verifiers.math import last_boxed

Row = Mapping[str, Any]
Convert = Callable[[Row, int], Problem]
"""Converts a row and its number in the file, from 0, to a problem."""

# Follows every question: the verifier reads the box (the usual wording for Qwen's mathematics models).
INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
# A prompt of the source that names the box has an instruction of its own, which is not repeated.
_NAMES_BOX = "\\boxed"
_INTEGER = re.compile(r"-?[0-9]+")


def _first(row: Row, *names: str) -> Any:
    """Returns the value of the first of these columns that the row has."""
    for name in names:
        if row.get(name) is not None:
            return row[name]
    raise UserError(f"data: a row has the columns {', '.join(row)}, but needs one of {', '.join(names)}")


def plain_number(value: Any) -> str:
    r"""Returns an answer as plain text, without a box, ``\[ \]``, commas of thousands or a final dot.

    A float such as ``27.0`` becomes ``27``.
    """
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = str(value).strip()
    if re.fullmatch(r"-?[0-9]{1,3}(,[0-9]{3})+", text):
        return text.replace(",", "")
    if "\\boxed" in text:
        text = last_boxed(text) or text
    text = text.removeprefix("\\[").removesuffix("\\]").strip()
    # Four answers of Omni-MATH lack their last brace.
    braces = re.findall(r"(?<!\\)[{}]", text)
    text += "}" * (braces.count("{") - braces.count("}") == 1)
    return text.rstrip(".").strip()


def instructed(question: str) -> str:
    """Returns a question with our instruction after it."""
    return f"{question.strip()}\n\n{INSTRUCTION}"


def _math(
    row: Row,
    task_id: Any,
    question: str,
    answer: str,
    solution: str = "",
    level: int = 0,
    system: str | None = None,
) -> Problem:
    """Returns a problem; ``system`` is the system turn of a source with chats, None for one without."""
    record = {"problem": question, "solution": solution, "answer": answer}
    record |= {key: row[key] for key in ("subject", "type", "domain", "subfield") if row.get(key)}
    own = system is not None and _NAMES_BOX in system + question
    prompt = question if own else instructed(question)
    return Problem(str(task_id), prompt, answer, level, record, system or "")


def gsm8k(row: Row, number: int) -> Problem:
    """Converts a row of GSM8K, with the number after ``####`` as answer."""
    solution, mark, answer = str(row["answer"]).rpartition("####")
    if not mark:
        raise UserError(f"gsm8k: row {number} has no '####' in its answer")
    return _math(row, number, row["question"], plain_number(answer), solution.strip())


def boxed(row: Row, number: int) -> Problem:
    """Converts a row of MATH or Minerva, with the last box of the solution as answer."""
    answer = last_boxed(row["solution"]) or row.get("answer")  # one solution of MATH has a box without braces
    if answer is None:
        raise UserError(f"data: row {number} has no \\boxed{{}} in its solution")
    digit = re.search(r"\d", str(row.get("level", "")))
    task_id, level = row.get("idx", number), int(digit[0]) if digit else 0
    return _math(row, task_id, row["problem"], answer.strip(), row["solution"], level)


def answered(row: Row, number: int) -> Problem:
    """Converts a row of AIME, AMC, MATH-500 or Omni-MATH, which have a column with the answer."""
    level = row.get("level", row.get("difficulty", 0))
    return _math(
        row,
        _first({"number": number, **row}, "unique_id", "id", "number"),
        _first(row, "problem", "question", "Problem"),
        plain_number(_first(row, "answer", "Answer")),
        str(row.get("solution") or ""),
        int(level) if isinstance(level, (int, float)) else 0,
    )


def olympiadbench(row: Row, number: int) -> Problem:
    """Converts a row of OlympiadBench, with the values of ``final_answer``, joined by commas, as answer."""
    answers = row["final_answer"]
    texts = [plain_number(str(text)) for text in ([answers] if isinstance(answers, str) else answers)]
    context = f"{row['context']}\n\n" if row.get("context") else ""
    solution = row.get("solution") or ""
    return _math(
        row,
        row.get("id", number),
        context + row["question"],
        ", ".join(texts).replace("$", "").rstrip(".").strip(),
        solution if isinstance(solution, str) else "\n\n".join(solution),
    )


def dapo(row: Row, number: int) -> Problem:
    """Converts a row of DAPO-Math, whose answers must be integers."""
    reward = row.get("reward_model") or {}
    answer = str(_first({**reward, **row}, "answer", "solution", "ground_truth")).strip()
    if not _INTEGER.fullmatch(answer):
        raise UserError(f"dapo: row {number} has the answer {answer!r}; expected an integer")
    system, question = _turns(row)
    return _math(row, row.get("index", number), question, answer, system=system)


def _turns(row: Row) -> tuple[str | None, str]:
    """Returns the system turn and the user's of a chat; for a row without a chat, None and its question."""
    question = _first(row, "problem", "question", "prompt")
    if isinstance(question, str):
        return None, question
    found = {turn["role"]: str(turn["content"]) for turn in reversed(question)}
    return found.get("system", ""), _first(found, "user")


def eurus_math(row: Row, number: int) -> Problem:
    """Converts a mathematics row of Eurus-2-RL."""
    answer = plain_number(row["reward_model"]["ground_truth"])
    system, question = _turns(row)
    return _math(row, (row.get("extra_info") or {}).get("index", number), question, answer, system=system)


def eurus_code(row: Row, number: int) -> Problem:
    """Converts a code row of Eurus-2-RL, tested by standard input and output or by calls of a function."""
    tests = row["reward_model"]["ground_truth"]
    tests = json.loads(tests) if isinstance(tests, str) else tests
    task_id, (system, prompt) = str((row.get("extra_info") or {}).get("index", number)), _turns(row)
    record = {
        "prompt": "",
        "canonical_solution": "",
        "inputs": list(tests["inputs"]),
        "outputs": list(tests["outputs"]),
        "entry_point": tests.get("fn_name") or "",
    }
    return Problem(task_id, prompt, "", 0, record, system or "")


def mbpp(row: Row, _: int) -> Problem:
    """Converts a row of MBPP: the prompt is a docstring with the first test, as in evalplus."""
    text = row["text"] if "text" in row else row["prompt"]
    tests = [test.strip() for test in row["test_list"]]
    call = next(node for node in ast.walk(ast.parse(tests[0])) if isinstance(node, ast.Call))
    record = {
        "prompt": '"""\n' + text.strip() + "\n" + tests[0] + '\n"""\n',
        "entry_point": ast.unparse(call.func),
        "canonical_solution": row["code"].replace("\r\n", "\n"),
        "test_list": tests,
        "test_setup_code": (row.get("test_setup_code") or "").replace("\r\n", "\n"),
    }
    return Problem(str(row["task_id"]), record["prompt"], record["canonical_solution"], 0, record)


def evalplus(row: Row, _: int) -> Problem:
    """Converts a row of HumanEval+ or MBPP+, whose record stays as it is."""
    return Problem(str(row["task_id"]), row["prompt"], row["canonical_solution"], 0, dict(row))


def humaneval(row: Row, plus: Row) -> Problem:
    """Converts a row of HumanEval, with its own prompt and solution and with its own tests as base inputs.

    ``plus`` is the same problem in HumanEval+: its ``base_input`` lists the calls of HumanEval's tests, and
    its reference gives the expected outputs.
    """
    record = {**plus, "prompt": row["prompt"], "plus_input": []}
    return Problem(str(row["task_id"]), row["prompt"], row["canonical_solution"], 0, record)
