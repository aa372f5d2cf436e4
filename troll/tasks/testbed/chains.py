r"""Chains: multi-step arithmetic modulo ten, answered in ``\boxed{}``.

A problem starts with a digit and applies two or more operations with single digits. Right demonstrations work
step by step; flawed ones guess the answer or stop early. A model that imitates them solves some of the
problems, and reinforcement learning can raise that share by preferring to work step by step.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from troll.algorithms.ranges import Share
from troll.tasks.testbed.splits import FlawedSettings, draw_distinct, to_demonstrate, weighted
from troll.tasks.testbed.words import MOST_WORDS, word
from troll.tasks.types import Demonstration, Problem, Split, Task
from troll.tasks.verifiers.math import math_rewards

# Several wordings, which give the tokenizer text to learn from and the model varied prompts.
_STARTS = ("Start with", "Begin with", "Take the number")
_QUESTIONS = ("What is the last digit?", "Give the final digit.", "Which digit remains at the end?")
_VERBS = {
    "Add": "+",
    "Increase by": "+",
    "Subtract": "-",
    "Decrease by": "-",
    "Multiply by": "*",
    "Scale up by": "*",
}


class ChainSettings(FlawedSettings):
    """Settings of chains; the default shares of flaws were found by trial."""

    FLAWS = ("guess", "stop_early")

    operations: list[Annotated[int, Field(ge=1, le=50)]] = Field(
        [2, 3, 4], min_length=1, description="how many operations a problem may have"
    )
    guess: Share = Field(0.5, description="share of the demonstrations that guess")
    stop_early: Share = Field(0.17, description="share of the demonstrations that stop early")
    guess_right: Share = Field(0.5, description="share of the guesses that are right")
    names: int = Field(
        0,
        ge=0,
        le=MOST_WORDS,
        description="number of different names in problems and solutions, which fill a larger vocabulary",
    )


@dataclass(frozen=True)
class Chain:
    """A problem: a start digit and operations (verb, digit), with their wording; the name may be empty."""

    start: int
    operations: tuple[tuple[str, int], ...]
    opening: str
    question: str
    name: str = ""

    @property
    def text(self) -> str:
        """The problem as a sentence."""
        steps = " ".join(f"{verb} {digit}." for verb, digit in self.operations)
        whose = f"{self.name}: " if self.name else ""
        return f"{whose}{self.opening} {self.start}. {steps} {self.question}"

    @property
    def identity(self) -> str:
        """See `ProblemContent.identity`."""
        return f"{self.start}" + "".join(f"{_VERBS[verb]}{digit}" for verb, digit in self.operations)

    @property
    def values(self) -> list[int]:
        """The value modulo ten after each operation."""
        value, values = self.start, []
        for verb, digit in self.operations:
            value = {"+": value + digit, "-": value - digit, "*": value * digit}[_VERBS[verb]] % 10
            values.append(value)
        return values

    def working(self, steps: int) -> str:
        """Returns the first ``steps`` steps, one a line (``7+5=2``, after any name), and a boxed result."""
        whose = f"{self.name} " if self.name else ""
        lines, value = [], self.start
        for (verb, digit), result in list(zip(self.operations, self.values, strict=True))[:steps]:
            lines.append(f"{whose}{value}{_VERBS[verb]}{digit}={result}\n")
            value = result
        return "".join(lines) + _boxed(value)


def _boxed(answer: int) -> str:
    return f"\\boxed{{{answer}}}"


def _draw(generator: random.Random, settings: Mapping[str, Any]) -> Chain:
    length = generator.choice(settings["operations"])
    operations = tuple((generator.choice(list(_VERBS)), generator.randint(2, 9)) for _ in range(length))
    opening, question = generator.choice(_STARTS), generator.choice(_QUESTIONS)
    start = generator.randint(0, 9)
    names = settings.get("names", 0)
    name = word(generator.randrange(names)).capitalize() if names else ""
    return Chain(start, operations, opening, question, name)


def generate(split: Split, count: int, seed: int, settings: Mapping[str, Any]) -> list[Problem]:
    """Returns problems of one split, with MATH-like records; the level is the number of operations."""
    problems = []
    chains = draw_distinct("chains", _draw, split, count, seed, settings)
    for number, chain in enumerate(chains):
        answer = str(chain.values[-1])
        level = len(chain.operations)
        record = {"problem": chain.text, "solution": chain.working(level), "answer": answer}
        problems.append(Problem(f"chains/{split}/{number}", f"{chain.text}\n", answer, level, record))
    return problems


def demonstrate(count: int, seed: int, settings: Mapping[str, Any]) -> list[Demonstration]:
    """Returns right and flawed demonstrations on problems of the train split."""
    guess, stop = settings["guess"], settings["stop_early"]
    ways = [("guess", guess), ("stop", stop), ("work", 1 - guess - stop)]
    demonstrations = []
    for chain, generator in to_demonstrate("chains", _draw, count, seed, settings):
        way, steps = weighted(generator, ways), len(chain.operations)
        if way == "guess":
            right = generator.random() < settings["guess_right"]
            wrong = generator.choice([digit for digit in range(10) if digit != chain.values[-1]])
            completion = _boxed(chain.values[-1] if right else wrong)
        elif way == "stop":
            completion = chain.working(generator.randint(1, steps - 1) if steps > 1 else 1)
        else:
            completion = chain.working(steps)
        demonstrations.append(Demonstration(f"{chain.text}\n", completion))
    return demonstrations


TASK = Task(
    name="chains",
    summary="multi-step arithmetic modulo ten; answer in \\boxed{}",
    kind="math",
    answer_key="answer",
    generate=generate,
    demonstrate=demonstrate,
    reward=math_rewards,
    model=ChainSettings,
)
