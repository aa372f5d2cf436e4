"""Ranges of numbers, for checks and for annotations of settings: ``Annotated[float, Range(0.0)]``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

from troll.common.errors import UserError


@dataclass(frozen=True)
class Range:
    """Numbers from low to high; NaN is in none, infinity where a closed end is infinite.

    Attributes:
        low: the lower end.
        high: the upper end.
        open_low: whether the lower end itself is left out.
        open_high: whether the upper end itself is left out; as long as it is infinite: infinity.
    """

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = True

    def __contains__(self, value: Any) -> bool:
        """Whether a value is a number (no flag) of the range."""
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        above = self.low < value or (self.low == value and not self.open_low and math.isfinite(value))
        return above and (value < self.high or (value == self.high and not self.open_high))

    def words(self, noun: str = "a number") -> str:
        """The range in words: a number > 1, a number in [0, 1), a number >= 0 or infinity."""
        if self.high < math.inf:
            low, high = "(" if self.open_low else "[", ")" if self.open_high else "]"
            return f"{noun} in {low}{self.low:g}, {self.high:g}{high}"
        if self.low > -math.inf:
            noun = f"{noun} {'>' if self.open_low else '>='} {self.low:g}"
        return noun if self.open_high else f"{noun} or infinity"

    def check(self, where: str, value: Any) -> float:
        """Return a number of the range.

        Raises:
            UserError: it is not; the message is "<where> is <value>, must be <the range>".
        """
        if value not in self:
            raise UserError(f"{where} is {value!r}, must be {self.words()}")
        return float(value)


Positive = Annotated[float, Range(0.0, open_low=True)]
"""Above 0."""
NotNegative = Annotated[float, Range(0.0)]
"""0 or above."""
Limit = Annotated[float, Range(0.0, open_high=False)]
"""0 or above; infinity for no limit."""
Share = Annotated[float, Range(0.0, 1.0, open_high=False)]
"""From 0 to 1."""
