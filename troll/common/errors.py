"""Errors that a user can mend."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake outside the program: a wrong value, a missing file, a missing tool.

    The message is one line that says what is wrong, where (file, field, value) and what would be right.
    The command line prints it without a traceback and exits with status 1.
    """


NOT_FINITE = "not_finite"
"""In the manifest of a run that stopped for it: the optimiser step; in metrics.jsonl: 1 in that line."""


class NotFinite(UserError):  # noqa: N818 - as Stopped, it says what happened
    """A loss, or a value of the critic, is not finite, and training cannot go on."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """The end of a message: "; did you mean 'clip'?" with the valid name most like this one, or nothing."""
    close = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def unknown(what: str, name: str, valid: Iterable[str]) -> str:
    """The message "unknown name 'clap'; valid: clip, troll; did you mean 'clip'?" ("none" where none is)."""
    names = list(valid)
    return f"unknown {what} {name!r}; valid: {', '.join(names) or 'none'}{nearest(name, names)}"


def check_known(what: str, names: Iterable[str], valid: Iterable[str]) -> None:
    """Refuses a name that is not among the valid ones."""
    known = list(valid)
    for name in names:
        if name not in known:
            raise UserError(unknown(what, name, known))


class Stopped(Exception):  # noqa: N818 - nothing is wrong
    """A signal ended the work; the same command resumes it.

    Attributes:
        signal: its number.
        status: the exit status that says so (EX_TEMPFAIL of sysexits.h): neither success nor failure.
    """

    status = 75

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal
