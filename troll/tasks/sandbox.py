"""Runs programs written by models under bubblewrap, many per second, and returns what they did as plain data.

One bubblewrap process per batch holds a warmed runner (``sandbox_runner.py``) that forks a confined child for
each program. The walls, from the outside in:

* bubblewrap: new user, pid, network, ipc, uts and mount namespaces, no capabilities, a clean environment, a
  read-only view of the system's libraries and the interpreter, no /proc, nothing writable anywhere;
* per child: limits of CPU, wall time, memory, open files and output, its own session, and a seccomp filter
  that forbids new processes, signals to others, sockets, namespaces and inspection (``syscall_filter.py``);
* what comes back is text, decoded into known built-in types (``plain_data.py``). Expected outputs never
  go in.

What it does not cover: a bug of the kernel's own; threads are bounded by memory only.
"""

import fcntl
import functools
import json
import os
import selectors
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from troll.errors import UserError
from troll.tasks import plain_data
from troll.tasks.bubblewrap import LostError, Sandbox

_GRACE_S = 10.0  # beyond a program's wall limit, after which the runner itself counts as lost

Status = Literal["finished", "timeout", "memory", "crash", "rejected", "infrastructure"]


@dataclass(frozen=True)
class Limits:
    """Limits of one program.

    Attributes:
        cpu_s: CPU seconds, measured by the runner; independent of how loaded the machine is.
        wall_s: seconds of wall time, for programs that sleep.
        memory_bytes: address space.
        output_bytes: encoded results or standard output; more is rejected.
    """

    cpu_s: float = 1.0
    wall_s: float = 2.0
    memory_bytes: int = 512 * 2**20
    output_bytes: int = 4 * 2**20


@dataclass(frozen=True)
class Program:
    """A program to run.

    Attributes:
        source: Python source text.
        entry_point: the function to call once per input; None runs the source as a script.
        inputs: ``plain_data.encode`` of a list of argument lists. Programs that share one string share its
            memory.
        stdin: standard input of a script.
        limits: of this program, in place of the batch's.
    """

    source: str
    entry_point: str | None = None
    inputs: str = "[]"
    stdin: str = ""
    limits: Limits | None = None


@dataclass(frozen=True)
class Output:
    """The result of one call.

    Attributes:
        kind: ``value`` (plain data), ``opaque`` (a value of a forbidden type) or ``raised``.
        text: the encoded value, the reason or the exception's type name.
    """

    kind: Literal["value", "opaque", "raised"]
    text: str

    @functools.cached_property
    def value(self) -> Any:
        """The decoded value.

        Raises:
            plain_data.NotPlainError: the text is no encoded value.
        """
        return plain_data.decode(self.text)


@dataclass(frozen=True)
class Execution:
    """What a program did.

    Attributes:
        status: ``finished`` (every call returned, or a script exited with 0), ``timeout``, ``memory``,
            ``crash`` (an exception, a signal or an early exit), ``rejected`` (malformed or too much
            output), or ``infrastructure``: the sandbox failed, which says nothing about the program.
        outputs: one per call that ended, in input order, the last possibly ``raised``.
        stdout: standard output of a script.
        detail: a few words on the cause.
        cpu_s: CPU seconds used.
        wall_s: wall seconds from fork to exit.
    """

    status: Status
    outputs: tuple[Output, ...] = ()
    stdout: str = ""
    detail: str = ""
    cpu_s: float = 0.0
    wall_s: float = 0.0


def run_batch(
    programs: Sequence[Program], limits: Limits | None = None, *, workers: int | None = None
) -> list[Execution]:
    """Runs programs in one sandbox, several at a time.

    Args:
        programs: what to run.
        limits: of programs that name none of their own; the defaults of ``Limits`` if not given.
        workers: programs in flight; default one more than the cores, so that a loop does not stall the rest.

    Returns:
        One execution per program, in order. If the sandbox is lost, the programs in flight are tried again,
        each alone in a fresh one; losing that too is the program's ``crash``.

    Raises:
        UserError: bubblewrap is missing or cannot start.
    """
    limits = limits or Limits()
    workers = workers or len(os.sched_getaffinity(0)) + 1
    results: dict[int, Execution] = {}
    pending = deque(range(len(programs)))
    alone: list[int] = []
    while pending:
        in_flight = _run_until_lost(programs, limits, workers, pending, results)
        alone.extend(in_flight)
    alone.extend(index for index, result in results.items() if result.status == "infrastructure")
    for index in alone:
        results.pop(index, None)
        if _run_until_lost(programs, limits, 1, deque([index]), results):
            results[index] = Execution("crash", detail="took the sandbox down")
    return [results[index] for index in range(len(programs))]


