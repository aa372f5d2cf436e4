"""The interface of the engines that sample responses, transformers and vLLM."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Request:
    """A request for one response: the prompt's token ids, and the seed of the response's random stream."""

    prompt: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Response:
    """A response's token ids. ``finished``: it ended by itself, and not at the length limit."""

    tokens: list[int]
    finished: bool


class Engine(Protocol):
    """A loaded model."""

    @property
    def tokenizer(self) -> Any:
        """The model's transformers tokenizer."""

    @property
    def context(self) -> int | None:
        """Longest prompt and response together, in tokens; None if unknown."""

    def complete(self, requests: Sequence[Request]) -> list[Response]:
        """Returns responses in the order of the requests; each depends only on its own prompt and seed."""
