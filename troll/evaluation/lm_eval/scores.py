"""Scores answers by the function that a task of lm-eval names, in processes that are bounded.

Some of these functions parse and simplify what a model wrote. Their own timeouts are signals that Python
handles, which cannot interrupt one long operation on huge numbers, and nothing bounds their memory; so each
process bounds its own, and an answer that ends it is scored as wrong.
"""

import contextlib
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from troll.common.errors import UserError
from troll.common.processor import available_cores

_START_S = 120.0  # importing lm-eval on a loaded machine
_ANSWER_CPU_S = 30  # lm-eval's tasks allow themselves 5 s for each of several steps
_ANSWER_WALL_S = 600.0
_LAST_S = 10.0  # for a process that has closed its output to end
_MEMORY_BYTES = 2 * 2**30  # on top of what the imports take
_PAIRS_FOR_A_PROCESS = 64  # starting one costs about as much as scoring so many

Pair = tuple[Mapping[str, Any], str]
"""A document of lm-eval and a response to it."""


@dataclass(frozen=True)
class Score:
    """What lm-eval says of one response."""

    metrics: Mapping[str, float]  # by name; all are 0 where the function failed
    # why it failed: ``timeout``, ``crash`` (of its process) or the exception; empty otherwise
    failure: str = ""


def scores(
    task_file: Path,
    metrics: Sequence[str],
    pairs: Sequence[Pair],
    *,
    workers: int | None = None,
    cpu_s: int = _ANSWER_CPU_S,
) -> list[Score]:
    """One score per pair of document and response by a task's ``process_results``.

    ``workers`` is by default the number of cores, ``cpu_s`` the processor time for one response.
    """
    number = max(1, min(workers or available_cores(), len(pairs) // _PAIRS_FOR_A_PROCESS))
    found: dict[int, Score] = {}
    with ThreadPoolExecutor(number) as pool:
        shards = [range(start, len(pairs), number) for start in range(number)]
        for part in pool.map(lambda shard: _shard(task_file, metrics, pairs, shard, cpu_s), shards):
            found.update(part)
    return [found[index] for index in range(len(pairs))]


def _shard(
    task_file: Path, metrics: Sequence[str], pairs: Sequence[Pair], indices: Sequence[int], cpu_s: int
) -> dict[int, Score]:
    """Scores some of the pairs, with another process after each that was ended by a response."""
    found: dict[int, Score] = {}
    left = list(indices)
    while left:
        for index, answer in zip(left, _answers(task_file, [pairs[i] for i in left], cpu_s), strict=False):
            failure = answer.get("failure", "")
            values = {name: 0.0 if failure else float(answer["metrics"][name]) for name in metrics}
            found[index] = Score(values, failure)
        left = [index for index in left if index not in found]
    return found


def _answers(task_file: Path, pairs: Sequence[Pair], cpu_s: int) -> Iterator[Mapping[str, Any]]:
    """One answer per pair, up to the first that ends the process, which is told as a failure."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(task_file), str(cpu_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    try:
        if _line(process.stdout, _START_S) != b"ready\n":
            process.kill()
            lines = process.stderr.read().decode("utf-8", "replace").strip().splitlines()
            raise UserError(f"lm-eval: {lines[-1] if lines else 'its process does not start'}")
        for document, text in pairs:
            line = b""
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps([document, text]).encode() + b"\n")
                process.stdin.flush()
                line = _line(process.stdout, _ANSWER_WALL_S)
            if not line.endswith(b"\n"):
                yield {"failure": _failure(process)}
                return
            yield json.loads(line)
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def _failure(process: "subprocess.Popen[bytes]") -> str:
    """Why a process gave no answer: its time was up, or it died of something else."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return "timeout" if process.wait(_LAST_S) == -signal.SIGPROF else "crash"
    return "timeout"


def _line(stream: Any, patience_s: float) -> bytes:
    """The next line; empty if none comes in time, or the stream ends."""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        return bytes(stream.readline()) if selector.select(patience_s) else b""


def _serve(task_file: Path, cpu_s: int) -> None:
    """Answers a line with a document and a response by one with its metrics, until the input ends."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whatever a library prints must not look like an answer
    from lm_eval.tasks._yaml_loader import load_yaml

    process_results = load_yaml(task_file, resolve_func=True)["process_results"]
    os.dup2(1, 2)  # so that warnings do not fill the pipe
    with contextlib.suppress(ValueError, OSError):  # some systems have no such limit
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * os.sysconf("SC_PAGE_SIZE") + _MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    print("ready", file=output, flush=True)
    for line in sys.stdin:
        document, text = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        try:
            found = {name: float(value) for name, value in process_results(document, [text]).items()}
            answer: dict[str, Any] = {"metrics": found}
        except Exception as error:  # lm-eval itself would stop here, and score nothing
            answer = {"failure": f"{type(error).__name__}: {str(error)[:200]}"}
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(answer), file=output, flush=True)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), int(sys.argv[2]))
