"""Meaningless words with the frequencies of natural text.

A line of an answer may start with any of them. So a model that imitates such lines has positions where many
tokens would do, and distributions with a long tail, as language models have and arithmetic alone does not.
"""

import functools
import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from troll.tasks.testbed.splits import Draw, to_demonstrate
from troll.tasks.types import Demonstration

_SYLLABLES = tuple(consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou")
# Has no common factor with 4,900, so that every word occurs once; successive words share no syllable.
_STRIDE = 71

MOST_WORDS = len(_SYLLABLES) ** 2
"""Number of different words; each has two syllables, and none is a word of Python."""

Careful = Annotated[float, Field(ge=0, le=1, description="share of careful demonstrations at level 1")]
CarefulDecay = Annotated[float, Field(ge=0, le=1, description="factor on that share per further level")]
Words = Annotated[int, Field(ge=1, le=MOST_WORDS, description="number of different meaningless words")]
Zipf = Annotated[float, Field(ge=0, le=5, description="exponent of Zipf's law")]


def careful_share(level: int, settings: Mapping[str, Any]) -> float:
    """Returns the share of careful demonstrations at a level (from 1)."""
    return float(settings["careful"] * settings["careful_decay"] ** (level - 1))


def word(number: int) -> str:
    """Returns the word with this number, from 0 to 4,899."""
    first, second = divmod(number * _STRIDE % MOST_WORDS, len(_SYLLABLES))
    return _SYLLABLES[first] + _SYLLABLES[second]


@functools.cache
def _cumulative(count: int, exponent: float) -> tuple[float, ...]:
    return tuple(itertools.accumulate(rank**-exponent for rank in range(1, count + 1)))


@dataclass(frozen=True)
class ZipfWords:
    """Words whose frequency is proportional to 1 / r^a at rank r.

    Source: Zipf's law; a is near 1 in natural text (Piantadosi 2014, "Zipf's word frequency law in natural
    language").
    """

    count: int  # number of words
    exponent: float  # a; with 0 all are equally frequent

    def draw(self, generator: random.Random, number: int) -> str:
        """Draws words with replacement, and joins them by spaces."""
        weights = _cumulative(self.count, self.exponent)
        ranks = generator.choices(range(self.count), cum_weights=weights, k=number)
        return " ".join(map(word, ranks))


def careful_and_hasty(
    task: str, draw: Draw[Any], count: int, seed: int, settings: Mapping[str, Any]
) -> list[Demonstration]:
    """Returns demonstrations on train problems, careful with probability `careful_share` and else hasty."""
    words = ZipfWords(settings["words"], settings["zipf"])
    demonstrations = []
    for item, generator in to_demonstrate(task, draw, count, seed, settings):
        prompt = item.prompt(generator)
        careful = generator.random() < careful_share(item.level, settings)
        write = item.answer if careful else item.hasty_answer
        demonstrations.append(Demonstration(prompt, write(words, generator)))
    return demonstrations
