r"""Locks: the code of a combination lock after several turns of its dials, answered in ``\boxed{}``.

A turn moves each dial by a digit of its own: addition modulo ten, digit by digit. Every sentence of an answer
starts with meaningless words that follow Zipf's law, so that there are many ways to write a right answer.
Each metal has its own sign, which no problem states: demonstrations with that sign add correctly, those with
another metal's sign guess. The share of demonstrations with the right sign depends on the metal: a model that
imitates them opens some locks often and others hardly ever, and must discover the sign of each. Every sign is
right for one metal and wrong for four, so that preferring one everywhere does not help. Codes cannot be
guessed: with two dials, one guess in a hundred is right.

Sentences of problems and answers have equal numbers of words, and of tokens if the tokenizer knows the words:
a small model learns to copy over a fixed distance long before it learns to search.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from troll.common.seeding import derive_seed
from troll.common.settings import Settings
from troll.tasks.testbed.splits import draw_distinct
from troll.tasks.testbed.words import Careful, CarefulDecay, Words, Zipf, ZipfWords, careful_and_hasty
from troll.tasks.types import Problem, Split, Task
from troll.tasks.verifiers.math import math_rewards

METALS = ("iron", "steel", "brass", "copper", "silver")
"""Ordered by the share of careful demonstrations, highest first."""
SIGNS = ("=", ":", ">", "~", "|")
"""The sign of each metal, which careful demonstrations write between a turn and the code after it."""
_WAYS = ("then turn it {} up;", "now move it {} on;", "next push it {} along;")
_OPENING_WORDS = 7


class LockSettings(Settings):
    """Settings of locks."""

    turns: list[Annotated[int, Field(ge=1, le=50)]] = Field(
        [4], min_length=1, description="how many turns a problem may have"
    )
    dials: int = Field(2, ge=1, le=6, description="number of dials of a lock")
    farthest: int = Field(3, ge=1, le=9, description="largest step by which a turn moves a dial")
    careful: Careful = 0.95
    careful_decay: CarefulDecay = 0.36
    words: Words = 3500
    zipf: Zipf = 1.0


_Code = tuple[int, ...]


@dataclass(frozen=True)
class Lock:
    """A problem: a metal, a code and turns; codes and turns have one digit per dial."""

    metal: str
    start: _Code
    turns: tuple[_Code, ...]

    @property
    def sign(self) -> str:
        """The sign of the metal."""
        return SIGNS[self.level - 1]

    @property
    def identity(self) -> str:
        """See `ProblemContent.identity`."""
        return "+".join(map(_digits, (self.start, *self.turns)))

    @property
    def level(self) -> int:
        """The position of the metal in `METALS`, from 1."""
        return METALS.index(self.metal) + 1

    @property
    def codes(self) -> list[_Code]:
        """The code after each turn."""
        code, codes = self.start, []
        for turn in self.turns:
            code = tuple((dial + digit) % 10 for dial, digit in zip(code, turn, strict=True))
            codes.append(code)
        return codes

    def prompt(self, generator: random.Random) -> str:
        """Returns the problem as a line of sentences."""
        turns = [generator.choice(_WAYS).format(_digits(turn)) for turn in self.turns]
        return " ".join([f"{self.metal} lock {_digits(self.start)};", *turns]) + "\n"

    def answer(self, words: ZipfWords, generator: random.Random) -> str:
        """Returns a right answer: the first code, a sentence for each turn, and the last code in a box."""
        return self._working(self.sign, self.codes, words, generator)

    def hasty_answer(self, words: ZipfWords, generator: random.Random) -> str:
        """Returns an answer with another metal's sign and guessed codes."""
        sign = generator.choice([sign for sign in SIGNS if sign != self.sign])
        guesses = [tuple(generator.randint(0, 9) for _ in self.start) for _ in self.turns]
        return self._working(sign, guesses, words, generator)

    def _working(self, sign: str, codes: list[_Code], words: ZipfWords, generator: random.Random) -> str:
        # A space first, so that each word always follows a space and has one token.
        text = f" {words.draw(generator, _OPENING_WORDS)} {_digits(self.start)};"
        for turn, code in zip(self.turns, codes, strict=True):
            text += f" {words.draw(generator, 1)} {_digits(turn)}{sign}{_digits(code)};"
        return f"{text} \\boxed{{{_digits(codes[-1])}}}"


def _digits(code: _Code) -> str:
    return "".join(map(str, code))


def _draw(generator: random.Random, settings: Mapping[str, Any]) -> Lock:
    def code(low: int, high: int) -> _Code:
        return tuple(generator.randint(low, high) for _ in range(settings["dials"]))

    count = generator.choice(settings["turns"])
    turns = tuple(code(1, settings["farthest"]) for _ in range(count))
    return Lock(generator.choice(METALS), code(0, 9), turns)


def generate(split: Split, count: int, seed: int, settings: Mapping[str, Any]) -> list[Problem]:
    """Returns problems of one split, with MATH-like records; for levels see `Lock.level`."""
    locks = draw_distinct("locks", _draw, split, count, seed, settings)
    words = ZipfWords(settings["words"], settings["zipf"])
    problems = []
    for number, lock in enumerate(locks):
        generator = random.Random(derive_seed(stream="words", lock=lock.identity, seed=seed))
        prompt, answer = lock.prompt(generator), _digits(lock.codes[-1])
        solution = lock.answer(words, generator)
        record = {"problem": prompt.removesuffix("\n"), "solution": solution, "answer": answer}
        problems.append(Problem(f"locks/{split}/{number}", prompt, answer, lock.level, record))
    return problems


TASK = Task(
    name="locks",
    summary="the code of a combination lock after several turns; answer in \\boxed{}",
    kind="math",
    answer_key="answer",
    generate=generate,
    demonstrate=partial(careful_and_hasty, "locks", _draw),
    reward=math_rewards,
    model=LockSettings,
)
