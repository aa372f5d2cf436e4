"""Judges programs by a data set's own tests: MBPP's assertions, Eurus' calls and standard input.

No test runs beside the candidate. Of ``assert f(2) == 4`` only ``f(2)`` is evaluated with the candidate;
``4`` is evaluated separately in the sandbox, and the two are compared elsewhere (``judge.py``), as plain
data. So a program can neither read an expected value nor forge a verdict.
"""

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from troll.common.errors import UserError
from troll.tasks.sandbox import plain_data
from troll.tasks.sandbox.pool import Execution, Limits, Output, Program, run_batch
from troll.tasks.verifiers.judge import CodeVerdict, judge_outputs, unfinished
from troll.tasks.verifiers.references import REFERENCE_TIME_FACTOR

# A name that candidates have no reason to use; defining it is useless, since ours is defined last.
_PROBE = "troll_evaluate_expression"
_LIMITS = Limits(cpu_s=6, wall_s=20)
_REFERENCE_LIMITS = Limits(cpu_s=60, wall_s=300, memory_bytes=2 * 2**30)


@dataclass(frozen=True)
class _Assertions:
    """A problem's tests: expressions to evaluate with the candidate, and their expected values."""

    questions: tuple[str, ...]
    setup: str
    expected: tuple[str, ...]  # encoded
    reference_cpu_s: float  # of the reference solution, for all questions

    def limits(self) -> Limits:
        """Returns the default limits, raised for programs a few times slower than a slow reference."""
        cpu_s = max(_LIMITS.cpu_s, REFERENCE_TIME_FACTOR * self.reference_cpu_s)
        return replace(_LIMITS, cpu_s=cpu_s, wall_s=max(_LIMITS.wall_s, 4 * cpu_s))


# A cache: problems come again and again in training.
_PREPARED: dict[str, _Assertions] = {}


def verify_assertions(
    records: Sequence[Mapping[str, Any]],
    completions: Sequence[str],
    *,
    limits: Limits | None = None,
    workers: int | None = None,
) -> list[CodeVerdict]:
    """Judges completions by the assertions in ``test_list``, after ``test_setup_code`` (see `verify_code`).

    By default a program may take 6 CPU seconds over all its tests, or four times those of the reference.
    """
    fields = ("test_list", "test_setup_code", "canonical_solution")
    tests = _prepare([json.dumps([record[field] for field in fields]) for record in records])
    programs = [
        replace(
            _program(text, test.setup, test.questions, limits or test.limits()),
            prompt=record["prompt"],
            name=record["entry_point"],
        )
        for record, text, test in zip(records, completions, tests, strict=True)
    ]

    def judged(number: int, execution: Execution) -> CodeVerdict:
        outputs = [Output("value", text) for text in tests[number].expected]
        cpu_s = (limits or tests[number].limits()).cpu_s
        verdict = judge_outputs(execution, outputs, rule="exact", cpu_s=cpu_s)
        return replace(verdict, cpu_s=execution.cpu_s)

    return run_batch(programs, workers=workers, reduce=judged)


def _program(source: str, setup: str, questions: Sequence[str], limits: Limits | None) -> Program:
    lambdas = ", ".join(f"lambda: ({question})" for question in questions)
    probe = f"def {_PROBE}(number):\n    return [{lambdas}][number]()\n"
    inputs = plain_data.encode([[number] for number in range(len(questions))])
    return Program(source, _PROBE, inputs, limits=limits, after=f"{setup}\n\n{probe}")


def _prepare(keys: Sequence[str]) -> list[_Assertions]:
    """Returns the tests of records given as JSON; all new expected values and references run in one batch."""
    new = [key for key in dict.fromkeys(keys) if key not in _PREPARED]
    parsed = [_parse(key) for key in new]
    programs = [_program(code, setup, answers, _REFERENCE_LIMITS) for _, answers, setup, code in parsed]
    programs += [_program(code, setup, questions, _REFERENCE_LIMITS) for questions, _, setup, code in parsed]
    executions = run_batch(programs) if programs else []
    pairs = zip(executions[: len(new)], executions[len(new) :], strict=True)
    for key, (questions, _, setup, _), (execution, reference) in zip(new, parsed, pairs, strict=True):
        if execution.status != "finished" or any(output.kind != "value" for output in execution.outputs):
            raise UserError(
                f"mbpp: the expected values of {json.loads(key)[0][0]!r} cannot be computed "
                f"({execution.status}: {execution.detail})"
            )
        expected = tuple(output.text for output in execution.outputs)
        seconds = reference.cpu_s if reference.status == "finished" else 0.0
        _PREPARED[key] = _Assertions(tuple(questions), setup, expected, seconds)
    return [_PREPARED[key] for key in keys]


def _parse(key: str) -> tuple[list[str], list[str], str, str]:
    """Returns (expressions to evaluate, expected values, setup, reference solution) of a record's tests."""
    statements, setup, reference = json.loads(key)
    questions, answers = [], []
    for statement in statements:
        for node in ast.parse(statement).body:
            if not isinstance(node, ast.Assert):
                raise UserError(f"mbpp: a test is not an assertion: {statement!r}")
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
    """Judges completions by inputs and outputs, as Eurus-2-RL has them (see `verify_code`).

    Without an entry point, a program reads an input text and prints one, which is compared line by line
    without trailing spaces, each within ``limits``. With one, the function is called, tuples count as lists,
    and ``limits`` apply to all calls together.
    """
    programs: list[Program] = []
    judges: list[Callable[[Execution], CodeVerdict]] = []
    own: list[range] = []
    cpu_s = (limits or Limits()).cpu_s
    for record, text in zip(records, completions, strict=True):
        name, start = record["entry_point"], len(programs)
        # The question is text, of which a program continues nothing; None: run the program as it is.
        prompt = None if record["prompt"] is None else ""
        if name:
            outputs = [Output("value", plain_data.encode(_json(item))) for item in record["outputs"]]
            # A list, or one JSON value per line.
            calls = [
                [_json(line) for line in arguments.splitlines()]
                if isinstance(arguments, str)
                else [*arguments]
                for arguments in record["inputs"]
            ]
            inputs = plain_data.encode(calls)
            programs.append(Program(text, name, inputs, limits=limits, prompt=prompt))
            judges.append(partial(judge_outputs, expected=outputs, rule="lists", cpu_s=cpu_s))
        else:
            for number, (stdin, expected) in enumerate(zip(record["inputs"], record["outputs"], strict=True)):
                programs.append(Program(text, stdin=str(stdin), limits=limits, prompt=prompt))
                judges.append(partial(_judge_text, expected=str(expected), number=number))
        own.append(range(start, len(programs)))

    def judged(number: int, execution: Execution) -> CodeVerdict:
        return replace(judges[number](execution), cpu_s=execution.cpu_s)

    verdicts = run_batch(programs, workers=workers, reduce=judged)
    right = CodeVerdict(True, True, "passed")
    return [next((verdicts[i] for i in numbers if not verdicts[i].passed), right) for numbers in own]


def _json(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _judge_text(execution: Execution, expected: str, number: int) -> CodeVerdict:
    if execution.status != "finished":
        return unfinished(execution)
    written, wanted = (
        [line.rstrip() for line in text.rstrip().split("\n")] for text in (execution.stdout, expected)
    )
    if written != wanted:
        return CodeVerdict(False, False, "wrong", f"input {number}")
    return CodeVerdict(True, True, "passed")
