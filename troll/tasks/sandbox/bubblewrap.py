"""The process around the sandbox: bubblewrap's command line, and a running one with its control socket."""

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
_NAMESPACES = "let this user make namespaces: docs/troubleshooting.md, section on the code task"
_REMEDIES = {  # by a part of bubblewrap's complaint
    "Unknown option": "bubblewrap 0.7 or newer is needed",
    "/proc/": "mount /proc where troll runs, as containers do by default",
}
_INSIDE = ("runner.py", "extraction.py", "plain_data.py", "syscall_filter.py", "thread_limit.py")
_START_S = 30.0  # a loaded machine may be slow to start; a refusal comes at once
_SCRATCH = ("/scratch", "/dev/shm")
_SCRATCH_BYTES = 64 * 2**20
_MEMORY = Path("/proc/meminfo")
_PROBE = "open('/scratch/a', 'w').close(); open('/dev/shm/a', 'w').close(); open('/proc/meminfo').close()"


class LostError(Exception):
    """The runner inside the sandbox is gone or does not answer."""


def bubblewrap_program() -> str | None:
    """Where bubblewrap is; None if it is not installed, or this is not Linux."""
    return shutil.which("bwrap") if sys.platform.startswith("linux") else None


def remedy(reason: str) -> str:
    """What to do about a bubblewrap that does not start, by what it says."""
    return next((cure for part, cure in _REMEDIES.items() if part in reason), _NAMESPACES)


def _refused(what: str, complaint: str) -> UserError:
    reason = f"bwrap: cannot start {what}: {complaint}"
    return UserError(f"{reason}; {remedy(reason)}")


def bubblewrap_command(read_only: Sequence[Path] = ()) -> list[str]:
    """The start of a bubblewrap command line: everything unshared, the system and interpreter read-only.

    There is no /proc: the kernel lets no one mount it in a container where parts of it are covered, as Docker
    and Kubernetes do, and programs have nothing to look for there.
    """
    program = bubblewrap_program()
    if program is None:
        raise UserError(
            f"bwrap: not found, and model-written code runs in no other way; install it: {INSTALL_LINE}"
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
        ("MALLOC_ARENA_MAX", "2"),  # the address space of a program with threads is not for their heaps
        ("HOME", "/tmp"),
    ):
        command += ["--setenv", name, value]
    return command


def scratch_command(read_only: Sequence[Path] = (), files: Mapping[str, Path] | None = None) -> list[str]:
    """The same for evalplus, with small directories in memory to write to: /scratch and /dev/shm.

    Of /proc it has the one file that evalplus reads, the size of the machine's memory.
    """
    command = bubblewrap_command((_MEMORY, *read_only))
    for inside, path in (files or {}).items():
        command += ["--ro-bind", str(path), inside]
    for directory in _SCRATCH:
        command += ["--size", str(_SCRATCH_BYTES), "--tmpfs", directory]
    return [*command, "--remount-ro", "/", "--chdir", _SCRATCH[0], "--setenv", "TMPDIR", _SCRATCH[0]]


def check_scratch() -> None:
    """Starts a sandbox as evalplus gets it, so that a refusal shows before anything is graded."""
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
    """The interpreter outside any virtual environment, as a real path."""
    return str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())


def _numpy() -> list[Path]:
    """The directories of numpy, if it is installed: what solutions use beside the standard library."""
    spec = importlib.util.find_spec("numpy")
    if spec is None or not spec.submodule_search_locations:
        return []
    package = Path(spec.submodule_search_locations[0])
    return [path for path in (package, package.with_name("numpy.libs")) if path.is_dir()]


class Sandbox:
    """A running bubblewrap with its runner."""

    # whether each program has a pid namespace and, if it wants files, a directory of its own; where the
    # kernel or bubblewrap refuses, the filter and Landlock keep programs apart
    pid_namespaces: bool

    def __init__(self) -> None:
        try:  # inside its own user namespace, and for the runner only
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
        """The control socket, readable when a report is there."""
        return self._control.fileno()

    def send(self, message: dict[str, Any], descriptors: list[int]) -> None:
        """Hands a program to the runner."""
        try:
            socket.send_fds(self._control, [json.dumps(message).encode()], descriptors)
        except OSError as error:
            raise LostError(str(error)) from None

    def receive(self) -> dict[str, Any]:
        """The runner's next report."""
        try:
            data = self._control.recv(4096)
        except ConnectionError:
            data = b""
        if not data:
            raise LostError("the control socket closed")
        message: dict[str, Any] = json.loads(data)
        return message

    def close(self) -> None:
        """Kills the sandbox with everything in it."""
        self._control.close()
        self._process.kill()
        self._process.wait()
        self._errors.close()


@functools.cache
def program_namespaces() -> bool:
    """Whether programs get pid namespaces and directories of their own here."""
    sandbox = Sandbox()
    sandbox.close()
    return sandbox.pid_namespaces
