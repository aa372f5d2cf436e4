"""Methods at equal divergence: which is higher when both stay equally near to the old policy?"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from troll.analysis.data.divergence import WITHIN, equally_near, late_divergences, nearest
from troll.analysis.data.summaries import (
    BASELINE,
    Cell,
    difference,
    per_run,
    require_one,
    seed_differences,
    variants,
)
from troll.analysis.data.tidy import GROUP
from troll.analysis.render.formats import Style
from troll.analysis.statistics import interval_columns
from troll.analysis.tables.comparisons import ONE_SEED


def matched_table(runs: pd.DataFrame, items: pd.DataFrame, *, baseline: str = BASELINE) -> pd.DataFrame:
    """Every method beside the variant of the baseline whose late divergence is nearest to its own.

    Returns:
        One row per method and setting: ``against`` (the baseline's variant with the nearest late KL),
        ``late_kl`` and ``late_kl_against`` (nats, means over seeds), ``ratio`` of the two and, where they
        agree within `WITHIN`, the difference in test pass@1 with its 95 % interval and ``seeds``.
    """
    require_one(runs)
    families, late = variants(runs), late_divergences(per_run(runs))
    baselines = [cell for cell in late if families.get(cell.trust_region, cell.trust_region) == baseline]
    rows = [
        _row(items, cell, other, late)
        for cell in late
        if cell not in baselines and (other := nearest(cell, baselines, late)) is not None
    ]
    columns = [*GROUP, "against", "seeds", "late_kl", "late_kl_against", "ratio"]
    columns += interval_columns("difference", None)
    frame = pd.DataFrame(rows, columns=columns)
    frame.attrs["styles"] = {
        "against": Style("Against"),
        "late_kl_against": Style("Late KL of baseline (nats)"),
        "ratio": Style("Ratio"),
    }
    frame.attrs["notes"] = [
        f"Each method beside the variant of {baseline} whose late KL to the old policy (mean of the "
        "last third of a run, nats per token) is nearest. Δ is given where the larger of the two is at most "
        f"{1 + WITHIN:g} times the smaller: test pass@1, paired by seed and problem, with Student's 95 % "
        "interval over seeds.",
        *([ONE_SEED] if (frame["seeds"] == 1).any() else []),
    ]
    return frame


def _row(items: pd.DataFrame, cell: Cell, other: Cell, late: Mapping[Cell, float]) -> dict[str, Any]:
    row = cell.coordinates | {"against": other.trust_region}
    row |= {"late_kl": late[cell], "late_kl_against": late[other]}
    gap = difference(items, cell, other) if equally_near(late[cell], late[other]) else None
    seeds = len(seed_differences(items, cell, other)) if gap else 0
    return row | {"ratio": late[cell] / late[other], "seeds": seeds} | interval_columns("difference", gap)
