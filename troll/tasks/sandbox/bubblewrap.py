"""Builds bubblewrap's command lines, and starts a sandbox with its control socket."""

import functools
import importlib.util
import json
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from troll.common.errors import UserError

INSTALL_LINE = "sudo apt-get install bubblewrap (or dnf, pacman); it needs Linux"
_NAMESPACES = "allow this user to create namespaces: see docs/troubleshooting.md, section on the code task"
_REMEDIES = {  # by a part of bubblewrap's error message
    "Unknown option": "bubblewrap 0.7 or newer is needed",
    "/proc/": "mount /proc where troll runs, as containers do by default",
}
_INSIDE = ("runner.py", "extraction.py", "plain_data.py", "syscall_filter.py", "thread_limit.py")
_START_S = 30.0  # a loaded machine may be slow to start a sandbox; a refusal comes at once
_SCRATCH = ("/scratch", "/dev/shm")
_SCRATCH_BYTES = 64 * 2**20
_MEMORY = Path("/proc/meminfo")
_PROBE = "open('/scratch/a', 'w').close(); open('/dev/shm/a', 'w').close(); open('/proc/meminfo').close()"


class LostError(Exception):
    """The runner inside the sandbox is gone or does not answer."""


def bubblewrap_program() -> str | None:
    """Returns the path of bubblewrap; None if it is not installed or this is not Linux."""
    return shutil.which("bwrap") if sys.platform.startswith("linux") else None


def remedy(reason: str) -> str:
    """Returns what to do if bubblewrap does not start, by its error message."""
    return next((cure for part, cure in _REMEDIES.items() if part in reason), _NAMESPACES)


def _refused(what: str, complaint: str) -> UserError:
    reason = f"bwrap: cannot start {what}: {complaint}"
    return UserError(f"{reason}; {remedy(reason)}")


def bubblewrap_command(read_only: Sequence[Path] = ()) -> list[str]:
    """Returns the start of a bubblewrap command line: all unshared, the system and interpreter read-only.

    There is no /proc: programs do not need it, and the kernel refuses to mount it in containers that mask
    parts of it, as Docker's and Kubernetes' do.
    """
    program = bubblewrap_program()
    if program is None:
        raise UserError(
            f"bwrap: not found, but model-written code runs only under it; install it: {INSTALL_LINE}"
        )
    walls = "--unshare-all --die-with-parent --new-session --clearenv --cap-drop ALL"
    command = [program, *walls.split()]
    for path in ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache"):
        if Path(path).is_symlink():
            command += ["--symlink", str(Path(path).readlink()), path]
        elif Path(path).exists():
            command += ["--ro-bind", path, path]
    for prefix in dict.fromkeys((Path(sys.base_prefix).resolve(), *read_only)):
        if not prefix.is_relative_to("/usr"):
            command += ["--ro-bind", str(prefix), str(prefix)]
    for device in ("null", "zero", "urandom", "random"):
        command += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    # A fixed hash seed: the order of a set of strings must not decide a verdict.
    for name, value in (
        ("PYTHONHASHSEED", "0"),
        ("PYTHONUTF8", "1"),
        ("OMP_NUM_THREADS", "1"),
        ("OPENBLAS_NUM_THREADS", "1"),
        ("MALLOC_ARENA_MAX", "2"),  # so that heaps of threads do not use up a program's address space
        ("HOME", "/tmp"),
    ):
        command += ["--setenv", name, value]
    return command


def scratch_command(read_only: Sequence[Path] = (), files: Mapping[str, Path] | None = None) -> list[str]:
    """Returns the same for evalplus, with small writable directories in memory: /scratch and /dev/shm.

    Of /proc it has only the file in which evalplus reads the size of the machine's memory.
    """
    command = bubblewrap_command((_MEMORY, *read_only))
    for inside, path in (files or {}).items():
        command += ["--ro-bind", str(path), inside]
    for directory in _SCRATCH:
        command += ["--size", str(_SCRATCH_BYTES), "--tmpfs", directory]
    return [*command, "--remount-ro", "/", "--chdir", _SCRATCH[0], "--setenv", "TMPDIR", _SCRATCH[0]]


