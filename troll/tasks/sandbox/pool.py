"""Runs model-written programs under bubblewrap, many per second, and returns what they did as plain data.

One bubblewrap process per batch holds a warm runner (``runner.py``) that forks a confined child for each
program. The layers of isolation, from the outside in:

* bubblewrap: new user, pid, network, ipc, uts and mount namespaces; no capabilities, except that the runner
  may create further namespaces; a fixed environment; read-only access to the system's libraries, the
  interpreter and numpy; no /proc; nothing writable;
* per child: a pid namespace (so that it cannot address any other process), a small /tmp of its own, limits of
  CPU time, wall time, memory, threads, open files and output, its own session, no capabilities, a seccomp
  filter that forbids new processes, signals to others, sockets, namespaces and inspection, and a Landlock
  domain that signals cannot leave (``syscall_filter.py``, ``thread_limit.py``);
* results: text, which a process with limits of its own decodes into known built-in types
  (``plain_data.py``). Expected outputs never enter the sandbox.

Where the kernel refuses pid namespaces, the filter and Landlock keep programs apart; tests show that each
alone suffices. Bugs of the kernel itself are not covered.
"""

import fcntl
import functools
import json
import os
import selectors
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, overload

from troll.common.errors import UserError
from troll.common.processor import available_cores
from troll.tasks.sandbox.bubblewrap import LostError, Sandbox, check_scratch
from troll.tasks.sandbox.program import Execution, Limits, Output, Program, Status

__all__ = ["Execution", "Limits", "Output", "Program", "Status", "run_batch", "sandbox_available"]

_GRACE_S = 10.0  # after a program's wall limit, before the runner itself counts as lost
_NUMPY_CPU_S = 0.5  # added to the limit of programs that mention numpy
# Additional time of a second try: in a virtual machine, first use of 500 MB of memory can take a second.
_TOUCHING_S = 3.0
_WALL_LIMIT = "wall limit"
# No new program starts while more results than this wait for their reduction.
_WAITING_BYTES = 64 * 2**20
_REASON_BYTES = 400  # more than the runner writes

T = TypeVar("T")


@overload
def run_batch(
    programs: Sequence[Program], limits: Limits | None = None, *, workers: int | None = None
) -> list[Execution]: ...
@overload
def run_batch(
    programs: Sequence[Program],
    limits: Limits | None = None,
    *,
    workers: int | None = None,
    reduce: Callable[[int, Execution], T],
) -> list[T]: ...
def run_batch(
    programs: Sequence[Program],
    limits: Limits | None = None,
    *,
    workers: int | None = None,
    reduce: Callable[[int, Execution], Any] | None = None,
) -> list[Any]:
    """Runs programs in one sandbox, several at a time.

    Args:
        programs: the programs to run.
        limits: limits of programs without their own; default ``Limits()``.
        workers: how many programs run at a time; default one more than this process's share of the cores, so
            that an endless loop does not stall the rest.
        reduce: turns (index of the program, execution) into what is returned for it, in a thread, while
            others run. So the outputs of a batch are never all in memory.

    Returns:
        One execution per program, or what ``reduce`` returned for it, in order. After all others, a program
        that lacked memory is tried again with more memory, and one that may have run out of time because of
        the machine (see `Limits`) with more time. If the sandbox is lost, the programs in flight are tried
        again, each alone in a fresh one; if that is lost, too, the status is ``crash``.
    """
    workers = workers or _share_of_cores() + 1
    own = [program.limits or limits or Limits() for program in programs]
    alone: list[int] = []
    hungry: list[int] = []
    late: list[int] = []
    tried: set[int] = set()  # no further try after the next
    with closing(_Results(reduce)) as results:

        def finish(index: int, execution: Execution) -> None:
            if execution.status == "infrastructure":
                alone.append(index)
            elif index in tried:
                results.add(index, execution)
            elif execution.status == "memory" and own[index].memory_bytes < own[index].spare_memory_bytes:
                hungry.append(index)
            elif _was_delayed(execution):
                late.append(index)
            else:
                results.add(index, execution)

        def run(numbers: Iterable[int], workers: int) -> None:
            pending = deque(numbers)
            while pending:
                alone.extend(_run_until_lost(programs, own, workers, pending, finish, results))

        run(range(len(programs)), workers)
        tried.update(hungry, late)
        for index in tried:
            own[index] = _longer(own[index])
        if hungry:
            room = _free_memory() // 2
            for index in hungry:
                most = min(own[index].spare_memory_bytes, room)
                own[index] = replace(own[index], memory_bytes=max(own[index].memory_bytes, most))
            fitting = room // max(own[index].memory_bytes for index in hungry)
            run(hungry, max(1, min(workers, fitting)))
        run(late, workers)
        for index in alone:
            if _run_until_lost(programs, own, 1, deque([index]), results.add, results):
                results.add(index, Execution("crash", detail="took the sandbox down"))
        return [results.found[index].result() for index in range(len(programs))]


