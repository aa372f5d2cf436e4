"""What a test asserts of an error: its class, that it is one line, and its facts. The sentence is free.

Facts are what a reader needs and no rewording may lose: the file, the key or option, the value that was
found, what would be right, the command that helps. `test_messages.py` has the wording of the most common.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from troll.common.errors import UserError


def check_facts(message: str, *facts: object) -> None:
    """Asserts that a message is one line and has each fact as whole words: no 1 in 10."""
    assert "\n" not in message, message
    for fact in map(str, facts):
        before = "".join((r"(?<!\w)" * fact[0].isalnum(), r"(?<!\d[.,])" * fact[0].isdigit()))
        after = "".join((r"(?!\w)" * fact[-1].isalnum(), r"(?![.,]\d)" * fact[-1].isdigit()))
        assert re.search(before + re.escape(fact) + after, message), f"{fact!r} is not in: {message}"


@contextmanager
def refused(*facts: object, error: type[Exception] = UserError) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Asserts that the block raises this error, with these facts in its one line."""
    with pytest.raises(error) as caught:
        yield caught
    check_facts(str(caught.value), *facts)


def error_of(result, *facts: object, alone: bool = True) -> str:
    """Returns the message of a command that failed, after it has checked its facts.

    Args:
        result: what `subprocess.run` returned, with stderr as text; or what `CliRunner.invoke` did.
        facts: as of `check_facts`.
        alone: whether stderr has nothing else.
    """
    if hasattr(result, "exception"):
        assert isinstance(result.exception, UserError), (result.exception, result.output)
        message = str(result.exception)
    else:
        lines = result.stderr.splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        assert result.returncode not in (0, None) and "Traceback" not in result.stderr, result.stderr
        assert len(errors) == 1 and (lines == errors or not alone), result.stderr
        message = errors[0].removeprefix("error: ")
    check_facts(message, *facts)
    return message
