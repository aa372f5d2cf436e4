"""Signals that ask for an end, held back until a good moment: SIGUSR1 (a time limit is near) and SIGTERM.

They are blocked and looked for, not caught. A batch system sends them to every process of a job, and child
processes inherit the mask: otherwise the sandbox that grades a response would die of them, and the response
would count as wrong.
"""

import os
import signal
from pathlib import Path
from types import FrameType

from troll.common.errors import Stopped

HELD = (signal.SIGUSR1, signal.SIGTERM)
SIGNAL_NOTE = "TROLL_STOP"
"""Names a file in which a launcher tells its processes the signal that it got: they are not its children."""
_caught: list[int] = []


def hold_signals() -> None:
    """Holds SIGUSR1 and SIGTERM back from now on; call it before any thread or child is started."""
    for number in HELD:
        signal.signal(number, _note)  # for a thread that was there before, and takes the signal
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD)


def _note(number: int, frame: FrameType | None) -> None:
    _caught.append(number)


def held_signal() -> signal.Signals | None:
    """The signal that has come and waits; the warning before the order where both have."""
    pending = {*signal.sigpending(), *_caught}
    note = os.environ.get(SIGNAL_NOTE)
    if note and Path(note).exists():
        pending.add(int(Path(note).read_text() or 0))
    return next((number for number in HELD if number in pending), None)


def stop_if_asked(what: str) -> None:
    """Ends the work here if a signal waits."""
    number = held_signal()
    if number is not None:
        raise Stopped(f"{what}: stopped by {number.name}; the same command resumes", number)