def check_scratch() -> None:
    """Starts a sandbox as evalplus gets it, so that a refusal is raised before anything is graded."""
    command = [*scratch_command(), base_interpreter(), "-sSPBc", _PROBE]
    try:
        completed = subprocess.run(command, capture_output=True, timeout=_START_S, check=False)
    except subprocess.TimeoutExpired:
        raise _refused("the sandbox of evalplus", f"no answer within {_START_S:.0f} s") from None
    if completed.returncode:
        reason = _last_line(completed.stderr) or f"exit {completed.returncode}"
        raise _refused("the sandbox of evalplus", reason)


def _last_line(complaint: bytes) -> str:
    return "".join(complaint.decode("utf-8", "replace").strip().splitlines()[-1:])


def base_interpreter() -> str:
    """Returns the real path of the interpreter outside any virtual environment."""
    return str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())


def _numpy() -> list[Path]:
    """Returns the directories of numpy, if it is installed: solutions may use it and the standard library."""
    spec = importlib.util.find_spec("numpy")
    if spec is None or not spec.submodule_search_locations:
        return []
    package = Path(spec.submodule_search_locations[0])
    return [path for path in (package, package.with_name("numpy.libs")) if path.is_dir()]


class Sandbox:
    """A running bubblewrap process with its runner."""

    # whether each program has a pid namespace and, if it uses files, a directory of its own; where the kernel
    # or bubblewrap refuses this, the filter and Landlock keep programs apart
    pid_namespaces: bool

    def __init__(self) -> None:
        try:  # a capability inside the sandbox's user namespace, and only for the runner
            self._start(["--cap-add", "CAP_SYS_ADMIN"])
        except UserError:
            self._start([])

    def _start(self, capabilities: list[str]) -> None:
        here = Path(__file__).parent
        command = [*bubblewrap_command(), *capabilities, "--dir", "/tmp"]
        for name in _INSIDE:
            command += ["--ro-bind", str(here / name), f"/troll/{name}"]
        for path in _numpy():
            command += ["--ro-bind", str(path), f"/troll/site/{path.name}"]
        self._control, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        command += ["--remount-ro", "/", "--chdir", "/", "--as-pid-1"]
        command += [base_interpreter(), "-sSPB", "/troll/runner.py", str(remote.fileno())]
        with remote:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=[remote.fileno()],
            )
        self._control.settimeout(_START_S)
        try:
            self.pid_namespaces = bool(self.receive()["pid_namespaces"])
        except (LostError, TimeoutError) as error:
            self._process.kill()
            self._process.wait()
            self._errors.seek(0)
            reason = (
                _last_line(self._errors.read())
                or f"no answer within {_START_S:.0f} s ({type(error).__name__})"
            )
            self.close()
            raise _refused("the sandbox", reason) from None
        self._control.setblocking(False)

    def fileno(self) -> int:
        """Returns the descriptor of the control socket, which is readable when there is a report."""
        return self._control.fileno()

    def send(self, message: dict[str, Any], descriptors: list[int]) -> None:
        """Sends a program to the runner, or raises `LostError`."""
        try:
            socket.send_fds(self._control, [json.dumps(message).encode()], descriptors)
        except OSError as error:
            raise LostError(str(error)) from None

    def receive(self) -> dict[str, Any]:
        """Returns the runner's next report, or raises `LostError`."""
        try:
            data = self._control.recv(4096)
        except ConnectionError:
            data = b""
        if not data:
            raise LostError("the control socket closed")
        message: dict[str, Any] = json.loads(data)
        return message

    def close(self) -> None:
        """Kills the sandbox and everything in it."""
        self._control.close()
        self._process.kill()
        self._process.wait()
        self._errors.close()


@functools.cache
def program_namespaces() -> bool:
    """Tells whether programs get pid namespaces and directories of their own on this machine."""
    sandbox = Sandbox()
    sandbox.close()
    return sandbox.pid_namespaces
