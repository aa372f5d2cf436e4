"""The process inside the sandbox: forks one confined child per program and reports how each ended.

It runs as pid 1 of its own pid namespace under bubblewrap, so no candidate can signal it and everything
dies with it. It never reads what a candidate is or says: the program text, the inputs and the pipe for
the results come from outside as file descriptors, which only the child opens. So no child inherits
another candidate's text (a program that searches the interpreter's memory for a sibling's solution finds
none), and results cannot be forged.

Protocol on the control socket (SOCK_SEQPACKET, JSON): in comes ``{"id", "cpu_s", "wall_s",
"memory_bytes", "script"}`` with the descriptors (program, inputs, result pipe); out goes ``{"ready":
true}`` once and ``{"id", "exit", "signal", "killed", "cpu_s", "wall_s"}`` per program. Into the result
pipe a child writes the line ``ready N`` (N calls to come) once it is confined (its absence means the
sandbox failed, not the candidate), then its results. Standard library only.
"""

import array
import gc
import json
import os
import random
import resource
import select
import signal
import socket
import sys
import time
import types

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - keep the start short

import plain_data  # type: ignore[import-not-found]
import syscall_filter  # type: ignore[import-not-found]

# What solutions import most, loaded once and inherited by every child.
_WARM = "bisect collections copy datetime fractions functools heapq itertools math re string typing"
for _name in _WARM.split():
    __import__(_name)

_PROGRAM, _INPUTS, _RESULT = 3, 4, 5  # descriptors of a child


class _Child:
    def __init__(self, message: dict[str, float], pid: int) -> None:
        self.id = message["id"]
        self.cpu_limit = message["cpu_s"]
        self.pid = pid
        self.started = time.monotonic()
        self.deadline = self.started + message["wall_s"]
        self.killed: str | None = None

    def cpu(self) -> float:
        # The clock id of another process' CPU time, as clock_getcpuclockid(3) forms it; no /proc needed.
        try:
            return time.clock_gettime((~self.pid << 3) | 2)
        except OSError:
            return 0.0

    def check(self) -> float:
        """Kills the child when a limit is passed, else returns the seconds in which none can be."""
        left = self.deadline - time.monotonic()
        cpu_left = self.cpu_limit - self.cpu()
        if self.killed is None and (left <= 0 or cpu_left <= 0):
            self.killed = "wall" if left <= 0 else "cpu"
            os.kill(self.pid, signal.SIGKILL)
        return max(0.001, min(left, cpu_left)) if self.killed is None else 1.0


