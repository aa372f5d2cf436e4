"""Errors that the user can fix, and the wording of common ones."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake outside the program: a wrong value, a missing file, a missing tool.

    The message is one line that says what is wrong, where (file, field, value) and what would be right.
    The command line prints it without a traceback and exits with status 1.
    """


NOT_FINITE = "not_finite"
"""Key for a non-finite loss: its optimiser step in the manifest, 1 in that step's line of metrics.jsonl."""


class NotFinite(UserError):  # noqa: N818 - named after what happened, like Stopped
    """Training cannot continue because the loss or a value of the critic is not finite."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Returns the hint "; did you mean 'clip'?" with the most similar valid name, or an empty string."""
    close = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def unknown(what: str, name: str, valid: Iterable[str]) -> str:
    """Returns the message "unknown rule 'clap'; valid: clip, troll; did you mean 'clip'?"."""
    names = list(valid)
    return f"unknown {what} {name!r}; valid: {', '.join(names) or 'none'}{nearest(name, names)}"


def check_known(what: str, names: Iterable[str], valid: Iterable[str]) -> None:
    """Raises `UserError` for the first name that is not valid."""
    known = list(valid)
    for name in names:
        if name not in known:
            raise UserError(unknown(what, name, known))


class Stopped(Exception):  # noqa: N818 - nothing is wrong
    """A signal stopped the work; the same command resumes it.

    Attributes:
        signal: the signal's number.
        status: the exit status, EX_TEMPFAIL of sysexits.h: neither success nor failure.
    """

    status = 75

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal
