"""What a rehearsal has to say: one line for each thing that was looked at, with the key that is to blame."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "failed"]
_MARKS: dict[State, str] = {"ok": "ok", "note": "note", "failed": "FAILED"}


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: State  # ``ok``; ``note``: good to know, and no fault; ``failed``: the experiment would fail
    found: str
    key: str = ""  # the place in a configuration file that decides it; empty where all is well

    def line(self) -> str:
        """The check as a line of text."""
        return f"{_MARKS[self.state]:8}{self.name:18}{self.key}{': ' if self.key else ''}{self.found}"


def failures_or_ok(name: str, failures: Iterable[Check], otherwise: str) -> list[Check]:
    """The failures and notes of a check, or the one line that all is well."""
    checks = list(failures)
    return (
        checks if any(item.state == "failed" for item in checks) else [*checks, Check(name, "ok", otherwise)]
    )


def failed(checks: Sequence[Check]) -> list[Check]:
    """Those that failed."""
    return [check for check in checks if check.state == "failed"]
