"""The warm server: ``server.py LISTENER LIFELINE``, two file descriptors that `troll.warm.start` passes on.

It imports a command's modules before it first forks for that command, and starts no threads. It answers a
request that it cannot serve with the reason; the client then runs the command itself. When the lifeline
closes, it waits for running commands and exits; if it is killed, they die with it, and their clients run the
commands again without it.
"""

import ctypes
import gc
import importlib
import marshal
import os
import selectors
import signal
import socket
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import troll
from troll.analysis.registry import ENTRIES
from troll.common.processor import prepare_processor, quiet_libraries
from troll.warm.client import HANDED_ON, circumstances, peer

_TRAINING = ("troll.training.run", "transformers.models.qwen3.modeling_qwen3")
_ANALYSIS = (
    "troll.analysis.report.make",
    "troll.analysis.report.check",
    *sorted({f"troll.analysis.{entry.function.partition(':')[0]}" for entry in ENTRIES}),
)
MODULES: dict[str, tuple[str, ...]] = {
    "problems": ("troll.tasks.registry",),
    "tokenizer": ("troll.training.tokenizer",),
    "configure": ("troll.experiment.files",),
    "base-model": ("troll.training.base_model", *_TRAINING),
    "hub-model": ("troll.training.base_model", *_TRAINING),
    "train": ("troll.common.signals", "troll.common.machine_errors", *_TRAINING),
    "sample": ("troll.evaluation.sampling", *_TRAINING),
    "sample-suites": ("troll.evaluation.suites", *_TRAINING),
    "grade": ("troll.evaluation.grading",),
    "grade-suites": ("troll.evaluation.suites",),
    "collect": ("troll.operations.collect", *_ANALYSIS),
    "append": ("troll.analysis.data.archive",),
    "claims": ("troll.analysis.claims.ledger", "troll.analysis.claims.verdicts", *_ANALYSIS),
    "report": (
        "troll.operations.report",
        *_ANALYSIS,
        "matplotlib.backends.backend_agg",
        "matplotlib.backends.backend_pdf",
    ),
}
"""Modules to import for the workflow's commands; other commands import theirs in their own process."""
_PDEATHSIG, _NAME = 1, 15
_PATIENCE_S = 5.0


class RefusedError(Exception):
    """The client should run the command as an ordinary process."""


@dataclass
class Request:
    """A command with everything that belongs to the calling process; see `troll.warm.client`."""

    arguments: list[str]
    environment: dict[bytes, bytes]
    group: int
    ignored: list[int]
    blocked: list[int]
    circumstances: dict[str, Any]
    descriptors: list[int] = field(default_factory=list)  # standard input, output and error; the directory


@dataclass
class _Job:
    pid: int
    process: int
    connection: socket.socket


def stamps() -> dict[str, int]:
    """Returns when the source files and the directories of installed packages were last changed."""
    roots = [path for path in sys.path if path.endswith("-packages")]
    files: Iterable[Path] = [*Path(troll.__file__).parent.rglob("*.py"), *map(Path, roots)]
    return {str(path): path.stat().st_mtime_ns for path in files}


