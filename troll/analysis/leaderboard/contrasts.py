"""Contrasts that a protocol fixes before its first run: which rules are compared, and what is then said."""

import string
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from troll.experiment.settings import Positive, Settings


class Contrast(Settings):
    """Two rules that are compared: the first minus the second.

    Attributes:
        method: the first, by its name in the protocol.
        baseline: the second.
    """

    method: str
    baseline: str


SLOTS = ("method", "baseline", "difference", "seeds", "tasks", "margin")
"""What a sentence may have in braces."""


def _with_known_slots(text: str) -> str:
    try:
        named = [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
    except ValueError as error:
        raise ValueError(f"braces do not match ({error})") from None
    if unknown := [name for name in named if name not in SLOTS]:
        raise ValueError(f"{{{unknown[0]}}} is not known; a sentence may have {', '.join(SLOTS)} in braces")
    return text


Sentence = Annotated[str, AfterValidator(_with_known_slots)]


class Sentences(Settings):
    """What is said of each outcome of the first contrast, with `SLOTS` in braces.

    Attributes:
        above: the whole interval of the difference lies above 0.
        below: it lies below 0.
        within: it holds 0, and lies within the margin on both sides.
        undecided: it holds 0, and reaches out of the margin.
        small: added to ``above`` or ``below`` where the whole interval lies within the margin.
    """

    above: Sentence
    below: Sentence
    within: Sentence
    undecided: Sentence
    small: Sentence


class Comparison(Settings):
    """Contrasts that are fixed beforehand, and how they are read.

    Attributes:
        contrasts: the first is primary, tested for itself; all of them are a family for Holm's correction.
        margin: differences up to this share of test problems count as none.
        endpoints: the first is primary: test ``pass@1``, or ``area``, the mean height of the training curve.
        sentences: by outcome.
    """

    contrasts: list[Contrast] = Field(min_length=1)
    margin: Positive
    endpoints: list[Literal["pass@1", "area"]] = Field(min_length=1)
    sentences: Sentences

    @model_validator(mode="after")
    def _each_once(self) -> "Comparison":
        seen: set[frozenset[str]] = set()
        for one in self.contrasts:
            pair = frozenset((one.method, one.baseline))
            if len(pair) == 1 or pair in seen:
                known = "is there twice" if len(pair) > 1 else "compares a rule with itself"
                raise ValueError(f"contrasts: {one.method} minus {one.baseline} {known}")
            seen.add(pair)
        if len(set(self.endpoints)) < len(self.endpoints):
            raise ValueError(f"endpoints: {', '.join(self.endpoints)} names one twice")
        return self
