r"""Locks: the code of a combination lock after several turns of its dials, answered in ``\boxed{}``.

A turn moves every dial by a digit of its own, past nine to nought: addition modulo ten, digit by digit. Words
that mean nothing and follow Zipf's law open every sentence of the working, so that there are many ways to
write a right answer. Each metal has a sign of its own, which no problem states: demonstrations with that sign
add with care, those with another metal's sign guess. How many have the right sign depends on the metal: a
model that imitates them opens some locks often and others hardly ever, and has to find the sign of each for
itself. Every sign is right for one metal and wrong for four, so that preferring it everywhere does not help.
The code cannot be guessed: with two dials one guess in a hundred is right.

Sentences of problem and answer have as many words each, and as many tokens where the tokenizer knows the
words: a small model learns to copy over a fixed distance long before it learns to search.
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
"""From the one whose locks are opened with the most care."""
SIGNS = ("=", ":", ">", "~", "|")
"""What stands between a turn and the code after it where one adds with care, for each metal."""
_WAYS = ("then turn it {} up;", "now move it {} on;", "next push it {} along;")
_OPENING_WORDS = 7


class LockSettings(Settings):
    """Settings of locks."""

    turns: list[Annotated[int, Field(ge=1, le=50)]] = Field(
        [4], min_length=1, description="how many turns a problem may have"
    )
    dials: int = Field(2, ge=1, le=6, description="dials of a lock")
    farthest: int = Field(3, ge=1, le=9, description="farthest that a turn moves a dial")
    careful: Careful = 0.95
    careful_decay: CarefulDecay = 0.36
    words: Words = 3500
    zipf: Zipf = 1.0


_Code = tuple[int, ...]


@dataclass(frozen=True)
class Lock:
    """A metal, a code and turns; codes and turns are tuples of digits, a dial each."""

    metal: str
    start: _Code
    turns: tuple[_Code, ...]

    @property
    def sign(self) -> str:
        """The sign with which this metal's locks are opened."""
        return SIGNS[self.level - 1]

    @property
    def identity(self) -> str:
        """What the problem asks, whatever its wording."""
        return "+".join(map(_digits, (self.start, *self.turns)))

    @property
    def level(self) -> int:
        """The place of the metal among `METALS`, from 1."""
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
        """The problem as a line of sentences."""
        turns = [generator.choice(_WAYS).format(_digits(turn)) for turn in self.turns]
        return " ".join([f"{self.metal} lock {_digits(self.start)};", *turns]) + "\n"

    def answer(self, words: ZipfWords, generator: random.Random) -> str:
        """A right answer: the first code, a sentence for each turn, and the last code in a box."""
        return self._working(self.sign, self.codes, words, generator)

    def hasty_answer(self, words: ZipfWords, generator: random.Random) -> str:
        """Another metal's sign, and guesses."""
        sign = generator.choice([sign for sign in SIGNS if sign != self.sign])
        guesses = [tuple(generator.randint(0, 9) for _ in self.start) for _ in self.turns]
        return self._working(sign, guesses, words, generator)

    def _working(self, sign: str, codes: list[_Code], words: ZipfWords, generator: random.Random) -> str:
        # A space first: words then have one form only, and one token.
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
    """Problems of one split, as MATH-like records; the level is the metal's place among `METALS`."""
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
