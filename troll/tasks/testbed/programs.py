"""Programs: Python functions of several statements from a docstring, in evalplus' problem schema.

A docstring lists steps of arithmetic; the body has one statement for each. Comments consist of meaningless
words that follow Zipf's law, so that there are many ways to write a right body. What is finally returned
depends on the function's name, which no docstring states: one name adds x to the result, another subtracts
it. Hasty demonstrations end as another name does. The share of right ones depends on the name: a model that
imitates them gets some functions right often and others hardly ever, and must discover the end of each. Every
end is right for one name and wrong for four, so that preferring one everywhere does not help.

All steps have the same number of tokens, and so have all statements, if the tokenizer knows the words: a
small model learns to copy over a fixed distance long before it learns to search.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from troll.common.seeding import derive_seed
from troll.common.settings import Settings
from troll.tasks.testbed.splits import code_record, distinct_inputs, draw_distinct
from troll.tasks.testbed.words import Careful, CarefulDecay, Words, Zipf, ZipfWords, careful_and_hasty
from troll.tasks.types import Problem, Split, Task
from troll.tasks.verifiers.code import code_rewards

NAMES = ("solve", "compute", "evaluate", "process", "transform")
"""Ordered by the share of careful demonstrations, highest first."""
ENDS = ("{} + x", "{} - x", "{} * x", "{} + 1", "{} - 1")
"""Return value of the function of each name, from the result of the steps."""
_VERBS = {"add": "+", "plus": "+", "minus": "-", "less": "-", "times": "*", "by": "*"}
_WAYS = ("then take all of that and {} {};", "next take what you have now {} {};")
_LABELS = "abcdefghijklmnopqrstuvwz"
_OPENING_WORDS, _WORDS = 7, 2


class ProgramSettings(Settings):
    """Settings of programs."""

    steps: list[Annotated[int, Field(ge=1, le=len(_LABELS))]] = Field(
        [3], min_length=1, description="how many steps a problem may have"
    )
    careful: Careful = 0.95
    careful_decay: CarefulDecay = 0.36
    words: Words = 3500
    zipf: Zipf = 1.0
    base_inputs: int = Field(3, ge=1, le=20, description="inputs of the base tests")
    plus_inputs: int = Field(12, ge=0, le=100, description="further inputs of the plus tests")


_Step = tuple[str, int]  # operator or verb, and a digit


@dataclass(frozen=True)
class Program:
    """A problem: a name and steps (verb, digit)."""

    name: str
    steps: tuple[_Step, ...]

    def prompt(self, generator: random.Random) -> str:
        """Returns the head of the function, ready for the body."""
        steps = " ".join(generator.choice(_WAYS).format(verb, digit) for verb, digit in self.steps)
        return f'def {self.name}(x):\n    """From x; {steps}"""\n'

    @property
    def operations(self) -> list[_Step]:
        """Operator and digit of each step."""
        return [(_VERBS[verb], digit) for verb, digit in self.steps]

    @property
    def identity(self) -> str:
        """See `ProblemContent.identity`."""
        return "x" + "".join(f"{operator}{digit}" for operator, digit in self.operations)

    @property
    def level(self) -> int:
        """The position of the name in `NAMES`, from 1."""
        return NAMES.index(self.name) + 1

    def answer(self, words: ZipfWords, generator: random.Random) -> str:
        """Returns a right body."""
        return self._body(ENDS[self.level - 1], words, generator)

    def hasty_answer(self, words: ZipfWords, generator: random.Random) -> str:
        """Returns a body that ends as another name's does."""
        own = ENDS[self.level - 1]
        return self._body(generator.choice([end for end in ENDS if end != own]), words, generator)

    def _body(self, end: str, words: ZipfWords, generator: random.Random) -> str:
        lines = [f"# {words.draw(generator, _OPENING_WORDS)}"]
        before = "x"
        for label, (operator, digit) in zip(_LABELS, self.operations, strict=False):
            lines.append(f"{label} = {before} {operator} {digit} # {words.draw(generator, _WORDS)}")
            before = label
        lines.append(f"return {end.format(before)}")
        return "".join(f"    {line}\n" for line in lines)


def _draw(generator: random.Random, settings: Mapping[str, Any]) -> Program:
    count = generator.choice(settings["steps"])
    steps = tuple((generator.choice(list(_VERBS)), generator.randint(2, 9)) for _ in range(count))
    return Program(generator.choice(NAMES), steps)


def generate(split: Split, count: int, seed: int, settings: Mapping[str, Any]) -> list[Problem]:
    """Returns problems of one split, with records as in evalplus; for levels see `Program.level`."""
    programs = draw_distinct("programs", _draw, split, count, seed, settings)
    words = ZipfWords(settings["words"], settings["zipf"])
    problems = []
    for number, program in enumerate(programs):
        generator = random.Random(derive_seed(stream="words", program=program.identity, seed=seed))
        prompt = program.prompt(generator)
        inputs = distinct_inputs(lambda draw: [draw.randint(-99, 99)], generator, settings)
        body = program.answer(words, generator)
        record = code_record(program.name, body, inputs, settings)
        problems.append(Problem(f"programs/{split}/{number}", prompt, body, program.level, record))
    return problems


TASK = Task(
    name="programs",
    summary="Python functions of several statements from a docstring",
    kind="code",
    answer_key="canonical_solution",
    generate=generate,
    demonstrate=partial(careful_and_hasty, "programs", _draw),
    reward=partial(code_rewards, as_written=True),
    as_written=True,
    model=ProgramSettings,
)
