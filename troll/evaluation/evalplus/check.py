"""Runs evalplus' own evaluator on samples, in its own sandbox.

Its verdicts are compared with those of `troll.tasks.verifiers.code`. evalplus loads a candidate's objects
into the process that holds the expected outputs, so it can be cheated; a cheat shows as a disagreement.
"""

import functools
import importlib.metadata
import json
import os
import select
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from troll.common.errors import UserError
from troll.common.processor import available_cores
from troll.tasks.sandbox import syscall_filter
from troll.tasks.sandbox.bubblewrap import base_interpreter, scratch_command

Extraction = Literal["none", "troll", "as_written", "sanitizer", "evalplus"]

_INSIDE = ("extraction.py", "syscall_filter.py", "thread_limit.py")
_START_S = 60.0
# evalplus allows a program 60 s for base and 60 s for plus; computing the expected outputs comes on top
_SAMPLE_S = 300.0
_LINE_BYTES = 4096  # a verdict is shorter
_PROBLEM_FIELDS = ("prompt", "entry_point", "canonical_solution", "base_input", "plus_input", "atol")


@dataclass(frozen=True)
class EvalplusVerdict:
    """evalplus' verdict on one sample: base passed, base and plus passed; None if its evaluator died."""

    base: bool | None
    passed: bool | None


@functools.cache
def evalplus_version() -> str:
    """Returns the version of the installed evalplus."""
    try:
        return importlib.metadata.version("evalplus")
    except importlib.metadata.PackageNotFoundError:
        raise UserError("evalplus: not installed; install it: pip install 'troll[evaluate]'") from None


def evalplus_verdicts(
    dataset: str,
    records: Mapping[str, Mapping[str, Any]],
    samples: Sequence[tuple[str, str]],
    *,
    extraction: Extraction = "none",
    workers: int | None = None,
) -> list[EvalplusVerdict]:
    """Runs evalplus' ``untrusted_check`` on samples.

    Args:
        dataset: ``humaneval`` or ``mbpp``: selects evalplus' special oracles.
        records: problems in evalplus' format by task_id.
        samples: (task_id, text).
        extraction: how to get the program from a text: ``none``: it is the whole text; ``troll``:
            `troll.tasks.sandbox.extraction` finds it; ``as_written``: that takes the completion as it is;
            ``sanitizer``: evalplus' sanitizer finds it; ``evalplus``: so it does, but in what evalplus takes
            from a completion: a function that is defined anew, as in chat answers, or the prompt and the
            completion up to evalplus' stop strings. All run inside the sandbox, confined like the programs.
        workers: number of parallel sandboxes; default the number of cores.
    """
    evalplus_version()
    workers = min(workers or available_cores(), max(1, len(samples) // 16))
    by_problem: dict[str, list[int]] = {}
    for index, (task_id, _) in enumerate(samples):
        by_problem.setdefault(task_id, []).append(index)
    # A problem's samples share an evaluator, which computes the expected outputs only once.
    shards = [
        [index for task_id in list(by_problem)[start::workers] for index in by_problem[task_id]]
        for start in range(workers)
    ]
    problems = {
        task_id: {"task_id": task_id, **{field: records[task_id].get(field, 0) for field in _PROBLEM_FIELDS}}
        for task_id in by_problem
    }
    job = {"dataset": dataset, "problems": problems, "samples": samples, "extraction": extraction}
    verdicts: dict[int, EvalplusVerdict] = {}
    with ThreadPoolExecutor(workers) as pool:
        for part in pool.map(lambda shard: _check_shard(job, shard), shards):
            verdicts.update(part)
    return [verdicts[index] for index in range(len(samples))]


def _check_shard(job: Mapping[str, Any], indices: Sequence[int]) -> dict[int, EvalplusVerdict]:
    verdicts: dict[int, EvalplusVerdict] = {}
    left = list(indices)
    while left:
        done = _run_once({**job, "indices": left})
        verdicts.update(done)
        left = [index for index in left if index not in verdicts]
        if left:
            # The first sample without a verdict killed the evaluator, or exceeded its time.
            verdicts[left.pop(0)] = EvalplusVerdict(None, None)
    return verdicts


def _run_once(job: Mapping[str, Any]) -> dict[int, EvalplusVerdict]:
    """Runs an evaluator until it ends, dies or is silent for too long."""
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryFile() as errors:
        path = Path(directory, "job.json")
        path.write_text(json.dumps(job), encoding="utf-8")
        process = subprocess.Popen(
            _command(path), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
        )
        assert process.stdout is not None
        started = False
        verdicts: dict[int, EvalplusVerdict] = {}
        try:
            for line in _lines(process.stdout.fileno()):
                row = json.loads(line)
                started = True
                if "index" in row:
                    verdicts[row["index"]] = EvalplusVerdict(row["base"], row["plus"])
        except (ValueError, KeyError, TypeError):
            pass  # a candidate wrote into the evaluator's report: stop reading it
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        if not started:
            errors.seek(0)
            lines = errors.read().decode("utf-8", "replace").strip().splitlines()
            raise UserError(f"evalplus: did not start in the sandbox: {lines[-1] if lines else 'no answer'}")
    wanted = set(job["indices"])
    return {index: verdict for index, verdict in verdicts.items() if index in wanted}


def _command(job: Path) -> list[str]:
    libraries = list(dict.fromkeys(Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")))
    filters = {name: Path(syscall_filter.__file__).with_name(name) for name in _INSIDE}
    files = {"runner.py": Path(__file__).with_name("runner.py"), **filters, "job.json": job}
    command = scratch_command(libraries, {f"/troll/{name}": path for name, path in files.items()})
    command += ["--setenv", "PYTHONPATH", os.pathsep.join(map(str, libraries))]
    return [*command, base_interpreter(), "-sSPB", "/troll/runner.py", "/troll/job.json"]


def _lines(descriptor: int) -> Iterator[bytes]:
    """Yields lines of a pipe, until it ends or the next line takes too long."""
    buffer = bytearray()
    patience = _START_S
    while select.select([descriptor], [], [], patience)[0]:
        data = os.read(descriptor, 1 << 16)
        if not data:
            return
        buffer += data
        *lines, rest = bytes(buffer).split(b"\n")
        buffer[:] = rest
        yield from lines
        if len(rest) > _LINE_BYTES:
            return
        patience = _SAMPLE_S
