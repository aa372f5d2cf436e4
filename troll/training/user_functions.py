"""Rewards and tools in files of the user, which ``training.reward`` and ``training.tools`` name."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers.utils import get_json_schema

from troll.common.errors import UserError
from troll.common.user_files import load_callable
from troll.tasks.types import Problem
from troll.training.trl_parts import add_response_schema

Reward = Callable[[Sequence[Problem], Sequence[str]], list[float]]


def load_reward(name: str | None) -> Reward | None:
    """Loads a reward: maps problems and the judged texts of responses to a number for each response.

    Raises:
        UserError: there is no such function; when called, if it does not give a finite number for each.
    """
    if name is None:
        return None
    function = load_callable(name, "training.reward")

    def reward(problems: Sequence[Problem], texts: Sequence[str]) -> list[float]:
        with torch.no_grad():
            found = function(problems, texts)
        values = found.tolist() if isinstance(found, torch.Tensor) else found
        try:
            numbers = [float(value) for value in values]
        except (TypeError, ValueError):
            numbers = []
        if len(numbers) != len(texts) or not all(map(math.isfinite, numbers)):
            raise UserError(
                f"training.reward: {name} returned {str(values)[:80]!r} for {len(texts)} responses; must be "
                "a finite number for each"
            )
        return numbers

    return reward


def load_tools(names: Sequence[str], tokenizer: Any) -> list[Any] | None:
    """Loads tools, and makes the tokenizer read calls of them in responses; None if there are none.

    Raises:
        UserError: there is no such function, it is not described as chat templates need it, or the template
            is none in which TRL can read calls.
    """
    if not names:
        return None
    tools = [load_callable(name, "training.tools") for name in names]
    for name, tool in zip(names, tools, strict=True):
        try:
            get_json_schema(tool)
        except Exception as error:  # transformers has several classes
            raise UserError(f"training.tools: {name}: {' '.join(str(error).split())}") from None
    if getattr(tokenizer, "response_template", None) is None:
        try:
            add_response_schema(tokenizer)
        except ValueError:
            raise UserError(
                "training.tools: TRL cannot read calls of tools with the chat template of this model; use a "
                "model with a template that it knows, such as Qwen3, or leave tools out"
            ) from None
    return tools


def answer_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """The answer of a response of several turns: the text of the last one; empty if that calls a tool."""
    last = messages[-1]
    return "" if last["role"] != "assistant" or last.get("tool_calls") else str(last.get("content") or "")
