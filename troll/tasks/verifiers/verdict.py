"""What became of one completion of a code problem."""

from dataclasses import dataclass
from typing import Literal

from troll.tasks.sandbox.pool import Execution

Status = Literal[
    "passed", "wrong", "timeout", "memory", "crash", "rejected", "incomparable", "infrastructure"
]


@dataclass(frozen=True)
class CodeVerdict:
    """What became of one completion."""

    base: bool  # all base inputs gave the expected outputs
    plus: bool  # all plus inputs did
    # ``passed`` when both; otherwise what went wrong first, in input order. ``incomparable``: an output could
    # not be compared with the expected one within the program's limits
    status: Status
    detail: str = ""  # a few words more

    @property
    def passed(self) -> bool:
        """Base and plus both passed."""
        return self.base and self.plus


def unfinished(execution: Execution) -> Status:
    """The status of a program that did not return all its outputs."""
    return "crash" if execution.status == "finished" else execution.status