@functools.cache
def sandbox_available() -> tuple[bool, str]:
    """Tells whether programs can be run, by running one; otherwise the reason, in one line."""
    try:
        (execution,) = run_batch([Program("def f(x):\n    return x + 1\n", "f", "[[1]]")], Limits(10, 30))
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
    limits: Limits,
    workers: int,
    pending: deque[int],
    results: dict[int, Execution],
) -> list[int]:
    """Runs the pending programs; returns those that were in flight when the sandbox was lost, if it was."""
    active: dict[int, _Active] = {}
    shared: dict[int, int] = {}  # id of an inputs string -> sealed memory file
    sandbox = Sandbox()
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(sandbox, selectors.EVENT_READ, None)
            while pending or active:
                while pending and len(active) < workers:
                    index = pending.popleft()
                    active[index] = _Active(-1, 0.0, 0)  # in flight from here on, should the sandbox be lost
                    active[index] = _submit(sandbox, index, programs[index], limits, shared)
                    selector.register(active[index].pipe, selectors.EVENT_READ, index)
                now = time.monotonic()
                timeout = max(0.0, min(entry.give_up for entry in active.values()) - now)
                events = selector.select(timeout)
                if not events and time.monotonic() > now + timeout:
                    raise LostError("the runner does not answer")
                for key, _ in events:
                    if key.data is None:
                        continue
                    entry = active[key.data]
                    if not _drain(entry):
                        selector.unregister(key.fd)
                        entry.close()
                if any(key.data is None for key, _ in events):
                    report = sandbox.receive()
                    entry = active[report["id"]]
                    if entry.pipe >= 0:
                        _drain(entry)
                        selector.unregister(entry.pipe)
                        entry.close()
                    results[report["id"]] = _judge_end(programs[report["id"]], entry, report)
                    del active[report["id"]]
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
    limits = program.limits or limits
    script = program.entry_point is None
    text = f"{program.entry_point or ''}\n{program.source}".encode("utf-8", "surrogatepass")
    source = _sealed_file(text)
    # A script's standard input has a position of its own, so only inputs of functions are shared.
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
        "cpu_s": limits.cpu_s,
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
    """A file in memory that nobody can change any more, positioned at its start."""
    descriptor = os.memfd_create("troll", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def _drain(entry: _Active) -> bool:
    """Reads what is there; False at the end of the pipe or of our patience."""
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
    """Turns the runner's report and the child's text into an execution."""
    end = functools.partial(
        Execution, cpu_s=float(report.get("cpu_s", 0.0)), wall_s=float(report.get("wall_s", 0.0))
    )
    ready, newline, body = bytes(entry.data).partition(b"\n")
    if "failed" in report or not ready.startswith(b"ready ") or not newline:
        detail = str(report.get("failed") or ready.decode("ascii", "replace")[:200])
        return end("infrastructure", detail=detail)
    ended: tuple[Status, str] | None = None
    if entry.overflow:
        ended = "rejected", "too much output"
    elif report["killed"]:
        ended = "timeout", f"{report['killed']} limit"
    elif report["signal"]:
        ended = "crash", f"signal {report['signal']}"
    if program.entry_point is None:
        if ended is None and report["exit"]:
            ended = ("memory", "MemoryError") if report["exit"] == 71 else ("crash", f"exit {report['exit']}")
        status, detail = ended or ("finished", "")
        return end(status, stdout=body.decode("utf-8", "replace"), detail=detail)
    outputs = _parse_outputs(body)
    if outputs is None:
        return end("rejected", detail="malformed results")
    if ended is None and outputs and outputs[-1].kind == "raised":
        name = outputs[-1].text
        ended = ("memory" if name == "MemoryError" else "crash"), name
    if ended is None and (report["exit"] or len(outputs) < int(ready[6:])):
        ended = "crash", f"exit {report['exit']}"
    if len(outputs) > int(ready[6:]):
        return end("rejected", detail="malformed results")
    status, detail = ended or ("finished", "")
    return end(status, outputs, detail=detail)


def _parse_outputs(body: bytes) -> tuple[Output, ...] | None:
    """Splits the lines of results, leaving values encoded; None for what no runner wrote."""
    outputs = []
    *lines, _unfinished = body.split(b"\n")
    for line in lines:
        try:
            text = line.decode("ascii")
            if text.startswith('["value",') and text.endswith("]"):
                outputs.append(Output("value", text[len('["value",') : -1]))
                continue
            kind, reason = json.loads(text)
        except (ValueError, TypeError, RecursionError):
            return None
        if kind not in ("opaque", "raised") or not isinstance(reason, str):
            return None
        outputs.append(Output(kind, reason))
    return tuple(outputs)
