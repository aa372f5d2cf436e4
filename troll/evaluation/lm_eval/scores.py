"""Scores answers by the function of an lm-eval task, in worker processes with limits on time and memory.

Some of these functions parse and simplify what a model wrote. Their own timeouts use Python's signal
handlers, which cannot interrupt a single long operation on huge numbers, and they do not limit memory. So
each worker limits itself, and an answer that kills its worker is scored as wrong.
"""

import contextlib
import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from troll.common.errors import UserError
from troll.common.processor import available_cores
from troll.tasks.verifiers.worker import EndError, Worker

_START_S = 120.0  # enough to import lm-eval on a busy machine
_ANSWER_CPU_S = 30  # lm-eval's tasks allow themselves 5 s for each of several steps
_ANSWER_WALL_S = 600.0
_MEMORY_BYTES = 2 * 2**30  # on top of what the imports take
_PAIRS_FOR_A_PROCESS = 64  # starting a process takes about as long as scoring so many

Pair = tuple[Mapping[str, Any], str]
"""An lm-eval document and a response to it."""


@dataclass(frozen=True)
class Score:
    """lm-eval's score of one response."""

    metrics: Mapping[str, float]  # by name; all 0 if the function failed
    # why the function failed: ``timeout``, ``crash`` (of its process) or the exception; empty otherwise
    failure: str = ""


def scores(
    task_file: Path,
    metrics: Sequence[str],
    pairs: Sequence[Pair],
    *,
    workers: int | None = None,
    cpu_s: int = _ANSWER_CPU_S,
) -> list[Score]:
    """Scores pairs of document and response by a task's ``process_results``, in the order of the pairs.

    ``workers`` defaults to the number of cores; ``cpu_s`` limits the processor time for one response.
    """
    number = max(1, min(workers or available_cores(), len(pairs) // _PAIRS_FOR_A_PROCESS))
    waiting: list[Worker] = []

    def score(pair: Pair) -> Score:
        try:
            worker = waiting.pop()
        except IndexError:
            worker = _started(task_file, cpu_s)
        try:
            worker.send(pair, _ANSWER_WALL_S)
            answer = worker.answer()
        except (EndError, OSError) as end:
            worker.close()
            answer = {"failure": "timeout" if isinstance(end, EndError) and end.late else "crash"}
        else:
            waiting.append(worker)
        failure = answer.get("failure", "")
        return Score({name: 0.0 if failure else float(answer["metrics"][name]) for name in metrics}, failure)

    try:
        with ThreadPoolExecutor(number) as threads:
            return list(threads.map(score, pairs))
    finally:
        for worker in waiting:
            worker.close()


def _started(task_file: Path, cpu_s: int) -> Worker:
    try:
        worker = Worker(__name__, _START_S, str(task_file), str(cpu_s), HF_HUB_OFFLINE="1")
    except EndError:
        raise UserError("lm-eval: its process crashed or did not start in time") from None
    if worker.greeting != "ready":
        worker.close()
        raise UserError(f"lm-eval: {worker.greeting}")
    return worker


def _serve(task_file: Path, cpu_s: int) -> None:
    """Reads lines with a document and a response, and writes a line with the metrics for each."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that nothing a library prints is taken for an answer
    try:
        from lm_eval.tasks._yaml_loader import load_yaml

        process_results = load_yaml(task_file, resolve_func=True)["process_results"]
    except Exception as error:
        print(traceback.format_exception_only(error)[-1].strip(), file=output, flush=True)
        return
    with contextlib.suppress(ValueError, OSError):  # some systems have no /proc or no such limit
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
        except Exception as error:  # lm-eval itself would abort the whole evaluation
            answer = {"failure": f"{type(error).__name__}: {str(error)[:200]}"}
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(answer), file=output, flush=True)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), int(sys.argv[2]))
