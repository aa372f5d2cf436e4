"""Judges function bodies by evalplus-like records: base and plus inputs, the reference's outputs.

Both the reference solution and the candidates run in the sandbox; only encoded inputs go in and only encoded
outputs come out, and the comparison happens here, where no candidate's object ever is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from troll.errors import UserError
from troll.tasks.sandbox import Execution, Limits, Program, run_batch
from troll.tasks.verifiers.assertions import verify_assertions, verify_stdio
from troll.tasks.verifiers.extraction import extract_code
from troll.tasks.verifiers.references import CodeProblem, Reference, read_problem, reference_outputs
from troll.tasks.verifiers.verdict import CodeVerdict, unfinished

__all__ = ["CodeVerdict", "code_rewards", "verify_code"]

# evalplus' DEFAULT_GT_TIME_LIMIT_FACTOR
_REFERENCE_TIME_FACTOR = 4.0


class _HasRecord(Protocol):
    @property
    def record(self) -> Mapping[str, Any]: ...


def code_rewards(problems: Sequence[_HasRecord], completions: Sequence[str]) -> list[float]:
    """Rewards for training: 1.0 where all base and plus inputs pass, else 0.0.

    Args:
        problems: objects with an evalplus-like ``record``, one per completion.
        completions: the texts that the model wrote after the prompt.

    Raises:
        UserError: the sandbox is missing or failed (which is never counted as a wrong answer), or a record is
            unusable.
    """
    verdicts = verify_code([problem.record for problem in problems], completions)
    for verdict in verdicts:
        if verdict.status == "infrastructure":
            raise UserError(
                f"sandbox: failed while judging a program ({verdict.detail}); not counted as wrong"
            )
    return [float(verdict.passed) for verdict in verdicts]


def verify_code(
    records: Sequence[Mapping[str, Any]],
    completions: Sequence[str],
    *,
    limits: Limits | None = None,
    workers: int | None = None,
) -> list[CodeVerdict]:
    """Judges completions; equal ones of one problem run once.

    Args:
        records: one per completion; those with ``test_list`` are judged by their assertions, those with
            ``outputs`` by `verify_stdio`. All others are evalplus-like, with prompt, entry_point,
            canonical_solution, base_input, plus_input (lists of argument lists) and atol.
        completions: the program is the prompt and what `extract_code` finds in the completion.
        limits: of one program over all its inputs; default `troll.tasks.sandbox.Limits`. A program always
            gets four times the CPU time of its problem's reference.
        workers: programs in flight.

    Raises:
        UserError: the sandbox cannot start, or a record lacks a field or has a reference solution that fails.
    """
    groups: dict[str, list[int]] = {}
    for number, record in enumerate(records):
        kind = "assertions" if "test_list" in record else "stdio" if "outputs" in record else "evalplus"
        groups.setdefault(kind, []).append(number)
    judges = {"assertions": verify_assertions, "stdio": verify_stdio, "evalplus": _verify_evalplus}
    verdicts: dict[int, CodeVerdict] = {}
    for kind, numbers in groups.items():
        part = [records[number] for number in numbers], [completions[number] for number in numbers]
        verdicts.update(zip(numbers, judges[kind](*part, limits=limits, workers=workers), strict=True))
    return [verdicts[number] for number in range(len(completions))]


def _verify_evalplus(
    records: Sequence[Mapping[str, Any]],
    completions: Sequence[str],
    *,
    limits: Limits | None,
    workers: int | None,
) -> list[CodeVerdict]:
    known: dict[int, CodeProblem] = {}  # records are often one object many times
    for record in records:
        if id(record) not in known:
            known[id(record)] = read_problem(record)
    problems = [known[id(record)] for record in records]
    references = reference_outputs(problems, workers=workers)
    unique = dict.fromkeys((item.digest, text) for item, text in zip(problems, completions, strict=True))
    programs = [_program(references[digest], text, limits or Limits()) for digest, text in unique]
    executions = run_batch(programs, workers=workers)
    verdicts = {
        (digest, text): _judge(execution, references[digest])
        for (digest, text), execution in zip(unique, executions, strict=True)
    }
    return [verdicts[item.digest, text] for item, text in zip(problems, completions, strict=True)]


def _program(reference: Reference, completion: str, limits: Limits) -> Program:
    problem = reference.problem
    source = problem.prompt + extract_code(completion, problem.entry_point)
    return Program(source, problem.entry_point, problem.inputs, limits=_limits_for(limits, reference))


def _limits_for(limits: Limits, reference: Reference) -> Limits:
    """Room for a solution a few times slower than the reference, and for outputs twice as long."""
    cpu_s = max(limits.cpu_s, _REFERENCE_TIME_FACTOR * reference.cpu_s)
    return replace(
        limits,
        cpu_s=cpu_s,
        # A loaded machine must not turn a slow solution into a wrong one; the clock is for those that sleep.
        wall_s=limits.wall_s if cpu_s == limits.cpu_s else max(limits.wall_s, 4 * cpu_s),
        output_bytes=max(limits.output_bytes, 2 * sum(len(output.text) + 16 for output in reference.outputs)),
    )


def _judge(execution: Execution, reference: Reference) -> CodeVerdict:
    item = reference.problem
    matched = [
        item.matches(number, output, wanted)
        for number, (output, wanted) in enumerate(zip(execution.outputs, reference.outputs, strict=False))
    ]
    matched += [False] * (len(reference.outputs) - len(matched))
    base, plus = all(matched[: item.base_count]), all(matched[item.base_count :])
    if execution.status == "infrastructure":
        return CodeVerdict(False, False, "infrastructure", execution.detail)
    if execution.status == "rejected" or (base and plus):
        # Whoever wrote more than the runner asked for has shown what it is after, whatever matched.
        passed = execution.status == "finished"
        return CodeVerdict(passed, passed, "passed" if passed else unfinished(execution), execution.detail)
    first = matched.index(False)
    if first < len(execution.outputs):
        output = execution.outputs[first]
        if output.kind == "opaque":
            return CodeVerdict(base, plus, "rejected", output.text)
        if output.kind == "value":
            return CodeVerdict(base, plus, "wrong", f"input {first}")
    return CodeVerdict(base, plus, unfinished(execution), execution.detail)