class Server:
    """Forks for each request; see `serve`."""

    def __init__(self, listener: socket.socket, lifeline: int) -> None:
        self._here, self._stamps = circumstances(), stamps()
        self._listener, self._lifeline = listener, lifeline
        self._jobs: dict[int, _Job] = {}
        self._broken, self._forked = "", False
        # Not epoll, whose state a forked process would share.
        self._selector = selectors.PollSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(lifeline, selectors.EVENT_READ)

    def serve(self) -> Request | None:
        """Serves until the lifeline is closed and the last command has ended.

        Returns:
            In a forked process the command to run, in the server None at the end.
        """
        while self._selector.get_map():
            for key, _ in self._selector.select():
                if key.data is None and key.fileobj == self._lifeline:
                    for end in (self._listener, self._lifeline):
                        self._selector.unregister(end)
                    self._listener.close()
                elif key.data is None:
                    if (request := self._admit()) is not None:
                        return request
                elif key.data in self._jobs:
                    self._attend(self._jobs[key.data], ended=key.fileobj == self._jobs[key.data].process)
        return None

    def _attend(self, job: _Job, *, ended: bool) -> None:
        """Tells a client how its command ended, or kills the command of a client that was killed."""
        self._selector.unregister(job.process if ended else job.connection)
        if not ended:
            os.kill(job.pid, signal.SIGKILL)
            return
        status = os.waitstatus_to_exitcode(os.waitpid(job.pid, 0)[1])
        with suppress(KeyError):
            self._selector.unregister(job.connection)
        with suppress(OSError):
            job.connection.sendall(str(status).encode())
        del self._jobs[job.pid]
        os.close(job.process)
        job.connection.close()

    def _admit(self) -> Request | None:
        connection, request = None, None
        try:
            connection, _ = self._listener.accept()
            connection.settimeout(_PATIENCE_S)
            if peer(connection) != os.getuid():
                raise RefusedError("the server is another user's")
            request = _receive(connection)
            self._check(request)
            if self._fork(connection, request):
                return request
            connection = None
        except (RefusedError, OSError, ValueError, EOFError, TypeError) as error:
            if connection is not None:
                with suppress(OSError):
                    connection.sendall(str(error).encode())
        finally:
            if connection is not None:
                connection.close()
            if request is not None and not self._forked:
                for descriptor in request.descriptors:
                    os.close(descriptor)
        return None

    def _check(self, request: Request) -> None:
        """Refuses a command that would run differently here; imports the modules that it needs."""
        for name, value in self._here.items():
            if (found := request.circumstances.get(name)) != value:
                raise RefusedError(_difference(name, found, value))
        if not self._broken and stamps() != self._stamps:
            self._broken = "the source or the installed packages have changed since the server started"
        if self._broken:
            raise RefusedError(self._broken)
        command = next((word for word in request.arguments if word in MODULES), None)
        try:
            for module in MODULES.get(command or "", ()):
                importlib.import_module(module)
        except Exception as error:
            self._broken = f"{command} cannot be loaded: {error}"
            raise RefusedError(self._broken) from None
        if len(list(Path("/proc/self/task").iterdir())) > 1:
            self._broken = "a library has started a thread"
            raise RefusedError(self._broken)

    def _fork(self, connection: socket.socket, request: Request) -> bool:
        """Forks for a command; returns True in the forked process."""
        gc.collect()
        gc.freeze()  # otherwise the garbage collector would write to shared memory, and so copy it
        held, go = os.pipe()
        server, pid = os.getpid(), os.fork()
        if pid == 0:
            os.close(go)
            if not os.read(held, 1):
                os._exit(1)  # refused: the client runs the command itself
            os.close(held)
            self._forked = True
            self._leave(server, connection)
            return True
        os.close(held)
        try:
            process = os.pidfd_open(pid)
            os.write(go, b"g")
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        finally:
            os.close(go)
        self._jobs[pid] = _Job(pid, process, connection)
        self._selector.register(process, selectors.EVENT_READ, pid)
        self._selector.register(connection, selectors.EVENT_READ, pid)
        with suppress(OSError):  # if the client was killed, the selector reports that
            os.setpgid(pid, request.group)  # before the client leaves the group, which may then be empty
            socket.send_fds(connection, [b"w"], [process])
        return False

    def _leave(self, server: int, connection: socket.socket) -> None:
        """Releases, in a forked process, everything that belongs to the server."""
        prctl = ctypes.CDLL(None).prctl
        prctl(_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server:
            os._exit(1)
        prctl(_NAME, b"troll")
        self._selector.close()
        self._listener.close()
        os.close(self._lifeline)
        connection.close()
        for job in self._jobs.values():
            os.close(job.process)
            job.connection.close()


def _difference(name: str, found: object, here: object) -> str:
    """Returns a sentence on what differs; only the names of variables, not their values."""
    if not (isinstance(found, dict) and isinstance(here, dict)):
        return f"its {name} differs from the server's"
    return f"its {name} differs from the server's: {sorted(dict(found.items() ^ here.items()))}"


def _receive(connection: socket.socket) -> Request:
    size, descriptors, _, _ = socket.recv_fds(connection, 8, 4)
    try:
        if len(size) != 8 or len(descriptors) != 4:
            raise RefusedError("the request is not whole")
        data = bytearray()
        while len(data) < int.from_bytes(size, "little"):
            part = connection.recv(1 << 20)
            if not part:
                raise RefusedError("the request is not whole")
            data += part
        return Request(**marshal.loads(data), descriptors=list(descriptors))
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise


def become(request: Request) -> None:
    """Gives this forked process everything that belongs to the calling process."""
    os.setpgid(0, request.group)
    for number, descriptor in enumerate(request.descriptors[:3]):
        os.dup2(descriptor, number)
    os.fchdir(request.descriptors[3])
    for descriptor in request.descriptors:
        os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    os.environb.clear()
    os.environb.update(request.environment)
    program = str(request.circumstances["program"])
    sys.argv = [program, *request.arguments]
    sys.path[0] = str(Path(program).parent)
    for number in HANDED_ON:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in request.ignored:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, request.blocked)
    # Random generators that an ordinary process seeds when it starts.
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    tempfile.tempdir = None


def main(listener: int, lifeline: int) -> None:
    """Runs the server; in a forked process, runs the command."""
    server = Server(socket.socket(fileno=listener), lifeline)
    os.set_inheritable(listener, False)
    os.set_inheritable(lifeline, False)
    sys.path[0] = ""  # never import from this file's directory; `become` sets the entry
    for number in HANDED_ON:
        signal.signal(number, signal.SIG_IGN)  # a signal that ends the workflow also closes the lifeline
    # Otherwise pyarrow's allocator would start a thread.
    os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    quiet_libraries()
    prepare_processor()
    from troll.cli import app

    if (request := server.serve()) is None:
        os._exit(0)
    become(request)
    app.main()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
