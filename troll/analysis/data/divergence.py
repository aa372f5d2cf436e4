"""How far runs stay from the old policy, and which methods stay equally near to it.

Clip's range, the weight of a KL penalty and TROLL's bound are not in one unit. A difference between methods
at settings that let policies drift unequally far may be one of drift; at equal drift it is not.
"""

import math
from collections.abc import Iterable, Mapping

import pandas as pd

from troll.analysis.data.summaries import Cell, method_order, trained_cells

WITHIN = 0.2
"""Two late divergences are equal that differ by at most this share of the smaller one."""


def late_divergences(summary: pd.DataFrame) -> dict[Cell, float]:
    """The late KL of every cell that has one above zero: mean over seeds, nats per token."""
    if "late_kl" not in summary:
        return {}
    late = {cell: float(cell.rows(summary)["late_kl"].mean()) for cell in trained_cells(summary)}
    return {cell: value for cell, value in late.items() if value > 0}


def nearest(cell: Cell, others: Iterable[Cell], late: Mapping[Cell, float]) -> Cell | None:
    """Of other methods in the same setting, the one with the late KL nearest to a cell's, by their ratio."""

    def distance(other: Cell) -> tuple[float, object]:
        return abs(math.log(late[other] / late[cell])), method_order(other.trust_region)

    setting = cell.with_trust_region("")
    here = [other for other in others if other in late and other.with_trust_region("") == setting]
    return min(here, key=distance) if cell in late and here else None


def equally_near(first: float, second: float) -> bool:
    """Whether two late divergences agree within `WITHIN`."""
    return max(first, second) <= (1 + WITHIN) * min(first, second)
