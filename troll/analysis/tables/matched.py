"""Methods at equal divergence: which is higher when both stay equally near to the policy that sampled?"""

import math
from typing import Any

import numpy as np
import pandas as pd

from troll.analysis.data.summaries import (
    BASELINE,
    Cell,
    cells,
    difference,
    method_order,
    paired_scores,
    per_run,
    require_one,
    variants,
)
from troll.analysis.data.tidy import BASE, GROUP
from troll.analysis.render.formats import Style

WITHIN = 0.2
"""Two late divergences are equal that differ by at most this share of the smaller one."""
_GAP = ("difference", "difference_low", "difference_high")


def matched_table(runs: pd.DataFrame, items: pd.DataFrame, *, baseline: str = BASELINE) -> pd.DataFrame:
    """Every method beside the variant of the baseline whose late divergence is nearest to its own.

    Clip's range and TROLL's bound are not in one unit. A difference between the two at settings that let
    policies drift unequally far may be one of drift; at equal drift it is not.

    Args:
        runs: the tidy table of one experiment.
        items: the table of test problems.
        baseline: the method whose variants are compared with.

    Returns:
        One row per method and setting: ``against`` (the baseline's variant with the nearest late KL), ``kl``
        and ``kl_against`` (nats, means over seeds), ``ratio`` of the two and, where they agree within
        `WITHIN`, the difference in test pass@1 with its 95 % interval and ``seeds``.
    """
    require_one(runs)
    summary = per_run(runs)
    families = variants(runs)
    late = {
        cell: float(value)
        for cell in cells(runs)
        if cell.trust_region != BASE and "kl" in summary and (value := cell.of(summary)["kl"].mean()) > 0
    }
    rows = []
    for cell, own in late.items():
        if families.get(cell.trust_region, cell.trust_region) == baseline:
            continue
        others = {
            other: value
            for other, value in late.items()
            if other.method("") == cell.method("")
            and families.get(other.trust_region, other.trust_region) == baseline
        }
        if others:
            rows.append(_row(items, cell, own, others))
    columns = [*GROUP, "against", "seeds", "kl", "kl_against", "ratio", *_GAP]
    frame = pd.DataFrame(rows, columns=columns)
    frame.attrs["styles"] = {
        "against": Style("Against"),
        "kl": Style("Late KL (nats)"),
        "kl_against": Style("Late KL of that (nats)"),
        "ratio": Style("Ratio"),
    }
    frame.attrs["notes"] = [
        f"Each method beside the variant of {baseline} whose late KL to the policy that sampled (mean of the "
        f"last third of a run, nats per token) is nearest. Δ is given where the two agree within "
        f"{100 * WITHIN:.0f} %: test pass@1, paired by seed and problem, with Student's 95 % interval over "
        "seeds.",
    ]
    return frame


def _row(items: pd.DataFrame, cell: Cell, own: float, others: dict[Cell, float]) -> dict[str, Any]:
    def distance(other: Cell) -> tuple[float, object]:
        return abs(math.log(others[other] / own)), method_order(other.trust_region)

    nearest = min(others, key=distance)
    ratio = own / others[nearest]
    row: dict[str, Any] = {name: getattr(cell, name) for name in GROUP}
    row |= {"against": nearest.trust_region, "kl": own, "kl_against": others[nearest], "ratio": ratio}
    row |= dict.fromkeys(_GAP, np.nan) | {"seeds": 0}
    gap = difference(items, cell, nearest) if max(ratio, 1 / ratio) <= 1 + WITHIN else None
    pair = paired_scores(items, cell, nearest) if gap is not None else None
    if gap is not None and pair is not None:
        row |= dict(zip(_GAP, (gap.estimate, gap.low, gap.high), strict=True)) | {"seeds": len(pair[0])}
    return row
