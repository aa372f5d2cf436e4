"""Words that carry no meaning, as frequent as those of natural text.

A line of working may open with any of them. So the model that imitates such lines has positions where many
tokens would do, and a distribution with a long tail, as language models have and arithmetic alone has not.
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
# Has no factor in common with 4,900, so that every word comes once; neighbours share no syllable.
_STRIDE = 71

MOST_WORDS = len(_SYLLABLES) ** 2
"""How many different words there are: two syllables each, of which none is a word of Python."""

Careful = Annotated[float, Field(ge=0, le=1, description="share of careful demonstrations at level 1")]
CarefulDecay = Annotated[float, Field(ge=0, le=1, description="what each further level multiplies it by")]
Words = Annotated[int, Field(ge=1, le=MOST_WORDS, description="how many words without meaning there are")]
Zipf = Annotated[float, Field(ge=0, le=5, description="exponent of Zipf's law")]


def careful_share(level: int, settings: Mapping[str, Any]) -> float:
    """Share of demonstrations of a level, from 1, that are worked out with care."""
    return float(settings["careful"] * settings["careful_decay"] ** (level - 1))


def word(number: int) -> str:
    """The word of this number, from 0 to 4,899."""
    first, second = divmod(number * _STRIDE % MOST_WORDS, len(_SYLLABLES))
    return _SYLLABLES[first] + _SYLLABLES[second]


@functools.cache
def _cumulative(count: int, exponent: float) -> tuple[float, ...]:
    return tuple(itertools.accumulate(rank**-exponent for rank in range(1, count + 1)))


@dataclass(frozen=True)
class ZipfWords:
    """Words of which the one of rank r is as frequent as 1 / r^a.

    Source: Zipf's law; a is near 1 in natural text (Piantadosi 2014, "Zipf's word frequency law in natural
    language").
    """

    count: int  # how many words
    exponent: float  # a; 0 makes all alike

    def draw(self, generator: random.Random, number: int) -> str:
        """Words drawn one by one, with a space between; some may be there twice."""
        weights = _cumulative(self.count, self.exponent)
        ranks = generator.choices(range(self.count), cum_weights=weights, k=number)
        return " ".join(map(word, ranks))


def careful_and_hasty(
    task: str, draw: Draw[Any], count: int, seed: int, settings: Mapping[str, Any]
) -> list[Demonstration]:
    """Demonstrations on train problems: some careful, as many as `careful_share` says, the others hasty."""
    words = ZipfWords(settings["words"], settings["zipf"])
    demonstrations = []
    for item, generator in to_demonstrate(task, draw, count, seed, settings):
        prompt = item.prompt(generator)
        careful = generator.random() < careful_share(item.level, settings)
        write = item.answer if careful else item.hasty_answer
        demonstrations.append(Demonstration(prompt, write(words, generator)))
    return demonstrations