def _share_of_cores() -> int:
    """Returns the cores for each process of a run on this machine: those of several GPUs judge at once.

    More programs than cores would reach their limits of wall time.
    """
    return max(1, available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _was_delayed(execution: Execution) -> bool:
    """Tells whether a timeout may be the machine's fault: by wall time, or mostly the system's CPU time."""
    return execution.status == "timeout" and (
        execution.detail == _WALL_LIMIT or execution.user_s < execution.cpu_s / 2
    )


def _longer(limits: Limits) -> Limits:
    """Returns the time limits of a second try."""
    return replace(limits, cpu_s=limits.cpu_s + _TOUCHING_S, wall_s=limits.wall_s + 2 * _TOUCHING_S)


def _free_memory() -> int:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 1024


class _Results:
    """Collects executions, or what ``reduce`` returns for them in a thread of its own."""

    def __init__(self, reduce: Callable[[int, Execution], Any] | None) -> None:
        self.found: dict[int, Future[Any]] = {}
        self._reduce = reduce or (lambda _, execution: execution)
        self._thread = ThreadPoolExecutor(1)
        self._waiting: dict[Future[Any], int] = {}

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def add(self, index: int, execution: Execution) -> None:
        size = len(execution.stdout) + sum(len(output.text) for output in execution.outputs)
        self.found[index] = future = self._thread.submit(self._reduce, index, execution)
        self._waiting[future] = size

    def full(self) -> bool:
        """Tells whether too many results wait for their reduction."""
        self._waiting = {future: size for future, size in self._waiting.items() if not future.done()}
        return sum(self._waiting.values()) > _WAITING_BYTES

    def wait_for_one(self) -> None:
        next(iter(self._waiting)).exception()


@functools.cache
def sandbox_available() -> tuple[bool, str]:
    """Tells whether programs can be judged, by us and by evalplus, and otherwise the reason in one line."""
    try:
        (execution,) = run_batch([Program("def f(x):\n    return x + 1\n", "f", "[[1]]")], Limits(10, 30))
        check_scratch()
    except UserError as error:
        return False, str(error)
    if execution.status != "finished":
        return False, f"the sandbox does not run programs: {execution.status} {execution.detail}"
    return True, ""


@dataclass
class _Active:
    pipe: int
    give_up: float
    output_bytes: int
    data: bytearray = field(default_factory=bytearray)
    overflow: bool = False

    def close(self) -> None:
        if self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1


def _run_until_lost(
    programs: Sequence[Program],
    limits: Sequence[Limits],
    workers: int,
    pending: deque[int],
    finish: Callable[[int, Execution], None],
    results: _Results,
) -> list[int]:
    """Runs the pending programs; returns those in flight if the sandbox was lost, else an empty list."""
    active: dict[int, _Active] = {}
    shared: dict[int, int] = {}  # id of an inputs string -> sealed memory file
    sandbox = Sandbox()
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(sandbox, selectors.EVENT_READ, None)
            while pending or active:
                while pending and len(active) < workers:
                    if results.full():
                        if active:
                            break
                        results.wait_for_one()
                        continue
                    index = pending.popleft()
                    active[index] = _Active(-1, 0.0, 0)  # in flight, if the sandbox is lost in `_submit`
                    active[index] = _submit(sandbox, index, programs[index], limits[index], shared)
                    selector.register(active[index].pipe, selectors.EVENT_READ, index)
                now = time.monotonic()
                timeout = max(0.0, min(entry.give_up for entry in active.values()) - now)
                ready = {key.data for key, _ in selector.select(timeout)}
                if not ready and time.monotonic() > now + timeout:
                    raise LostError("the runner does not answer")
                for index in ready - {None}:
                    if not _drain(active[index]):
                        selector.unregister(active[index].pipe)
                        active[index].close()
                if None in ready:
                    report = sandbox.receive()
                    entry = active.pop(report["id"])
                    if entry.pipe >= 0:
                        _drain(entry)
                        selector.unregister(entry.pipe)
                        entry.close()
                    finish(report["id"], _judge_end(programs[report["id"]], entry, report))
    except LostError:
        pass
    finally:
        sandbox.close()
        for entry in active.values():
            entry.close()
        for descriptor in shared.values():
            os.close(descriptor)
    return list(active)


def _submit(
    sandbox: Sandbox, index: int, program: Program, limits: Limits, shared: dict[int, int]
) -> _Active:
    script = program.entry_point is None
    names = ("entry_point", "source", "prompt", "after", "as_written")
    what = {name: getattr(program, name) for name in names}
    text = json.dumps({**what, "name": program.name or program.entry_point})
    source = _sealed_file(text.encode("ascii"))
    # Only inputs of functions are shared: reading standard input moves the position in a script's file.
    if script:
        inputs = _sealed_file(program.stdin.encode("utf-8", "surrogatepass"))
    elif (known := shared.get(id(program.inputs))) is not None:
        inputs = known
    else:
        inputs = shared[id(program.inputs)] = _sealed_file(program.inputs.encode("ascii"))
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    message = {
        "id": index,
        "cpu_s": limits.cpu_s + (_NUMPY_CPU_S if "numpy" in text else 0),
        "wall_s": limits.wall_s,
        "memory_bytes": limits.memory_bytes,
        "script": script,
    }
    try:
        sandbox.send(message, [source, inputs, writing])
    except LostError:
        os.close(reading)
        raise
    finally:
        os.close(writing)
        os.close(source)
        if script:
            os.close(inputs)
    return _Active(reading, time.monotonic() + limits.wall_s + _GRACE_S, limits.output_bytes)


def _sealed_file(content: bytes) -> int:
    """Returns the descriptor of an immutable file in memory, positioned at its start."""
    descriptor = os.memfd_create("troll", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def _drain(entry: _Active) -> bool:
    """Reads what is available; returns False at the end of the pipe or if there is too much output."""
    while True:
        try:
            data = os.read(entry.pipe, 1 << 16)
        except BlockingIOError:
            return True
        if not data:
            return False
        entry.data += data
        if len(entry.data) > entry.output_bytes:
            entry.overflow = True
            return False


def _judge_end(program: Program, entry: _Active, report: dict[str, Any]) -> Execution:
    """Returns the execution that the runner's report and the child's text describe."""
    end = functools.partial(
        Execution,
        cpu_s=float(report.get("cpu_s", 0.0)),
        user_s=float(report.get("user_s", 0.0)),
        wall_s=float(report.get("wall_s", 0.0)),
    )
    ready, newline, body = bytes(entry.data).partition(b"\n")
    if "failed" in report or not ready.startswith(b"ready ") or not newline:
        detail = str(report.get("failed") or ready.decode("ascii", "replace")[:200])
        return end("infrastructure", detail=detail)
    ended: tuple[Status, str] | None = None
    if entry.overflow:
        ended = "rejected", "too much output"
    elif report["killed"] == "threads":
        ended = "crash", "too many threads"
    elif report["killed"]:
        ended = "timeout", _WALL_LIMIT if report["killed"] == "wall" else f"{report['killed']} limit"
    elif report["signal"]:
        ended = "crash", f"signal {report['signal']}"
    if program.entry_point is None:
        if ended is None and report["exit"]:
            ended = ("memory", "MemoryError") if report["exit"] == 71 else ("crash", f"exit {report['exit']}")
        status, detail = ended or ("finished", "")
        return end(status, stdout=body.decode("utf-8", "replace"), detail=detail)
    outputs = _parse_outputs(body, int(ready[6:]))
    if outputs is None:
        return end("rejected", detail="malformed results")
    if ended is None and outputs and outputs[-1].kind == "raised":
        name = outputs[-1].text
        ended = ("memory" if name == "MemoryError" else "crash"), name
    if ended is None and (report["exit"] or len(outputs) < int(ready[6:])):
        ended = "crash", f"exit {report['exit']}"
    status, detail = ended or ("finished", "")
    return end(status, outputs, detail=detail)


def _parse_outputs(body: bytes, calls: int) -> tuple[Output, ...] | None:
    """Splits the lines of results, leaving values encoded; returns None for text that no runner writes."""
    outputs = []
    *lines, _unfinished = body.split(b"\n", calls + 1)
    if len(lines) > calls:
        return None
    for line in lines:
        try:
            text = line.decode("ascii")
            if text.startswith('["value",') and text.endswith("]"):
                outputs.append(Output("value", text[len('["value",') : -1]))
                continue
            kind, reason = json.loads(text if len(text) <= _REASON_BYTES else "")
        except (ValueError, TypeError, RecursionError):
            return None
        if kind not in ("opaque", "raised") or not isinstance(reason, str):
            return None
        outputs.append(Output(kind, reason))
    return tuple(outputs)
