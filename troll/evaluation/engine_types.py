"""What every engine takes and gives."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from troll.errors import UserError


@dataclass(frozen=True)
class Request:
    """One response to be written: the prompt's token ids, and the seed of the response's random stream."""

    prompt: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Response:
    """Token ids with the end of text, if the response ended by itself (``finished``)."""

    tokens: list[int]
    finished: bool


class Engine(Protocol):
    """A loaded model."""

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer, of transformers."""

    @property
    def context(self) -> int | None:
        """Longest prompt and response together, in tokens; None if nothing says so."""

    def complete(self, requests: Sequence[Request]) -> list[Response]:
        """Responses in the order of the requests; each depends on its own prompt and seed alone."""


def loading_error(checkpoint: Path, error: Exception) -> UserError:
    """What to say of a model that does not load."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return UserError(f"{checkpoint}: not a model that can be loaded ({reason})")
