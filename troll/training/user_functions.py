"""Rewards, tools and environments in files of the user.

The keys ``training.reward``, ``training.tools`` and ``training.environment`` name them.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from types import MethodType
from typing import Any

import torch
from transformers.utils import get_json_schema

from troll.common.errors import UserError
from troll.common.user_files import load_callable
from troll.experiment.validation import two_rewards
from troll.tasks.types import Problem
from troll.training.trl_parts import READS_CALLS_WITH_JMESPATH, add_response_schema

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
        return _finite(values, f"training.reward: {name}", len(texts))

    return reward


def _finite(values: Any, where: str, count: int) -> list[float]:
    """The rewards of ``count`` responses; raises unless they are finite numbers."""
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != count or not all(map(math.isfinite, numbers)):
        raise UserError(
            f"{where} returned {str(values)[:80]!r} for {count} responses; must be a finite number for each"
        )
    return numbers


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
        _check_described(f"training.tools: {name}", tool)
    _read_calls("training.tools", tokenizer)
    return tools


@dataclass(frozen=True)
class Environment:
    """Makes an environment for each response, as TRL's ``environment_factory`` does.

    TRL passes the row of its data set to ``reset``; here it gets the problem of the row.
    """

    make: Callable[[], Any]
    problems: Mapping[str, Problem]  # by task_id
    gives_reward: bool
    where: str  # for messages

    def __call__(self) -> Any:
        """Makes an environment."""
        made = self.make()
        begin = made.reset

        def reset(_: Any, task_id: str, **row: Any) -> Any:
            return begin(self.problems[task_id])

        made.reset = MethodType(reset, made)
        if self.gives_reward:
            score = made.get_reward

            def get_reward(_: Any) -> float:
                return _finite([score()], f"{self.where}: get_reward", 1)[0]

            made.get_reward = MethodType(get_reward, made)
        return made


def load_environment(
    name: str | None, problems: Mapping[str, Problem], tokenizer: Any, *, reward: str | None = None
) -> Environment | None:
    """Loads an environment, and makes the tokenizer read calls in responses; None if none is named.

    As in TRL, ``reset`` may return text that is added to the prompt, the other public methods are tools, and
    ``get_reward``, if there is one, gives the reward.

    Args:
        name: ``file.py:Class``, or a function without arguments that makes an environment.
        problems: by ``task_id``.
        tokenizer: of the policy.
        reward: ``training.reward``, which excludes ``get_reward``.

    Raises:
        UserError: there is no such class, it lacks ``reset`` or methods, they are not described as chat
            templates need it, or there would be two rewards; in a run, if ``get_reward`` gives no number.
    """
    if name is None:
        return None
    make, where = load_callable(name, "training.environment"), f"training.environment: {name}"
    try:
        first = make()
    except Exception as error:
        said = " ".join(str(error).split())
        raise UserError(f"{where}: cannot be made without arguments ({said})") from None
    methods = dict(inspect.getmembers(type(first), inspect.isfunction))
    tools = [one for one in methods if one not in ("reset", "get_reward") and not one.startswith("_")]
    if "reset" not in methods:
        raise UserError(f"{where}: has no method reset(self, problem), which begins a response")
    if not tools:
        raise UserError(f"{where}: has no public method that a response could call")
    for tool in tools:
        _check_described(f"{where}.{tool}", getattr(first, tool))
    if inspect.iscoroutinefunction(methods.get("get_reward")):
        raise UserError(f"{where}: get_reward is async; must be an ordinary method")
    if "get_reward" in methods and reward is not None:
        raise UserError(two_rewards(name, reward))
    _read_calls("training.environment", tokenizer)
    return Environment(make, problems, "get_reward" in methods, where)


def _check_described(where: str, function: Any) -> None:
    """Rejects a function that a chat template cannot describe to the model."""
    try:
        get_json_schema(function)
    except Exception as error:  # transformers has several classes
        raise UserError(f"{where}: {' '.join(str(error).split())}") from None


def _read_calls(key: str, tokenizer: Any) -> None:
    """Makes the tokenizer read calls in responses."""
    if READS_CALLS_WITH_JMESPATH and find_spec("jmespath") is None:
        raise UserError(
            f"{key}: trl {version('trl')} reads calls of tools with the package jmespath, which is not "
            "installed: pip install jmespath, or 'trl>=1.10'"
        )
    if getattr(tokenizer, "response_template", None) is None:
        try:
            add_response_schema(tokenizer)
        except ValueError:
            raise UserError(
                f"{key}: TRL cannot read calls of tools with the chat template of this model; use a model "
                f"with a template that it knows, such as Qwen3, or leave {key} out"
            ) from None


def answer_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """The answer of a response of several turns: the text of the last one; empty if that calls a tool."""
    last = messages[-1]
    return "" if last["role"] != "assistant" or last.get("tool_calls") else str(last.get("content") or "")
