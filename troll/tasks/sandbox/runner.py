"""The process inside the sandbox: forks one confined child per program and reports how each ended.

It runs as pid 1 of its own pid namespace under bubblewrap, so that everything dies with it, and gives each
child a pid namespace of its own, in which no other process has a pid. It never reads a candidate's text or
results: the program, the inputs and the pipe for the results come from outside as file descriptors, which
only the child opens. So no child inherits another candidate's text (a program that searches the interpreter's
memory for a sibling's solution finds none), and results cannot be forged.

Protocol on the control socket (SOCK_SEQPACKET, JSON): it receives ``{"id", "cpu_s", "wall_s", "memory_bytes",
"script"}`` with the descriptors (program, inputs, result pipe). It sends ``{"ready": true, "pid_namespaces":
true or false}`` once, and ``{"id", "exit", "signal", "killed", "cpu_s", "user_s", "wall_s"}``, or ``{"id",
"failed"}`` if it cannot fork, per program. Once confined, a child writes the line ``ready N`` (N calls to
come) into the result pipe, then its results; without that line the sandbox failed, not the candidate.
Standard library only.
"""

import ctypes
import gc
import json
import os
import random
import re
import resource
import select
import signal
import socket
import sys
import time
import types
from _thread import stack_size

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - keep the start short

import extraction  # type: ignore[import-not-found]
import plain_data  # type: ignore[import-not-found]
import syscall_filter  # type: ignore[import-not-found]
import thread_limit  # type: ignore[import-not-found]

# Common imports of solutions, loaded once and inherited by every child.
_WARM = "bisect collections copy datetime fractions functools heapq itertools math re string typing"
for _name in _WARM.split():
    __import__(_name)

_PROGRAM, _INPUTS, _RESULT, _LISTENERS = 3, 4, 5, 6  # descriptors of a child

sys.path.append("/troll/site")  # numpy, where it is installed

_CLONE_NEWPID, _CLONE_NEWNS = 0x20000000, 0x00020000
_MS_NOSUID_NODEV_NOEXEC = 2 | 4 | 8
# Only programs that mention files get a directory of their own, which costs a millisecond.
_FILES = re.compile(r"\b(?:open|tempfile|tmp|pathlib|shutil|sqlite3|shelve|dbm|mkdir|write_text|chdir)\b")
# Only programs that mention threads may start any, since the runner has to count them.
_THREADS = re.compile(r"thread|concurrent|asyncio|multiprocessing")
_FILE_BYTES = 16 * 2**20

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), what)


class _Forker:
    """Forks children into pid namespaces of their own if the kernel allows it, else into the runner's."""

    def __init__(self) -> None:
        self.namespaces = False
        try:
            self._own = os.pidfd_open(os.getpid())
            self._return()  # tried first: if this is refused, a new namespace could not be left again
            self._enter_new()
            self._return()
            self.namespaces = True
        except (OSError, AttributeError):
            pass

    def _enter_new(self) -> None:
        _checked(_libc.unshare(_CLONE_NEWPID), "unshare")

    def _return(self) -> None:
        # Otherwise every later child would be born into the namespace of the first.
        _checked(_libc.setns(self._own, _CLONE_NEWPID), "setns")

    def fork(self) -> int:
        """Forks like ``os.fork``, into a new pid namespace if possible."""
        if not self.namespaces:
            return os.fork()
        self._enter_new()
        try:
            pid = os.fork()
        except OSError:
            self._return()
            raise
        if pid:
            self._return()
        return pid


class _Child:
    def __init__(self, message: dict[str, float], pid: int) -> None:
        self.id = message["id"]
        self.cpu_limit = message["cpu_s"]
        self.pid = pid
        self.started = time.monotonic()
        self.deadline = self.started + message["wall_s"]
        self.killed: str | None = None
        self.threads: thread_limit.ThreadCount | None = None

    def cpu(self) -> float:
        # The id of the child's CPU clock, computed as clock_getcpuclockid(3) does, which needs no /proc.
        try:
            return time.clock_gettime((~self.pid << 3) | 2)
        except OSError:
            return 0.0

    def kill(self, reason: str) -> None:
        self.killed = self.killed or reason
        os.kill(self.pid, signal.SIGKILL)

    def check(self) -> float:
        """Kills the child if it has passed a limit; returns the seconds until the next check is due."""
        left = self.deadline - time.monotonic()
        cpu_left = self.cpu_limit - self.cpu()
        if self.killed is None and (left <= 0 or cpu_left <= 0):
            self.kill("wall" if left <= 0 else "cpu")
        return max(0.001, min(left, cpu_left)) if self.killed is None else 1.0


