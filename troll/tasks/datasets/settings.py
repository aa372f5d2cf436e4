"""Settings of data sets, as experiment files give them: how answers are written and what is rewarded.

A setting at its default is left out of run.yaml and of the files of problems, so that both stay as they were
before the setting existed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field, model_validator

from troll.algorithms.ranges import Count
from troll.common.errors import UserError
from troll.common.settings import Settings
from troll.tasks.datasets.convert import instructed
from troll.tasks.types import Problem
from troll.tasks.verifiers.fractions import SCORED

# Follows a question of GSM8K in verl (examples/data_preprocess/gsm8k.py), with which the paper's were made.
HASHES_INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'


def _set(default: Any, description: str) -> Any:
    """Returns a field that is left out at its default."""
    return Field(default, description=description, exclude_if=lambda value: value == default)


class CodeSettings(Settings):
    """What is rewarded in code."""

    tests: Literal["all", "fraction"] = _set(
        "all",
        "reward of a program: `all`, 1 if it passes every test of the problem, else 0; `fraction`, the share "
        "of tests that it passes, each run in a process of its own (the paper's released reward)",
    )
    first: Count | None = _set(
        None, "for `tests: fraction`: only this many tests of each problem, the first ones (paper: 10)"
    )

    @model_validator(mode="after")
    def _first_needs_a_fraction(self) -> "CodeSettings":
        if self.first is not None and self.tests != "fraction":
            raise ValueError("first is for tests: fraction; leave it out, or set tests to fraction")
        return self


_ANSWERS = (
    "how answers are written and rewarded: `boxed`, in a box that is asked for, by their exact value; "
    "`lenient`, the same without units, signs and brackets around the value (as the paper's released reward "
    "of DAPO)"
)


class MathSettings(Settings):
    """How answers are written and rewarded."""

    answers: Literal["boxed", "lenient"] = _set("boxed", _ANSWERS)


class Gsm8kSettings(Settings):
    """How answers are written and rewarded."""

    answers: Literal["boxed", "lenient", "####"] = _set(
        "boxed",
        f"{_ANSWERS}; `####`, as the number after this mark, by its text, with verl's prompt (the paper's)",
    )


SystemTurn = Literal["keep", "require", "drop"]
_SYSTEM = (
    "system turn of the data's prompts: `keep`; `require`, keep, and refuse data without one (paper); "
    "`drop`, take only the user's turn, with our instruction about the box"
)


class ChatMathSettings(MathSettings):
    """How prompts and answers are written, and answers rewarded, in data whose prompts are chats."""

    system_turn: SystemTurn = _set("keep", _SYSTEM)


class ChatCodeSettings(CodeSettings):
    """How prompts are written and what is rewarded in code whose prompts are chats."""

    system_turn: SystemTurn = _set("keep", _SYSTEM)


def require_system_turn(name: str, problems: Iterable[Problem], settings: Mapping[str, Any]) -> None:
    """Refuses problems without a system turn if the settings of data set ``name`` require one."""
    if settings.get("system_turn") != "require":
        return
    for problem in problems:
        if not problem.system:
            raise UserError(
                f"tasks.{name}.settings.system_turn: is require, but problem {problem.task_id} has no system "
                "turn; use data that has one, or set it to keep"
            )


def applied(problem: Problem, settings: Mapping[str, Any]) -> Problem:
    """Returns a problem of a data set as its settings want it; at the defaults as it is."""
    if settings.get("tests") == "fraction":
        count = len(problem.record["test_list" if "test_list" in problem.record else "inputs"])
        scored = min(count, settings.get("first") or count)
        problem = replace(problem, record={**problem.record, SCORED: scored})
    if settings.get("system_turn") == "drop":
        question = problem.record.get("problem")
        prompt = problem.prompt if question is None else instructed(question)
        problem = replace(problem, system="", prompt=prompt)
    answers = settings.get("answers", "boxed")
    if answers == "boxed":
        return problem
    if answers == "####":
        problem = replace(problem, prompt=f"{problem.record['problem']} {HASHES_INSTRUCTION}")
    return replace(problem, record={**problem.record, "answers": answers})
