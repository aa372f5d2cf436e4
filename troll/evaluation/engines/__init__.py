"""Engines that sample responses, transformers and vLLM: what each takes and gives."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


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
