"""KL divergence of runs from the old policy, and methods with equal divergence.

Clip's range, the weight of a KL penalty and TROLL's bound have different units. If policies drift unequally
far, the drift may explain a difference between methods; at equal drift it cannot.
"""

import math
from collections.abc import Iterable, Mapping

import pandas as pd

from troll.analysis.data.summaries import Cell, method_order, trained_cells

WITHIN = 0.2
"""Two late divergences count as equal if they differ by at most this share of the smaller."""


def late_divergences(summary: pd.DataFrame) -> dict[Cell, float]:
    """Returns the positive late KLs by cell: mean over seeds, in nats per token."""
    if "late_kl" not in summary:
        return {}
    late = {cell: float(cell.rows(summary)["late_kl"].mean()) for cell in trained_cells(summary)}
    return {cell: value for cell, value in late.items() if value > 0}


def nearest(cell: Cell, others: Iterable[Cell], late: Mapping[Cell, float]) -> Cell | None:
    """Returns the other method in the same setting whose late KL is nearest to the cell's, by their ratio."""

    def distance(other: Cell) -> tuple[float, object]:
        return abs(math.log(late[other] / late[cell])), method_order(other.trust_region)

    setting = cell.with_trust_region("")
    candidates = [other for other in others if other in late and other.with_trust_region("") == setting]
    return min(candidates, key=distance) if cell in late and candidates else None


def equally_near(first: float, second: float) -> bool:
    """Returns whether two late divergences agree within `WITHIN`."""
    return max(first, second) <= (1 + WITHIN) * min(first, second)
