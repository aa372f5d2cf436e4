"""Errors that a user can mend."""


class UserError(Exception):
    """A mistake outside the program: a wrong value, a missing file, a missing tool.

    The message is one line that says what is wrong, where (file, field, value) and what would be right.
    The command line prints it without a traceback and exits with status 1.
    """


class Stopped(Exception):  # noqa: N818 - nothing is wrong
    """A signal ended the work; the same command goes on with it.

    Attributes:
        signal: its number.
        status: the exit status that says so (EX_TEMPFAIL of sysexits.h): neither success nor failure.
    """

    status = 75

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal
