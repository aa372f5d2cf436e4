"""Judges programs by a data set's own tests: MBPP's assertions, Eurus' calls and standard input.

No test runs where the candidate is. Of ``assert f(2) == 4`` only ``f(2)`` is evaluated beside the candidate;
``4`` is evaluated in a sandbox of its own, and the two are compared here, as plain data. So a program can
neither read an expected value nor forge a verdict.
"""

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from troll.errors import UserError
from troll.tasks import plain_data
from troll.tasks.sandbox import Execution, Limits, Output, Program, run_batch
from troll.tasks.verifiers.comparison import values_match
from troll.tasks.verifiers.extraction import extract_code
from troll.tasks.verifiers.verdict import CodeVerdict, unfinished

# Names that no candidate has reason to use; redefining it changes nothing, since ours comes last.
_PROBE = "troll_evaluate_expression"
# No reference runs beside, so that all programs get what the slowest solution of MBPP needs (2 s).
_LIMITS = Limits(cpu_s=6, wall_s=20)
_REFERENCE_LIMITS = Limits(cpu_s=60, wall_s=300, memory_bytes=2 * 2**30)


@dataclass(frozen=True)
class _Assertions:
    """A problem's tests: expressions to evaluate beside the candidate, and what they must give."""

    questions: tuple[str, ...]
    setup: str
    expected: tuple[str, ...]  # encoded


# Problems come again and again in training.
_PREPARED: dict[str, _Assertions] = {}


def verify_assertions(
    records: Sequence[Mapping[str, Any]],
    completions: Sequence[str],
    *,
    limits: Limits | None = None,
    workers: int | None = None,
) -> list[CodeVerdict]:
    """Judges completions by assertions.

    Args:
        records: one per completion, with prompt, canonical_solution, test_list (``assert`` statements) and
            test_setup_code.
        completions: texts that a model wrote after the prompt.
        limits: of one program over all its tests; default 6 CPU seconds.
        workers: programs in flight.

    Raises:
        UserError: the sandbox cannot start, or a record's tests do not suit its reference.
    """
    fields = ("test_list", "test_setup_code", "canonical_solution")
    tests = _prepare([json.dumps([record[field] for field in fields]) for record in records])
    programs = [
        _program(
            record["prompt"] + extract_code(text, record["entry_point"]),
            test.setup,
            test.questions,
            limits or _LIMITS,
        )
        for record, text, test in zip(records, completions, tests, strict=True)
    ]
    verdicts = []
    for test, execution in zip(tests, run_batch(programs, workers=workers), strict=True):
        outputs = [Output("value", text) for text in test.expected]
        verdicts.append(_judge(execution, outputs, exact=True))
    return verdicts


def _program(source: str, setup: str, questions: Sequence[str], limits: Limits | None) -> Program:
    lambdas = ", ".join(f"lambda: ({question})" for question in questions)
    probe = f"def {_PROBE}(number):\n    return [{lambdas}][number]()\n"
    inputs = plain_data.encode([[number] for number in range(len(questions))])
    return Program(f"{source}\n\n{setup}\n\n{probe}", _PROBE, inputs, limits=limits)


def _prepare(keys: Sequence[str]) -> list[_Assertions]:
    """The tests of records given as JSON; the expected values of all new ones are evaluated in one batch."""
    new = [key for key in dict.fromkeys(keys) if key not in _PREPARED]
    parsed = [_parse(key) for key in new]
    programs = [_program(code, setup, answers, _REFERENCE_LIMITS) for _, answers, setup, code in parsed]
    executions = run_batch(programs) if programs else []
    for key, (questions, _, setup, _), execution in zip(new, parsed, executions, strict=True):
        if execution.status != "finished" or any(output.kind != "value" for output in execution.outputs):
            raise UserError(
                f"mbpp: the expected values of {json.loads(key)[0][0]!r} cannot be computed "
                f"({execution.status}: {execution.detail})"
            )
        expected = tuple(output.text for output in execution.outputs)
        _PREPARED[key] = _Assertions(tuple(questions), setup, expected)
    return [_PREPARED[key] for key in keys]


def _parse(key: str) -> tuple[list[str], list[str], str, str]:
    """(what to ask, what it must give, setup, reference solution) of a record's tests."""
    statements, setup, reference = json.loads(key)
    questions, answers = [], []
    for statement in statements:
        for node in ast.parse(statement).body:
            if not isinstance(node, ast.Assert):
                raise UserError(f"mbpp: a test is no assertion: {statement!r}")
            test = node.test
            if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
                questions.append(ast.unparse(test.left))
                answers.append(ast.unparse(test.comparators[0]))
            else:
                questions.append(f"bool({ast.unparse(test)})")
                answers.append("True")
    return questions, answers, setup, reference


def verify_stdio(
    records: Sequence[Mapping[str, Any]],
    completions: Sequence[str],
    *,
    limits: Limits | None = None,
    workers: int | None = None,
) -> list[CodeVerdict]:
    """Judges completions by inputs and outputs, as Eurus-2-RL has them.

    Args:
        records: one per completion, with inputs, outputs and entry_point. Without an entry point a program
            reads a text and prints one, compared line by line without trailing spaces; with one, the
            function is called, and tuples count as lists.
        completions: texts with the program, usually in a fenced block.
        limits: of one program, for each text or over all calls.
        workers: programs in flight.

    Raises:
        UserError: the sandbox cannot start, or a record's inputs are no plain data.
    """
    programs: list[Program] = []
    places: list[range] = []
    for record, text in zip(records, completions, strict=True):
        name, start = record["entry_point"], len(programs)
        source = record["prompt"] + extract_code(text, name or None)
        if name:
            programs.append(Program(source, name, plain_data.encode(_calls(record)), limits=limits))
        else:
            programs += [Program(source, stdin=str(stdin), limits=limits) for stdin in record["inputs"]]
        places.append(range(start, len(programs)))
    executions = run_batch(programs, workers=workers)
    verdicts = []
    for record, place in zip(records, places, strict=True):
        found = [executions[number] for number in place]
        if record["entry_point"]:
            outputs = [Output("value", plain_data.encode(_json(item))) for item in record["outputs"]]
            verdicts.append(_judge(found[0], outputs, exact=False))
        else:
            verdicts.append(_judge_texts(found, [str(text) for text in record["outputs"]]))
    return verdicts


def _json(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _calls(record: Mapping[str, Any]) -> list[list[Any]]:
    """Arguments of each call: a list, or one JSON value per line."""
    calls = []
    for arguments in record["inputs"]:
        if isinstance(arguments, str):
            calls.append([_json(line) for line in arguments.splitlines()])
        else:
            calls.append(list(arguments))
    return calls


def _judge_texts(executions: Sequence[Execution], expected: Sequence[str]) -> CodeVerdict:
    for number, (execution, text) in enumerate(zip(executions, expected, strict=True)):
        if execution.status != "finished":
            return CodeVerdict(False, False, unfinished(execution), execution.detail)
        if _lines(execution.stdout) != _lines(text):
            return CodeVerdict(False, False, "wrong", f"input {number}")
    return CodeVerdict(True, True, "passed")


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _judge(execution: Execution, expected: Sequence[Output], *, exact: bool) -> CodeVerdict:
    if execution.status in ("infrastructure", "rejected"):
        return CodeVerdict(False, False, unfinished(execution), execution.detail)
    for number, (output, wanted) in enumerate(zip(execution.outputs, expected, strict=False)):
        if output.kind == "opaque":
            return CodeVerdict(False, False, "rejected", output.text)
        if output.kind == "value" and not _matches(output, wanted, exact):
            return CodeVerdict(False, False, "wrong", f"input {number}")
    if execution.status != "finished" or len(execution.outputs) != len(expected):
        return CodeVerdict(False, False, unfinished(execution), execution.detail)
    return CodeVerdict(True, True, "passed")


def _matches(output: Output, expected: Output, exact: bool) -> bool:
    if output.text == expected.text:
        return True
    try:
        value, wanted = output.value, expected.value
        if exact:
            return bool(value == wanted)
        return values_match(_lists(value), _lists(wanted), 0)
    except (plain_data.NotPlainError, RecursionError):
        return False


def _lists(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_lists(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _lists(item) for key, item in value.items()}
    return value
