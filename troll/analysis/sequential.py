"""When to stop adding seeds: looks at the same comparison again and again that do not inflate its errors.

The chance of a false finding is spent over the looks as Pocock's boundaries would, by the share of the seeds
that are there (Lan and DeMets 1983, "Discrete sequential boundaries for clinical trials"). Each look uses
what has become free since the look before it: the sum bounds the chance of any false finding, whatever the
looks have in common (Bonferroni; exact boundaries would need normal values of a known spread).
The interval of a look is Student's at that level: a repeated confidence interval (Jennison and Turnbull 1989,
"Interim analyses: the repeated confidence interval approach"). All of them hold the truth at once.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from troll.analysis.statistics import LEVEL, Interval, seed_interval

_OPEN = "no clear difference"


@dataclass(frozen=True)
class Looks:
    """When a comparison is looked at: after ``first`` seeds and after each further one."""

    first: int = 3  # seeds at the first look, at least two
    most: int = 10  # seeds at the last look
    level: float = LEVEL  # of all intervals together

    def __post_init__(self) -> None:
        if not 2 <= self.first <= self.most:
            raise ValueError(
                f"looks from {self.first} to {self.most} seeds: the first needs two, the last more"
            )

    def spent(self, seeds: int) -> float:
        """The chance of a false finding spent up to a look: alpha ln(1 + (e - 1) seeds / most)."""
        if seeds < self.first:
            return 0.0
        return (1 - self.level) * math.log(1 + (math.e - 1) * min(seeds / self.most, 1.0))

    def level_at(self, seeds: int) -> float:
        """The level of the look after this many seeds."""
        if not self.first <= seeds <= self.most:
            raise ValueError(f"a look at {seeds} seeds: they are from {self.first} to {self.most}")
        return 1 - (self.spent(seeds) - self.spent(seeds - 1))

    def interval(self, differences: ArrayLike) -> Interval:
        """The interval of this look, from the paired differences over the seeds so far, ``[S]``."""
        return seed_interval(differences, level=self.level_at(int(np.size(differences))))

    def reading(self, differences: ArrayLike, margin: float = 0.0) -> str:
        """What this look says of ``[S]`` differences: "higher", "lower" or "equivalent" end the comparison.

        Otherwise it is "go on", and "undecided" at the last look.
        """
        interval = self.interval(differences)
        reading = interval.reading(margin)
        if reading != _OPEN:
            return reading
        return "go on" if interval.seeds < self.most else "undecided"
