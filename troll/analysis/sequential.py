"""Group-sequential comparisons: repeated looks while seeds are added, with a bounded error rate.

The chance of a false finding is spent over the looks by the Pocock-type spending function of the share of
seeds available (Lan and DeMets 1983, "Discrete sequential boundaries for clinical trials"). Each look uses
the increment since the previous one: the sum bounds the chance of any false finding, however the looks are
correlated (Bonferroni; exact boundaries would require normal values with a known spread). The interval of a
look is Student's at that level: a repeated confidence interval (Jennison and Turnbull 1989, "Interim
analyses: the repeated confidence interval approach"). The intervals of all looks hold simultaneously.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from troll.analysis.statistics import LEVEL, Interval, seed_interval

_OPEN = "no clear difference"


@dataclass(frozen=True)
class Looks:
    """The plan of the looks: after ``first`` seeds and after each further one, up to ``most``."""

    first: int = 3  # seeds at the first look, at least two
    most: int = 10  # seeds at the last look
    level: float = LEVEL  # simultaneous, of all intervals

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
        """The interval of this look, from the paired differences ``[S]`` over the seeds so far."""
        return seed_interval(differences, level=self.level_at(int(np.size(differences))))

    def reading(self, differences: ArrayLike, margin: float = 0.0) -> str:
        """The result of this look at differences ``[S]``: "higher", "lower" or "equivalent" if decided.

        Otherwise "go on", or "undecided" at the last look.
        """
        interval = self.interval(differences)
        reading = interval.reading(margin)
        if reading != _OPEN:
            return reading
        return "go on" if interval.seeds < self.most else "undecided"