class _Runner:
    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.children: dict[int, _Child] = {}
        self.listening: dict[int, _Child] = {}  # by descriptor of the listener
        self.poller = select.poll()
        self.listeners, self.to_listeners = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.forker = _Forker()

    def serve(self) -> None:
        """Serves programs until the control socket closes."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(wake_read, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for source in (self.control, wake_read, self.listeners):
            self.poller.register(source, select.POLLIN)
        if self.forker.namespaces:
            syscall_filter.prepare(1)
        gc.collect()
        gc.freeze()
        self.send({"ready": True, "pid_namespaces": self.forker.namespaces})
        while True:
            wait = min((child.check() for child in self.children.values()), default=None)
            events = dict(self.poller.poll(None if wait is None else wait * 1000 + 1))
            if wake_read in events:
                os.read(wake_read, 4096)
            if self.listeners.fileno() in events:
                self.take_listener()
            for descriptor in events.keys() & self.listening.keys():
                self.answer(descriptor, events[descriptor])
            self.reap()
            if self.control.fileno() in events and not self.start():
                return

    def send(self, report: dict[str, object]) -> None:
        self.control.send(json.dumps(report).encode())

    def start(self) -> bool:
        """Starts the next program; returns False if the control socket is closed."""
        data, descriptors, _, _ = socket.recv_fds(self.control, 4096, 3)
        if not data:
            return False
        message = json.loads(data)
        try:
            pid = self.forker.fork()
        except OSError as error:
            pid = -1
            self.send({"id": message["id"], "failed": str(error)})
        if pid == 0:
            _child(message, [*descriptors, self.to_listeners.fileno()], self.forker.namespaces)
        for descriptor in descriptors:
            os.close(descriptor)
        if pid > 0:
            self.children[pid] = _Child(message, pid)
        return True

    def take_listener(self) -> None:
        data, descriptors, _, _ = socket.recv_fds(self.listeners, 64, 1)
        for child in self.children.values():
            if child.id == int(data) and descriptors:
                child.threads = thread_limit.ThreadCount(descriptors[0])
                self.listening[descriptors[0]] = child
                self.poller.register(descriptors[0], select.POLLIN)
                return
        for descriptor in descriptors:
            os.close(descriptor)

    def answer(self, descriptor: int, event: int) -> None:
        child = self.listening[descriptor]
        assert child.threads is not None
        if not event & select.POLLIN:
            self.forget(child)
        elif not child.threads.answer():
            child.kill("threads")

    def forget(self, child: _Child) -> None:
        if child.threads is not None:
            descriptor = child.threads.listener
            self.poller.unregister(descriptor)
            del self.listening[descriptor]
            os.close(descriptor)
            child.threads = None

    def reap(self) -> None:
        while self.children:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            child = self.children.pop(pid, None)
            if child is None:
                continue
            self.forget(child)
            code = os.waitstatus_to_exitcode(status)
            self.send(
                {
                    "id": child.id,
                    "exit": max(code, 0),
                    "signal": max(-code, 0),
                    "killed": child.killed,
                    "cpu_s": usage.ru_utime + usage.ru_stime,
                    "user_s": usage.ru_utime,
                    "wall_s": time.monotonic() - child.started,
                }
            )


def main() -> None:
    """Serves programs until the control socket closes."""
    control = socket.socket(fileno=int(sys.argv[1]))
    syscall_filter.hide_from_others()
    _set_limits(NOFILE=256, CORE=0, MEMLOCK=0, MSGQUEUE=0, SIGPENDING=256)  # inherited by programs
    stack_size(1 << 20)  # default for a candidate's threads
    _Runner(control).serve()


def _child(message: dict[str, float], descriptors: list[int], privileged: bool) -> None:
    """Turns this process into the candidate; never returns."""
    leave = os._exit
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        # First moved to high numbers, so that none overwrites another.
        moved = [os.dup2(descriptor, 100 + i) for i, descriptor in enumerate(descriptors)]
        for target, descriptor in zip((_PROGRAM, _INPUTS, _RESULT, _LISTENERS), moved, strict=True):
            os.dup2(descriptor, target)
        null = os.open("/dev/null", os.O_RDWR)
        script = bool(message["script"])
        os.dup2(_INPUTS if script else null, 0)
        os.dup2(_RESULT if script else null, 1)
        os.dup2(null, 2)
        os.closerange(_LISTENERS + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        program = json.loads(_read(_PROGRAM))
        text = f"{program['prompt']}\n{program['source']}\n{program['after']}"
        inputs = [] if script else plain_data.decode(_read(_INPUTS).decode("ascii"))
        os.close(_PROGRAM)
        if not script:
            os.close(_INPUTS)
        random.seed(0)  # a solution that draws random numbers gets the same verdict every time
        files = privileged and _FILES.search(text) is not None
        if files:
            _own_directory()
        seconds = int(message["cpu_s"]) + 2  # a safety net: the runner measures more finely
        memory = int(message["memory_bytes"])
        _set_limits(CPU=seconds, AS=memory, DATA=memory, FSIZE=_FILE_BYTES if files else 0, NOFILE=64)
        _confine(int(message["id"]), _THREADS.search(text) is not None)
        os.write(_RESULT, b"ready %d\n" % len(inputs))
    except BaseException as error:
        os.write(_RESULT, repr(error).encode("ascii", "replace"))
        leave(70)
    try:
        if script:
            _run_script(program)
        else:
            _run_function(program, inputs)
    finally:
        leave(72)


def _own_directory() -> None:
    """Mounts a small file system in memory at /tmp, which disappears with the process."""
    _checked(_libc.unshare(_CLONE_NEWNS), "unshare")
    options = b"mode=1777,size=%d,nr_inodes=1000" % _FILE_BYTES
    flags = ctypes.c_ulong(_MS_NOSUID_NODEV_NOEXEC)
    _checked(_libc.mount(b"tmpfs", b"/tmp", b"tmpfs", flags, options), "mount /tmp")
    os.chdir("/tmp")


def _confine(identity: int, threads: bool) -> None:
    """Confines this process; if it may have threads, sends the runner the listener that reports them."""
    listener = syscall_filter.confine(threads="counted" if threads else "none")
    if listener is not None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, _LISTENERS) as to_runner:
            socket.send_fds(to_runner, [b"%d" % identity], [listener])
        os.close(listener)
    else:
        os.close(_LISTENERS)


def _set_limits(**limits: int) -> None:
    for name, value in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))


def _read(descriptor: int) -> bytes:
    # pread, since the file's position may be shared with other children.
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


def _run_function(program: dict[str, str], inputs: list[list[object]]) -> None:
    """Calls the entry point once per input; writes one line per result and stops at the first exception."""
    # Bound before the candidate runs; what it changes in modules afterwards only affects its own answers.
    write, encode, dumps, leave = os.write, plain_data.encode, json.dumps, os._exit
    module = types.ModuleType("candidate")
    sys.modules["candidate"] = module
    try:
        asked, exact = program["name"], bool(program["as_written"])
        extraction.load(program["prompt"], program["source"], asked, module.__dict__, as_written=exact)
        exec(compile(program["after"], "<after>", "exec", dont_inherit=True), module.__dict__)
        function = module.__dict__[program["entry_point"]]
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
        name = "MemoryError" if isinstance(error, MemoryError) else type(error).__name__[:80]
        write(_RESULT, dumps(["raised", name]).encode() + b"\n")
        leave(1)
    leave(0)


def _run_script(program: dict[str, str]) -> None:
    """Runs a whole program, which is tested by its standard input and output."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    code = 0
    try:
        extraction.load(program["prompt"], program["source"], None, module.__dict__)
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
