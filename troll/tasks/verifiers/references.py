"""Reads code problems in evalplus' schema, and computes the outputs of their reference solutions.

References run in the sandbox like any program. Their outputs are cached in memory, and those of slow ones
also on disk, by digest of everything that they depend on.
"""

import gzip
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from troll.common.errors import UserError
from troll.common.files import atomic_path
from troll.tasks.sandbox import plain_data
from troll.tasks.sandbox.pool import Execution, Limits, Output, Program, run_batch
from troll.tasks.verifiers.comparison import OPAQUE_ALLOWED, special_oracle

# evalplus' DEFAULT_GT_TIME_LIMIT_FACTOR: a program may be this many times slower than the reference.
REFERENCE_TIME_FACTOR = 4.0
# References get enough time on any machine: one that fails is reported as a fault of the data.
_LIMITS = Limits(cpu_s=120, wall_s=600, memory_bytes=4 * 2**30, output_bytes=256 * 2**20)
_REQUIRED = ("prompt", "entry_point", "canonical_solution", "base_input", "plus_input")
# Outputs of faster references are not worth a file.
_DISK_CPU_S = 0.25


@dataclass(frozen=True)
class CodeProblem:
    """A problem, ready for the sandbox."""

    name: str  # its task_id
    digest: str  # of everything that expected outputs and verdicts depend on
    prompt: str  # start of every program
    entry_point: str
    reference: str  # the reference solution, after the prompt
    arguments: list[list[Any]]  # of each call, base before plus
    inputs: str  # the same, encoded
    base_count: int  # number of base calls
    tolerance: float  # evalplus' ``atol``
    oracle: tuple[str, str] | None  # (data set, entry point) if evalplus has a special rule for this problem


@dataclass(frozen=True)
class Reference:
    """The outputs of a reference solution."""

    # the problem as it is judged: without calls whose outputs are too large to leave the sandbox (one call of
    # MBPP+ returns 128 million items)
    problem: CodeProblem
    outputs: tuple[Output, ...]  # expected outputs of these calls, base before plus
    cpu_s: float  # CPU seconds of all calls together
    skipped: tuple[int, ...] = ()  # indices of the calls left out


# Caches by digest: problems come again and again in training.
_REFERENCES: dict[str, Reference] = {}
_INPUTS: dict[str, str] = {}


def read_problem(record: Mapping[str, Any]) -> CodeProblem:
    """Reads an evalplus-like record."""
    name = str(record.get("task_id", "?"))
    missing = [key for key in _REQUIRED if key not in record]
    if missing:
        raise UserError(
            f"problem {name}: no field {missing[0]!r}; a code problem needs {', '.join(_REQUIRED)}"
        )
    dataset = "mbpp" if name.startswith("Mbpp/") else "humaneval"  # whose special rules apply
    base, plus = (list(record[f"{kind}_input"]) for kind in ("base", "plus"))
    if dataset == "mbpp":  # JSON has no tuples, sets or complex numbers, which MBPP+ needs
        try:
            from evalplus.data.mbpp import mbpp_deserialize_inputs
        except ImportError:
            raise UserError(
                "evalplus: not installed, and MBPP+ needs it; pip install 'troll[evaluate]'"
            ) from None
        base, plus = (list(mbpp_deserialize_inputs(name, inputs)) for inputs in (base, plus))
    try:
        inputs = plain_data.encode([list(arguments) for arguments in base + plus])
    except plain_data.NotPlainError as error:
        raise UserError(f"problem {name}: base_input or plus_input is not plain data ({error})") from None
    tolerance = float(record.get("atol", 0))
    prompt, entry_point, reference = (record[key] for key in _REQUIRED[:3])
    special = name.startswith(("Mbpp/", "HumanEval/"))
    has_rule = special and special_oracle(dataset, entry_point) is not None
    texts = (prompt, entry_point, reference, inputs, dataset)
    parts = (*texts, str(len(base)), str(tolerance), str(special), sys.version)
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
    return CodeProblem(
        name=name,
        digest=digest,
        prompt=prompt,
        entry_point=entry_point,
        reference=reference,
        arguments=base + plus,
        inputs=_INPUTS.setdefault(digest, inputs),  # one object, whose memory the sandbox shares
        base_count=len(base),
        tolerance=tolerance,
        oracle=(dataset, entry_point) if has_rule else None,
    )


def reference_outputs(problems: Iterable[CodeProblem], *, workers: int | None = None) -> dict[str, Reference]:
    """Returns the references of problems by digest; runs those that are not cached."""
    by_digest = {problem.digest: problem for problem in problems}
    for digest, item in by_digest.items():
        if digest not in _REFERENCES and (stored := _load(digest)) is not None:
            _REFERENCES[digest] = _reference(item, *stored)
    missing = [problem for digest, problem in by_digest.items() if digest not in _REFERENCES]
    programs = [Program(item.prompt + item.reference, item.entry_point, item.inputs) for item in missing]
    faults = []
    for item, execution in zip(missing, run_batch(programs, _LIMITS, workers=workers), strict=True):
        if (fault := _fault(item, execution)) is not None:
            faults.append(fault)
            continue
        _REFERENCES[item.digest] = _reference(item, execution.outputs, execution.cpu_s)
        if execution.cpu_s > _DISK_CPU_S:
            _store(item.digest, execution.outputs, execution.cpu_s)
    if faults:
        raise UserError(faults[0])
    return {digest: _REFERENCES[digest] for digest in by_digest}


def _is_large(output: Output) -> bool:
    return output.kind == "opaque" and output.text == plain_data.TOO_LARGE


def _reference(problem: CodeProblem, outputs: tuple[Output, ...], cpu_s: float) -> Reference:
    skipped = tuple(number for number, output in enumerate(outputs) if _is_large(output))
    if not skipped:
        return Reference(problem, outputs, cpu_s)
    kept = [number for number in range(len(outputs)) if number not in skipped]
    arguments = [problem.arguments[number] for number in kept]
    judged = replace(
        problem,
        arguments=arguments,
        inputs=plain_data.encode([list(item) for item in arguments]),
        base_count=sum(number < problem.base_count for number in kept),
    )
    return Reference(judged, tuple(outputs[number] for number in kept), cpu_s, skipped)


def _fault(problem: CodeProblem, execution: Execution) -> str | None:
    """Returns what is wrong with a reference, in one line; None if nothing is."""
    if execution.status == "infrastructure":
        return f"sandbox: failed while running the reference of {problem.name} ({execution.detail})"
    bad = [output.text for output in execution.outputs if output.kind != "value" and not _is_large(output)]
    if execution.status == "finished" and (not bad or problem.entry_point in OPAQUE_ALLOWED):
        return None
    return (
        f"problem {problem.name}: its canonical_solution does not return plain data on its own inputs "
        f"({execution.status}: {execution.detail or bad[0]})"
    )


def _path(digest: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "troll" / "references" / f"{digest}.json.gz"


def _load(digest: str) -> tuple[tuple[Output, ...], float] | None:
    try:
        stored = json.loads(gzip.decompress(_path(digest).read_bytes()))
        return tuple(Output(kind, text) for kind, text in stored["outputs"]), float(stored["cpu_s"])
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return None  # missing or damaged: the reference runs again


def _store(digest: str, outputs: Iterable[Output], cpu_s: float) -> None:
    row = {"cpu_s": cpu_s, "outputs": [[output.kind, output.text] for output in outputs]}
    try:
        with atomic_path(_path(digest)) as temporary:
            temporary.write_bytes(gzip.compress(json.dumps(row).encode(), mtime=0))
    except OSError:
        pass  # without a cache it only takes longer
