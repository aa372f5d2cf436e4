"""The `troll` of a workflow's jobs: passes its command to the warm server and ends with the command's status.

It uses little of the standard library, to start fast. If there is no server, or the server refuses, the
command runs as an ordinary process in place of this one.
"""

import marshal
import os
import select
import signal
import socket
import sys
from contextlib import suppress

VARIABLE = "TROLL_WARM_SOCKET"
"""Name of the server's abstract socket."""
SWITCH = "TROLL_WARM"
"""``0`` runs every command as an ordinary process; ``debug`` prints why a command runs as one."""
HANDED_ON = tuple(
    getattr(signal, f"SIG{name}") for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "ALRM")
)
HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - importing pathlib would be slow
# These differ between jobs, and no library reads them when it is imported.
_FREE = {"PS1", "PWD", "OLDPWD", "SHLVL", "_", "PATH", "TMPDIR", "TMP", "TEMPDIR", "TEMP", "COLUMNS", "LINES"}
_FREE.add("PYTEST_CURRENT_TEST")
_STATUS = ("Umask", "NoNewPrivs", "Seccomp", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_NAMESPACES = ("ipc", "mnt", "net", "pid", "user", "uts")
_UNCATCHABLE = (signal.SIGKILL, signal.SIGSTOP)


def ordinary_path() -> str:
    """Returns the PATH without the directory of this client."""
    own = os.path.join(HERE, "bin")  # noqa: PTH118
    return os.pathsep.join(
        part for part in os.environ.get("PATH", os.defpath).split(os.pathsep) if part != own
    )


def ordinary_troll() -> str:
    """Returns the `troll` that an ordinary process runs; empty if there is none."""
    for directory in ordinary_path().split(os.pathsep):
        program = os.path.join(directory, "troll")  # noqa: PTH118
        if os.access(program, os.X_OK):
            return program
    return ""


def circumstances() -> dict[str, object]:
    """Returns what a process inherits; it must be the same in this process and in the server."""

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
    # Python itself ignores the last two.
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
    """Runs the command in the server and exits with its status; returns only a reason why it could not."""
    name = os.environ.get(VARIABLE)
    if not name or os.environ.get(SWITCH) == "0":
        return "there is no server"
    if os.getpgrp() == os.getpid():
        return "it leads a process group, and no other process can do that in its place"
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
        # The forked process has joined the group in place of this one, which must not send it a signal twice.
        group = os.getpgrp()
        os.setpgid(0, 0)
        with suppress(ConnectionError):
            if status := connection.recv(16):
                _end(int(status))
        poll = select.poll()
        poll.register(process, select.POLLIN)
        poll.poll()  # the process dies with the server; it must not write while the command runs again
        for number in HANDED_ON:
            signal.signal(number, signal.SIG_DFL)
        with suppress(OSError):  # back to the group that receives Ctrl-C
            os.setpgid(0, group)
    return "the server was killed"


def _hand_on(process: int, number: int) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, number)


def peer(connection: socket.socket) -> int:
    """Returns the user id at the other end of a connection."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[4:8], sys.byteorder)


def _end(status: int) -> None:
    """Ends like the command: with its exit status, or by the signal that killed it."""
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
        print(f"debug: runs as an ordinary process: {reason}", file=sys.stderr, flush=True)
    program = ordinary_troll()
    if not program:
        sys.exit("error: troll: not found on PATH")
    os.environ["PATH"] = ordinary_path()
    os.environ.pop(VARIABLE, None)
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
