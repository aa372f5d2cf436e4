"""Blocks of a protocol file: contrasts, and the wording of their outcomes."""

import string
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from troll.algorithms.ranges import Positive
from troll.common.settings import StrictModel


class Contrast(StrictModel):
    """A pair of rules by their names in the protocol: method minus baseline."""

    method: str
    baseline: str


SLOTS = ("method", "baseline", "difference", "seeds", "tasks", "margin")
"""Placeholders that a sentence may have in braces."""


def _check_slots(text: str) -> str:
    try:
        named = [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
    except ValueError as error:
        raise ValueError(f"braces do not match ({error})") from None
    if unknown := [name for name in named if name not in SLOTS]:
        raise ValueError(f"unknown placeholder {{{unknown[0]}}}; valid: {', '.join(SLOTS)}")
    return text


Sentence = Annotated[str, AfterValidator(_check_slots)]


class Sentences(StrictModel):
    """The sentence for each outcome of the first contrast, with `SLOTS` in braces."""

    above: Sentence  # the whole interval of the difference is above 0
    below: Sentence  # it is below 0
    within: Sentence  # it contains 0 and is within the margin on both sides
    undecided: Sentence  # it contains 0 and extends beyond the margin
    small: Sentence  # added to ``above`` or ``below`` if the whole interval is within the margin


class Comparison(StrictModel):
    """Contrasts that are fixed in advance, and their analysis."""

    # the first is primary and tested by itself; all of them are a family for Holm's correction
    contrasts: list[Contrast] = Field(min_length=1)
    margin: Positive  # differences up to this share of test problems count as equivalence
    # the first is primary: test ``pass@1``, or ``area``, the mean height of the training curve
    endpoints: list[Literal["pass@1", "area"]] = Field(min_length=1)
    sentences: Sentences  # by outcome

    @model_validator(mode="after")
    def _each_once(self) -> "Comparison":
        seen: set[frozenset[str]] = set()
        for contrast in self.contrasts:
            pair = frozenset((contrast.method, contrast.baseline))
            if len(pair) == 1 or pair in seen:
                problem = "appears twice" if len(pair) > 1 else "compares a rule with itself"
                raise ValueError(f"contrasts: {contrast.method} minus {contrast.baseline} {problem}")
            seen.add(pair)
        if len(set(self.endpoints)) < len(self.endpoints):
            raise ValueError(f"endpoints: {', '.join(self.endpoints)} has duplicates")
        return self
