"""Judges function bodies by evalplus-like records: base and plus inputs, the reference's outputs.

Both the reference solution and the candidates run in the sandbox; only encoded inputs go in and only encoded
outputs come out, and the comparison happens here, where no candidate's object ever is.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from troll.errors import UserError
from troll.tasks import plain_data
from troll.tasks.sandbox import Execution, Limits, Output, Program, run_batch
from troll.tasks.verifiers.comparison import outputs_match

Status = Literal["passed", "wrong", "timeout", "memory", "crash", "rejected", "infrastructure"]

# References may be slow; a fault in one is a fault of the data, so they get time enough on any machine.
_REFERENCE_LIMITS = Limits(cpu_s=60, wall_s=120, memory_bytes=4 * 2**30, output_bytes=256 * 2**20)
_REQUIRED = ("prompt", "entry_point", "canonical_solution", "base_input", "plus_input")


@dataclass(frozen=True)
class CodeVerdict:
    """What became of one completion.

    Attributes:
        base: all base inputs gave the expected outputs.
        plus: all plus inputs did.
        status: ``passed`` when both; otherwise what went wrong first, in input order.
        detail: a few words more.
    """

    base: bool
    plus: bool
    status: Status
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Base and plus both passed."""
        return self.base and self.plus


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
        records: one per completion, with prompt, entry_point, canonical_solution, base_input, plus_input
            (lists of argument lists) and atol.
        completions: the program is ``prompt + completion``.
        limits: of one program over all its inputs; default `troll.tasks.sandbox.Limits`.
        workers: programs in flight.

    Raises:
        UserError: the sandbox cannot start, or a record lacks a field or has a reference solution that fails.
    """
    known: dict[int, _Prepared] = {}  # records are often one object many times
    prepared = []
    for record in records:
        if id(record) not in known:
            known[id(record)] = _prepare(record)
        prepared.append(known[id(record)])
    _fill_expected({item.digest: item for item in prepared}, workers)
    unique = {(item.digest, text): item for item, text in zip(prepared, completions, strict=True)}
    programs = [
        Program(item.prompt + text, item.entry_point, item.inputs) for (_, text), item in unique.items()
    ]
    executions = run_batch(programs, _room_for(limits or Limits(), unique.values()), workers=workers)
    verdicts = {
        key: _judge(execution, _EXPECTED[item.digest], item)
        for (key, item), execution in zip(unique.items(), executions, strict=True)
    }
    return [verdicts[item.digest, text] for item, text in zip(prepared, completions, strict=True)]


@dataclass(frozen=True)
class _Prepared:
    name: str
    digest: str
    prompt: str
    entry_point: str
    reference: str
    inputs: str
    base_count: int
    tolerance: float


# Expected outputs by digest of the record; they outlive a batch because problems come again.
_EXPECTED: dict[str, tuple[Output, ...]] = {}
_INPUTS: dict[str, str] = {}


def _prepare(record: Mapping[str, Any]) -> _Prepared:
    name = str(record.get("task_id", "?"))
    missing = [key for key in _REQUIRED if key not in record]
    if missing:
        raise UserError(
            f"problem {name}: no field {missing[0]!r}; a code problem needs {', '.join(_REQUIRED)}"
        )
    base, plus = list(record["base_input"]), list(record["plus_input"])
    try:
        inputs = plain_data.encode(base + plus)
    except plain_data.NotPlainError as error:
        raise UserError(f"problem {name}: base_input or plus_input is not plain data ({error})") from None
    parts = (record["prompt"], record["entry_point"], record["canonical_solution"], inputs)
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
    return _Prepared(
        name=name,
        digest=digest,
        prompt=record["prompt"],
        entry_point=record["entry_point"],
        reference=record["canonical_solution"],
        inputs=_INPUTS.setdefault(digest, inputs),  # one object, so that the sandbox shares its memory
        base_count=len(base),
        tolerance=float(record.get("atol", 0)),
    )


def _fill_expected(problems: Mapping[str, _Prepared], workers: int | None) -> None:
    missing = [item for digest, item in problems.items() if digest not in _EXPECTED]
    if not missing:
        return
    programs = [Program(item.prompt + item.reference, item.entry_point, item.inputs) for item in missing]
    for item, execution in zip(missing, run_batch(programs, _REFERENCE_LIMITS, workers=workers), strict=True):
        if execution.status != "finished" or any(output.kind != "value" for output in execution.outputs):
            raise UserError(
                f"problem {item.name}: its canonical_solution does not return plain data on its own inputs "
                f"({execution.status} {execution.detail})"
            )
        _EXPECTED[item.digest] = execution.outputs


def _room_for(limits: Limits, problems: Iterable[_Prepared]) -> Limits:
    """Lets outputs be twice as long as the longest that is expected."""
    longest = max(
        (sum(len(output.text) + 16 for output in _EXPECTED[item.digest]) for item in problems), default=0
    )
    return replace(limits, output_bytes=max(limits.output_bytes, 2 * longest))


def _judge(execution: Execution, expected: tuple[Output, ...], item: _Prepared) -> CodeVerdict:
    matched = [
        outputs_match(output, wanted, item.tolerance)
        for output, wanted in zip(execution.outputs, expected, strict=False)
    ]
    matched += [False] * (len(expected) - len(matched))
    base, plus = all(matched[: item.base_count]), all(matched[item.base_count :])
    if execution.status == "infrastructure":
        return CodeVerdict(False, False, "infrastructure", execution.detail)
    if execution.status == "rejected" or (base and plus):
        # Whoever wrote more than the runner asked for has shown what it is after, whatever matched.
        passed = execution.status == "finished"
        return CodeVerdict(passed, passed, "passed" if passed else _unfinished(execution), execution.detail)
    first = matched.index(False)
    if first < len(execution.outputs):
        output = execution.outputs[first]
        if output.kind == "opaque":
            return CodeVerdict(base, plus, "rejected", output.text)
        if output.kind == "value":
            return CodeVerdict(base, plus, "wrong", f"input {first}")
    return CodeVerdict(base, plus, _unfinished(execution), execution.detail)


def _unfinished(execution: Execution) -> Status:
    return "crash" if execution.status == "finished" else execution.status