def main() -> None:
    """Serves programs until the control socket closes."""
    control = socket.socket(fileno=int(sys.argv[1]))
    syscall_filter.hide_from_others()
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    children: dict[int, _Child] = {}
    poller = select.poll()
    poller.register(control, select.POLLIN)
    poller.register(wake_read, select.POLLIN)
    gc.collect()
    gc.freeze()
    control.send(b'{"ready":true}')
    while True:
        wait = min((child.check() for child in children.values()), default=None)
        events = dict(poller.poll(None if wait is None else wait * 1000 + 1))
        if wake_read in events:
            os.read(wake_read, 4096)
        _reap(children, control)
        if control.fileno() in events:
            message, descriptors = _receive(control)
            if message is None:
                return
            try:
                pid = os.fork()
            except OSError as error:
                pid = -1
                control.send(json.dumps({"id": message["id"], "failed": str(error)}).encode())
            if pid == 0:
                _child(message, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            if pid > 0:
                children[pid] = _Child(message, pid)


def _receive(control: socket.socket) -> tuple[dict[str, float] | None, list[int]]:
    descriptors = array.array("i")
    data, ancillary, _, _ = control.recvmsg(4096, socket.CMSG_SPACE(3 * descriptors.itemsize))
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(payload[: len(payload) - len(payload) % descriptors.itemsize])
    return (json.loads(data) if data else None), list(descriptors)


def _reap(children: dict[int, _Child], control: socket.socket) -> None:
    while children:
        pid, status, usage = os.wait4(-1, os.WNOHANG)
        if pid == 0:
            return
        child = children.pop(pid, None)
        if child is None:
            continue
        code = os.waitstatus_to_exitcode(status)
        report = {
            "id": child.id,
            "exit": max(code, 0),
            "signal": max(-code, 0),
            "killed": child.killed,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "wall_s": time.monotonic() - child.started,
        }
        control.send(json.dumps(report).encode())


def _child(message: dict[str, float], descriptors: list[int]) -> None:
    """Becomes the candidate; never returns."""
    leave = os._exit
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        # First out of the way of the numbers they shall get.
        moved = [os.dup2(descriptor, 100 + i) for i, descriptor in enumerate(descriptors)]
        for target, descriptor in zip((_PROGRAM, _INPUTS, _RESULT), moved, strict=True):
            os.dup2(descriptor, target)
        null = os.open("/dev/null", os.O_RDWR)
        script = bool(message["script"])
        os.dup2(_INPUTS if script else null, 0)
        os.dup2(_RESULT if script else null, 1)
        os.dup2(null, 2)
        os.closerange(_RESULT + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        entry_point, _, source = _read(_PROGRAM).decode("utf-8", "surrogatepass").partition("\n")
        inputs = [] if script else plain_data.decode(_read(_INPUTS).decode("ascii"))
        os.close(_PROGRAM)
        if not script:
            os.close(_INPUTS)
        random.seed(0)  # a solution that draws numbers is judged alike every time
        _limit(message)
        syscall_filter.confine()
        os.write(_RESULT, b"ready %d\n" % len(inputs))
    except BaseException as error:
        os.write(_RESULT, repr(error).encode("ascii", "replace"))
        leave(70)
    try:
        if script:
            _run_script(source)
        else:
            _run_function(source, entry_point, inputs)
    finally:
        leave(72)


def _limit(message: dict[str, float]) -> None:
    seconds = int(message["cpu_s"]) + 2  # the runner measures finely; this is its safety net
    memory = int(message["memory_bytes"])
    for kind, value in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        resource.setrlimit(kind, (value, value))


def _read(descriptor: int) -> bytes:
    # Positioned: the file description may be shared with other children.
    size = os.fstat(descriptor).st_size
    parts: list[bytes] = []
    offset = 0
    while offset < size:
        part = os.pread(descriptor, size - offset, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def _run_function(source: str, entry_point: str, inputs: list[list[object]]) -> None:
    """Calls the entry point once per input; writes one line per result and stops at the first exception."""
    # Names bound before the candidate runs; what it does to modules afterwards only changes its own answers.
    write, encode, dumps, leave = os.write, plain_data.encode, json.dumps, os._exit
    module = types.ModuleType("candidate")
    sys.modules["candidate"] = module
    try:
        exec(compile(source, "<candidate>", "exec", dont_inherit=True), module.__dict__)
        function = module.__dict__[entry_point]
        for arguments in inputs:
            value = function(*arguments)
            try:
                line = '["value",' + encode(value) + "]\n"
            except plain_data.NotPlainError as error:
                line = dumps(["opaque", str(error)]) + "\n"
            data = line.encode("ascii")
            while data:
                data = data[write(_RESULT, data) :]
    except BaseException as error:
        write(_RESULT, dumps(["raised", type(error).__name__[:80]]).encode() + b"\n")
        leave(1)
    leave(0)


def _run_script(source: str) -> None:
    """Runs a whole program whose standard input and output are the test."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    code = 0
    try:
        exec(compile(source, "<candidate>", "exec", dont_inherit=True), module.__dict__)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except MemoryError:
        code = 71
    except BaseException:
        code = 1
    try:
        sys.stdout.flush()
    except BaseException:
        code = code or 1
    os._exit(code & 255)


main()
