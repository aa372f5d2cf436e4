"""Blocks of a protocol file: which rules are compared, how, and what is then said."""

import string
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from troll.algorithms.ranges import Positive
from troll.common.settings import StrictModel


class Contrast(StrictModel):
    """Two rules by their names in the protocol: the first minus the second."""

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


class Sentences(StrictModel):
    """What is said of each outcome of the first contrast, with `SLOTS` in braces."""

    above: Sentence  # the whole interval of the difference is above 0
    below: Sentence  # it is below 0
    within: Sentence  # it holds 0, and is within the margin on both sides
    undecided: Sentence  # it holds 0, and reaches out of the margin
    small: Sentence  # added to ``above`` or ``below`` where the whole interval is within the margin


class Comparison(StrictModel):
    """Contrasts that are fixed beforehand, and how they are read."""

    # the first is primary, tested for itself; all of them are a family for Holm's correction
    contrasts: list[Contrast] = Field(min_length=1)
    margin: Positive  # differences up to this share of test problems count as none
    # the first is primary: test ``pass@1``, or ``area``, the mean height of the training curve
    endpoints: list[Literal["pass@1", "area"]] = Field(min_length=1)
    sentences: Sentences  # by outcome

    @model_validator(mode="after")
    def _each_once(self) -> "Comparison":
        seen: set[frozenset[str]] = set()
        for contrast in self.contrasts:
            pair = frozenset((contrast.method, contrast.baseline))
            if len(pair) == 1 or pair in seen:
                problem = "is there twice" if len(pair) > 1 else "compares a rule with itself"
                raise ValueError(f"contrasts: {contrast.method} minus {contrast.baseline} {problem}")
            seen.add(pair)
        if len(set(self.endpoints)) < len(self.endpoints):
            raise ValueError(f"endpoints: {', '.join(self.endpoints)} names one twice")
        return self


class Ranking(StrictModel):
    """How each rule is compared with the baseline."""

    # numbers of fresh seeds after which a rule may stop; all of the protocol's seeds are not a look
    looks: list[int] = Field(min_length=1)
    power: float = Field(gt=0, lt=1)  # predictive power below which it does
    # standard deviation of the expected success of the trial that tuning chooses, of a rule on a task, as a
    # share of test problems: part of every interval and test
    tuning_spread: Positive

    def spread_of_difference(self, tasks: int) -> float:
        """What tuning adds to a difference of two rules, mean of so many tasks: a standard deviation."""
        return float(self.tuning_spread * np.sqrt(2 / tasks))
