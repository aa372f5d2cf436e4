"""Errors that a user can mend."""


class UserError(Exception):
    """A mistake outside the program: a wrong value, a missing file, a missing tool.

    The message is one line that says what is wrong, where (file, field, value) and what would be right.
    The command line prints it without a traceback and exits with status 1.
    """
