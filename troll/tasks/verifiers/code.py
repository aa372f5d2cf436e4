"""Judges code completions; evalplus-like records by their inputs and the outputs of their reference.

The reference and the candidates run in the sandbox: encoded inputs go in, and encoded outputs come out. They
are compared in another process, which never contains an object of a candidate (``judge.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from troll.common.errors import UserError
from troll.common.progress import say
from troll.tasks.sandbox.pool import Execution, Limits, Program, run_batch
from troll.tasks.types import Problem
from troll.tasks.verifiers.assertions import verify_assertions, verify_stdio
from troll.tasks.verifiers.fractions import (
    SCORED,
    TEST_LIMITS,
    WHOLE_CPU_S,
    code_block,
    single_tests,
    with_names,
)
from troll.tasks.verifiers.judge import CodeVerdict, judge_outputs
from troll.tasks.verifiers.references import (
    REFERENCE_TIME_FACTOR,
    Reference,
    read_problem,
    reference_outputs,
)

__all__ = ["CodeVerdict", "code_fractions", "code_rewards", "verify_code"]


def code_rewards(
    problems: Sequence[Problem], completions: Sequence[str], *, as_written: bool = False
) -> list[float]:
    """Returns the training reward of each completion.

    It is 1.0 if all base and plus inputs pass, else 0.0; for records that say so (`SCORED`), see
    `code_fractions`.
    """
    records = [problem.record for problem in problems]
    if any(SCORED in record for record in records):
        return code_fractions(records, completions)
    verdicts = verify_code(records, completions, as_written=as_written)
    _require_judged(verdicts)
    return [float(verdict.passed) for verdict in verdicts]


def code_fractions(
    records: Sequence[Mapping[str, Any]], completions: Sequence[str], *, limits: Limits = TEST_LIMITS
) -> list[float]:
    """Returns the share of a problem's first tests that each completion passes, from 0.0 to 1.0.

    Every test runs in a process of its own, within ``limits``: what a program does in one test, such as an
    early exit, counts in no other. A completion without a code block gets 0.0, and so does a program that
    takes more than `WHOLE_CPU_S` in all its tests together. See `troll.tasks.verifiers.fractions`.

    Args:
        records: one per completion, with ``test_list`` or ``outputs`` (see `verify_code`) and `SCORED`.
        completions: answers with the program in a fenced block.
        limits: of one test.
    """
    tests: list[dict[str, Any]] = []
    programs: list[str] = []
    of_completion: list[range] = []
    for record, completion in zip(records, completions, strict=True):
        block, start = code_block(completion), len(tests)
        if block is not None:
            tests += single_tests(record)
            programs += [with_names(block, record)] * (len(tests) - start)
        of_completion.append(range(start, len(tests)))
    verdicts = verify_code(tests, programs, limits=limits)
    _require_judged(verdicts)
    fractions = []
    for numbers in of_completion:
        own = [verdicts[number] for number in numbers]
        late = sum(verdict.cpu_s for verdict in own) > WHOLE_CPU_S
        fractions.append(sum(verdict.passed for verdict in own) / len(own) if own and not late else 0.0)
    return fractions


def _require_judged(verdicts: Sequence[CodeVerdict]) -> None:
    """Refuses failures of the sandbox, and reports programs whose outputs could not be compared."""
    for verdict in verdicts:
        if verdict.status == "infrastructure":
            raise UserError(
                f"sandbox: failed while judging a program ({verdict.detail}); not counted as wrong"
            )
    unsure = [verdict.detail for verdict in verdicts if verdict.status == "incomparable"]
    if unsure:
        say(
            f"verifier: {len(unsure)} of {len(verdicts)} programs count as wrong without a comparison: "
            f"{unsure[0]}"
        )


def verify_code(
    records: Sequence[Mapping[str, Any]],
    completions: Sequence[str],
    *,
    limits: Limits | None = None,
    workers: int | None = None,
    as_written: bool = False,
) -> list[CodeVerdict]:
    """Judges completions; equal completions of an evalplus-like record run once.

    Args:
        records: one per completion; those with ``test_list`` are judged by `verify_assertions`, those with
            ``outputs`` by `verify_stdio`. All others are evalplus-like, with prompt, entry_point,
            canonical_solution, base_input, plus_input (lists of argument lists) and atol.
        completions: see `troll.tasks.sandbox.extraction.whole_program`.
        limits: of one program over all its inputs; default `troll.tasks.sandbox.pool.Limits`. A program
            always gets at least four times the CPU time of its problem's reference.
        workers: how many programs run at a time.
        as_written: whether a completion for an evalplus-like record, or its fenced block, is judged as it
            is, without searching it for the program (see `troll.tasks.types.Task`).
    """
    groups: dict[str, list[int]] = {}
    for number, record in enumerate(records):
        kind = "assertions" if "test_list" in record else "stdio" if "outputs" in record else "evalplus"
        groups.setdefault(kind, []).append(number)
    judges: dict[str, Callable[..., list[CodeVerdict]]] = {
        "assertions": verify_assertions,
        "stdio": verify_stdio,
        "evalplus": partial(_verify_evalplus, as_written=as_written),
    }
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
    as_written: bool,
) -> list[CodeVerdict]:
    by_id = {id(record): record for record in records}  # the same object is often given many times
    prepared = {key: read_problem(record) for key, record in by_id.items()}
    problems = [prepared[id(record)] for record in records]
    references = reference_outputs(problems, workers=workers)
    unique = dict.fromkeys((item.digest, text) for item, text in zip(problems, completions, strict=True))
    of_program = [references[digest] for digest, _ in unique]
    own = [_limits_for(limits or Limits(), reference) for reference in of_program]
    programs = [
        Program(
            text,
            reference.problem.entry_point,
            reference.problem.inputs,
            limits=limit,
            prompt=reference.problem.prompt,
            as_written=as_written,
        )
        for (_, text), reference, limit in zip(unique, of_program, own, strict=True)
    ]

    def judged(number: int, execution: Execution) -> CodeVerdict:
        item = of_program[number].problem
        return judge_outputs(
            execution,
            of_program[number].outputs,
            rule=item.oracle or "evalplus",
            tolerance=item.tolerance,
            arguments=item.arguments if item.oracle else None,
            cpu_s=own[number].cpu_s,
            base_count=item.base_count,
        )

    executed = run_batch(programs, workers=workers, reduce=judged)
    verdicts = dict(zip(unique, executed, strict=True))
    return [verdicts[item.digest, text] for item, text in zip(problems, completions, strict=True)]


def _limits_for(limits: Limits, reference: Reference) -> Limits:
    """Returns limits that allow four times the reference's CPU time and twice its output."""
    cpu_s = max(limits.cpu_s, REFERENCE_TIME_FACTOR * reference.cpu_s)
    return replace(
        limits,
        cpu_s=cpu_s,
        # A slow solution must not fail on a loaded machine; the wall limit is for those that sleep.
        wall_s=limits.wall_s if cpu_s == limits.cpu_s else max(limits.wall_s, 4 * cpu_s),
        output_bytes=max(limits.output_bytes, 2 * sum(len(output.text) + 16 for output in reference.outputs)),
    )
