"""Progress lines in the terminal, and the log file.

With a log file, all output of the process and its libraries goes there. Only progress lines and errors, which
are printed with `say`, also reach the terminal, so that it stays readable if many jobs share it.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path

_SHARED = "TROLL_TERMINAL"
_terminal: int | None = None


def log_to(path: Path) -> None:
    """Redirects all further output of this process to ``path``.

    If a run has several processes, all but the first append their rank to the name.
    """
    global _terminal
    rank = os.environ.get("RANK", "0")
    path = path if rank == "0" else path.with_name(f"{path.name}.{rank}")
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o644)
    _terminal = os.dup(2)
    with suppress(OSError, KeyError):
        _terminal = os.open(os.environ[_SHARED], os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def share_terminal() -> dict[str, str]:
    """Returns the environment variable with which `say` in child processes finds the terminal (on Linux)."""
    return {} if _terminal is None else {_SHARED: f"/proc/{os.getpid()}/fd/{_terminal}"}


def say(text: str) -> None:
    """Prints a line to the terminal, and to the log file where there is one."""
    if _terminal is not None:
        with suppress(OSError):  # the terminal may be gone; the log has the line
            os.write(_terminal, f"{text}\n".encode())
    with suppress(OSError):  # the disk may be full, which is what this line may say
        print(text, file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """Formats a duration as ``3:07``, or ``1:03:07`` from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
