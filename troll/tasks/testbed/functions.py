"""Functions: small Python functions from a signature and a docstring, in evalplus' problem schema.

Level 1 is one operation with constants; level 2 composes two. Flawed demonstrations print instead of
returning, or answer another problem.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from troll.algorithms.ranges import Share
from troll.common.seeding import derive_seed
from troll.tasks.testbed.splits import (
    FlawedSettings,
    code_record,
    distinct_inputs,
    draw_distinct,
    to_demonstrate,
    weighted,
)
from troll.tasks.types import Demonstration, Problem, Split, Task
from troll.tasks.verifiers.code import code_rewards

_NAMES = ("f", "g", "solve", "compute", "evaluate", "apply", "process", "transform")
_VERBS = ("Return", "Calculate", "Determine", "Produce", "Find", "Give back")


class FunctionSettings(FlawedSettings):
    """Settings of functions; all other demonstrations are right."""

    FLAWS = ("print", "other")

    levels: list[Annotated[int, Field(ge=1, le=2)]] = Field(
        [1, 2], min_length=1, description="levels of the problems"
    )
    print: Share = Field(0.45, description="share of the demonstrations that print instead of returning")
    other: Share = Field(0.15, description="share of the demonstrations that answer another problem")
    base_inputs: int = Field(3, ge=1, le=20, description="inputs of the base tests")
    # A function of x has 41 different arguments.
    plus_inputs: int = Field(12, ge=0, le=20, description="further inputs of the plus tests")


# By level: signature, and sentence and expression with the constants a and b.
_FAMILIES: dict[int, list[tuple[str, str, str]]] = {
    1: [
        ("x", "x plus {a}", "x + {a}"),
        ("x", "x minus {a}", "x - {a}"),
        ("x", "{a} times x", "{a} * x"),
        ("x", "the remainder of x divided by {a}", "x % {a}"),
        ("x", "the larger of x and {a}", "max(x, {a})"),
        ("x", "the smaller of x and {a}", "min(x, {a})"),
        ("x, y", "x plus y plus {a}", "x + y + {a}"),
        ("x, y", "{a} times x plus y", "{a} * x + y"),
        ("x, y", "the larger of x and y, plus {a}", "max(x, y) + {a}"),
        ("xs", "the sum of xs plus {a}", "sum(xs) + {a}"),
        ("xs", "the largest of xs plus {a}", "max(xs) + {a}"),
        ("xs", "the smallest of xs minus {a}", "min(xs) - {a}"),
        ("xs", "{a} times the length of xs", "{a} * len(xs)"),
        ("xs", "xs with {a} added to each", "[x + {a} for x in xs]"),
        ("xs", "xs with each multiplied by {a}", "[x * {a} for x in xs]"),
        ("xs", "the items of xs larger than {a}", "[x for x in xs if x > {a}]"),
        ("xs", "how often {a} is in xs", "xs.count({a})"),
    ],
    2: [
        ("x", "{a} times x plus {b}", "{a} * x + {b}"),
        ("x", "x plus {a}, times {b}", "(x + {a}) * {b}"),
        ("x", "the remainder of x plus {a} divided by {b}", "(x + {a}) % {b}"),
        ("x, y", "{a} times x plus {b} times y", "{a} * x + {b} * y"),
        ("x, y", "x plus {a}, times y plus {b}", "(x + {a}) * (y + {b})"),
        ("x", "the square of x plus {a}, minus {b}", "(x + {a}) ** 2 - {b}"),
        ("x", "the absolute value of x minus {a}, plus {b}", "abs(x - {a}) + {b}"),
        ("x", "the quotient of x and {a}, rounded down, plus {b}", "x // {a} + {b}"),
        ("x, y", "the product of x and y, plus {a} times {b}", "x * y + {a} * {b}"),
        ("xs", "the number of items of xs from {a} on, times {b}", "sum(x >= {a} for x in xs) * {b}"),
        (
            "xs",
            "the sorted items of xs, each plus {a} and times {b}",
            "[(x + {a}) * {b} for x in sorted(xs)]",
        ),
        ("x", "the larger of x plus {a} and {b}", "max(x + {a}, {b})"),
        ("x", "the smaller of {a} times x and {b}", "min({a} * x, {b})"),
        ("x, y", "the larger of x plus {a} and y plus {b}", "max(x + {a}, y + {b})"),
        ("x, y", "the smaller of x and y, times {a}, plus {b}", "min(x, y) * {a} + {b}"),
        ("xs", "the largest of xs times {a} plus {b}", "max(xs) * {a} + {b}"),
        ("xs", "the sum of the items of xs larger than {a}, plus {b}", "sum(x for x in xs if x > {a}) + {b}"),
        ("xs", "{a} times the sum of xs plus {b}", "{a} * sum(xs) + {b}"),
        ("xs", "xs with each multiplied by {a} plus {b}", "[x * {a} + {b} for x in xs]"),
        ("xs", "the items of xs from {a} to {b}", "[x for x in xs if {a} <= x <= {b}]"),
    ],
}


@dataclass(frozen=True)
class Function:
    """A problem: a name and signature, and what the function returns, in words and as an expression."""

    name: str
    verb: str
    signature: str
    sentence: str
    expression: str
    level: int

    @property
    def identity(self) -> str:
        """See `ProblemContent.identity`."""
        return f"{self.signature}: {self.expression}"

    @property
    def prompt(self) -> str:
        """The head of the function, ready for the body."""
        return f'def {self.name}({self.signature}):\n    """{self.verb} {self.sentence}."""\n'


def _draw(generator: random.Random, settings: Mapping[str, Any]) -> Function:
    level = generator.choice(settings["levels"])
    signature, sentence, expression = generator.choice(_FAMILIES[level])
    low, high = generator.randint(2, 9), generator.randint(2, 9)
    if "<=" in expression:
        low, high = min(low, high), max(low, high)
    name, verb = generator.choice(_NAMES), generator.choice(_VERBS)
    return Function(
        name, verb, signature, sentence.format(a=low, b=high), expression.format(a=low, b=high), level
    )


_ARGUMENTS: dict[str, Callable[[random.Random], list[Any]]] = {
    "x": lambda generator: [generator.randint(-20, 20)],
    "x, y": lambda generator: [generator.randint(-20, 20), generator.randint(-20, 20)],
    "xs": lambda generator: [[generator.randint(-3, 12) for _ in range(generator.randint(1, 6))]],
}


def generate(split: Split, count: int, seed: int, settings: Mapping[str, Any]) -> list[Problem]:
    """Returns problems of one split, with records as in evalplus."""
    problems = []
    functions = draw_distinct("functions", _draw, split, count, seed, settings)
    for number, function in enumerate(functions):
        generator = random.Random(derive_seed(stream="inputs", prompt=function.prompt, seed=seed))
        inputs = distinct_inputs(_ARGUMENTS[function.signature], generator, settings)
        body = f"    return {function.expression}\n"
        record = code_record(function.name, body, inputs, settings)
        problems.append(Problem(f"functions/{split}/{number}", function.prompt, body, function.level, record))
    return problems


def demonstrate(count: int, seed: int, settings: Mapping[str, Any]) -> list[Demonstration]:
    """Returns right and flawed demonstrations on train problems; problems may repeat with other flaws."""
    ways = [("print", settings["print"]), ("other", settings["other"])]
    ways.append(("right", 1 - settings["print"] - settings["other"]))
    demonstrations = []
    for function, generator in to_demonstrate("functions", _draw, count, seed, settings):
        way, answered = weighted(generator, ways), function
        if way == "other":  # a problem with the same arguments
            while answered.expression == function.expression or answered.signature != function.signature:
                answered = _draw(generator, settings)
        body = f"print({answered.expression})" if way == "print" else f"return {answered.expression}"
        demonstrations.append(Demonstration(function.prompt, f"    {body}\n"))
    return demonstrations


TASK = Task(
    name="functions",
    summary="small Python functions from a signature and a docstring",
    kind="code",
    answer_key="canonical_solution",
    generate=generate,
    demonstrate=demonstrate,
    reward=partial(code_rewards, as_written=True),
    as_written=True,
    model=FunctionSettings,
)
