"""Lines for people: what runs, how far it is, how long it will take.

With a log file everything that the process and its libraries print goes there; only the lines said here, and
errors, also reach the terminal. So many jobs can share one terminal and stay readable.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path

_SHARED = "TROLL_TERMINAL"
_terminal: int | None = None


def log_to(path: Path) -> None:
    """Sends everything that this process prints to ``path``, from now on.

    Of several processes of one run all but the first put their number behind the name.
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
    """What a child process needs in its environment to reach this one's terminal with `say` (on Linux)."""
    return {} if _terminal is None else {_SHARED: f"/proc/{os.getpid()}/fd/{_terminal}"}


def say(text: str) -> None:
    """Prints a line to the terminal, and to the log file where there is one."""
    if _terminal is not None:
        with suppress(OSError):  # the terminal may be gone; the log has it
            os.write(_terminal, f"{text}\n".encode())
    with suppress(OSError):  # the disk may be full, which is what this line says
        print(text, file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """Minutes and seconds, ``3:07``; hours where there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
