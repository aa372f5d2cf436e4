"""The `troll` of a workflow's jobs: hands its command to the warm server and ends as that does.

Standard library only, and little of it: this is what a job starts. Where there is no server, or it does not
fit, the command runs as an ordinary process in this one's place.
"""

import marshal
import os
import select
import signal
import socket
import sys
from contextlib import suppress

VARIABLE = "TROLL_WARM_SOCKET"
"""Names the server's (abstract) socket."""
SWITCH = "TROLL_WARM"
"""``0`` runs every command as an ordinary process; ``debug`` says why one is."""
HANDED_ON = tuple(
    getattr(signal, f"SIG{name}") for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "ALRM")
)
HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib takes as long as the rest
# Different in every job, and of no concern to a library while it is imported.
_FREE = {"PS1", "PWD", "OLDPWD", "SHLVL", "_", "PATH", "TMPDIR", "TMP", "TEMPDIR", "TEMP", "COLUMNS", "LINES"}
_FREE.add("PYTEST_CURRENT_TEST")
_STATUS = ("Umask", "NoNewPrivs", "Seccomp", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_NAMESPACES = ("ipc", "mnt", "net", "pid", "user", "uts")
_UNCATCHABLE = (signal.SIGKILL, signal.SIGSTOP)


def ordinary_path() -> str:
    """The search path without the directory of this client."""
    own = os.path.join(HERE, "bin")  # noqa: PTH118
    return os.pathsep.join(
        part for part in os.environ.get("PATH", os.defpath).split(os.pathsep) if part != own
    )


def ordinary_troll() -> str:
    """The `troll` that an ordinary process runs; empty if there is none."""
    for directory in ordinary_path().split(os.pathsep):
        program = os.path.join(directory, "troll")  # noqa: PTH118
        if os.access(program, os.X_OK):
            return program
    return ""


def circumstances() -> dict[str, object]:
    """What a process inherits, and a fork of another one would lack: it must be equal in the server."""

    def text(name: str) -> str:
        with open(f"/proc/self/{name}") as file:  # noqa: PTH123
            return file.read()

    status = dict(line.split(":", 1) for line in text("status").splitlines())
    return {
        "user": [*os.getresuid(), *os.getresgid(), *sorted(os.getgroups())],
        "session": os.getsid(0),
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "processors": sorted(os.sched_getaffinity(0)),
        "limits": text("limits"),
        "control group": text("cgroup"),
        "memory score": text("oom_score_adj"),
        "namespaces": [os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES],  # noqa: PTH115
        "root": os.readlink("/proc/self/root"),  # noqa: PTH115
        "status": [status.get(name, "") for name in _STATUS],
        "program": ordinary_troll(),
        "python": sys.version,
        "environment": {
            name: value
            for name, value in os.environ.items()
            if name not in _FREE and not name.startswith("TROLL_")
        },
    }


def _command() -> dict[str, object]:
    environment = dict(os.environb)
    environment.pop(VARIABLE.encode(), None)
    environment[b"PATH"] = os.fsencode(ordinary_path())
    # Python ignores the last two.
    signals = signal.valid_signals() - {*_UNCATCHABLE, signal.SIGPIPE, signal.SIGXFSZ}
    return {
        "arguments": sys.argv[1:],
        "environment": environment,
        "group": os.getpgrp(),
        "ignored": [int(number) for number in signals if signal.getsignal(number) == signal.SIG_IGN],
        "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
        "circumstances": circumstances(),
    }


def _warm() -> str:
    """Runs the command in the server and ends as it does; returns only with a reason why that cannot be."""
    name = os.environ.get(VARIABLE)
    if not name or os.environ.get(SWITCH) == "0":
        return "there is no server"
    if os.getpgrp() == os.getpid():
        return "it leads a process group, which another process cannot take its place in"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(f"\0{name}")
        if peer(connection) != os.getuid():
            return "the server is another user's"
        request = marshal.dumps(_command())
        directory = os.open(".", os.O_PATH | os.O_DIRECTORY)
        socket.send_fds(connection, [len(request).to_bytes(8, "little")], [0, 1, 2, directory])
        connection.sendall(request)
        os.close(directory)
        answer, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
        if not descriptors:
            return (answer + connection.recv(1000)).decode() or "the server is gone"
        process = descriptors[0]
        for number in HANDED_ON:
            signal.signal(number, lambda number, _: _hand_on(process, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDED_ON)
        # The process has taken this one's place in the group: what is sent there must not reach it twice.
        group = os.getpgrp()
        os.setpgid(0, 0)
        with suppress(ConnectionError):
            if status := connection.recv(16):
                _end(int(status))
        poll = select.poll()
        poll.register(process, select.POLLIN)
        poll.poll()  # it dies with the server, and nothing may write beside the next attempt
        for number in HANDED_ON:
            signal.signal(number, signal.SIG_DFL)
        with suppress(OSError):  # back to where the keyboard's interrupts go
            os.setpgid(0, group)
    return "the server was killed"


def _hand_on(process: int, number: int) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, number)


def peer(connection: socket.socket) -> int:
    """The user at the other end of a connection."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[4:8], sys.byteorder)


def _end(status: int) -> None:
    """Ends as the command did: with its exit status, or of the signal that it died of."""
    if status < 0:
        if -status not in _UNCATCHABLE:
            signal.signal(-status, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [-status])
        os.kill(os.getpid(), -status)
    os._exit(status)


def main() -> None:
    """Runs the command, in the server if possible."""
    try:
        reason = _warm()
    except (OSError, ValueError) as error:
        reason = str(error)
    if os.environ.get(SWITCH) == "debug":
        print(f"debug: an ordinary process, for {reason}", file=sys.stderr, flush=True)
    program = ordinary_troll()
    if not program:
        sys.exit("error: troll: not found on PATH")
    os.environ["PATH"] = ordinary_path()
    os.environ.pop(VARIABLE, None)
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
