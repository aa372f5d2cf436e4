"""Defers SIGUSR1 (a time limit is near) and SIGTERM until the work can stop.

The signals are blocked and polled. A batch system sends them to every process of a job, and child processes
inherit the mask; otherwise the signals would kill the sandbox that grades a response, and the response would
count as wrong.
"""

import os
import signal
from pathlib import Path
from types import FrameType

from troll.common.errors import Stopped

HELD = (signal.SIGUSR1, signal.SIGTERM)
SIGNAL_NOTE = "TROLL_STOP"
"""Environment variable: a file by which a launcher passes a signal to processes that are not its children."""
_caught: list[int] = []


def hold_signals() -> None:
    """Blocks SIGUSR1 and SIGTERM; call it before any thread or child process is started."""
    for number in HELD:
        signal.signal(number, _note)  # if an earlier thread, which does not block it, gets the signal
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD)


def _note(number: int, frame: FrameType | None) -> None:
    _caught.append(number)


def held_signal() -> signal.Signals | None:
    """Returns the pending signal, SIGUSR1 if both are; None if there is none."""
    pending = {*signal.sigpending(), *_caught}
    note = os.environ.get(SIGNAL_NOTE)
    if note and Path(note).exists():
        pending.add(int(Path(note).read_text() or 0))
    return next((number for number in HELD if number in pending), None)


def stop_if_asked(what: str) -> None:
    """Raises `Stopped` if a signal is pending; ``what`` is what messages call the work."""
    number = held_signal()
    if number is not None:
        raise Stopped(f"{what}: stopped by {number.name}; the same command resumes", number)
