"""Comparisons of test pass@1: a family over several experiments, and methods at equal divergence."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from troll.analysis.data.divergence import WITHIN, equally_near, late_divergences, nearest
from troll.analysis.data.settings import earliest_experiment, first_experiments
from troll.analysis.data.summaries import (
    BASELINE,
    Cell,
    cells,
    difference,
    per_run,
    seed_differences,
    variants,
)
from troll.analysis.data.tidy import BASE, GROUP
from troll.analysis.render.formats import Style, table
from troll.analysis.statistics import LEVEL, Interval, holm, interval_columns, paired_p_value

ALONE = "Reading: higher or lower where the interval excludes zero, so that p is below 0.05, each by itself."
"""Note of tables of one experiment, whose readings are not corrected for the number of comparisons."""
ONE_SEED = "Where a row has one seed, its interval is over test problems, and says nothing about another run."
READING = (
    "Reading: higher or lower where p is below 0.05 after Holm over all comparisons of the testbed's "
    "experiments (results/released/statistics/comparisons.md)."
)


def comparison_family(runs: pd.DataFrame, items: pd.DataFrame) -> pd.DataFrame:
    """Compares test pass@1 of every method with its baseline, once over all experiments.

    A comparison that appears in several experiments (`troll.analysis.data.settings`) uses the runs of the
    first.

    Returns:
        One row per comparison: ``experiment`` (the first), the coordinates, ``against``, ``seeds``,
        ``difference`` with ``_low`` and ``_high``, ``p`` (paired t-test), ``p_holm`` over all rows, and
        ``reading``: higher or lower where ``p_holm`` is below 0.05.
    """
    first = first_experiments(runs)
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for experiment in dict.fromkeys(map(str, runs["experiment"])):
        experiment_runs, experiment_items = (
            frame[frame["experiment"] == experiment] for frame in (runs, items)
        )
        names = experiment_runs.drop_duplicates("run_id")
        present = set(cells(experiment_items))
        varied = variants(experiment_runs)
        for cell in cells(experiment_items):
            other = cell.with_trust_region(varied.get(cell.trust_region, BASELINE))
            if cell.trust_region in (BASE, BASELINE) or other not in present:
                continue
            interval = difference(experiment_items, cell, other)
            if interval is None:
                continue
            ids = (part.rows(names)["run_id"] for part in (cell, other))
            origins = (earliest_experiment(experiment, run_ids, first) for run_ids in ids)
            rows.setdefault(
                (cell, other, *origins), _row(experiment, experiment_items, cell, other, interval)
            )
    family = list(rows.values())
    for row, p in zip(family, holm([row["p"] for row in family]), strict=True):
        row |= {"p_holm": float(p), "reading": reading(row["difference"], p)}
    return table(
        family,
        {"experiment": Style("Experiment", str), "against": Style("Against", str)},
        f"{len(family)} comparisons of test pass@1, each once however many experiments hold its runs. Δ: "
        "paired by seed, with Student's 95 % interval for this comparison alone. p: paired t-test; Holm: "
        "corrected for all comparisons of the table. Reading: higher or lower where that is below 0.05. "
        "Made by `troll release comparisons` with the directories of the experiments.",
    )


def reading(effect: float, p: float) -> str:
    """Classifies a difference by its corrected p-value, NaN for a single seed."""
    if p != p:
        return "one seed only"
    return ("higher" if effect > 0 else "lower") if p < 1 - LEVEL else "no clear difference"


def _row(experiment: str, items: pd.DataFrame, cell: Cell, other: Cell, interval: Interval) -> dict[str, Any]:
    row = {"experiment": experiment} | cell.coordinates
    row |= {"against": other.trust_region, "seeds": interval.seeds} | interval.columns("difference")
    return row | {"p": paired_p_value(seed_differences(items, cell, other))}


def read_in_family(main: pd.DataFrame, family: pd.DataFrame) -> pd.DataFrame:
    """Returns the main table with readings from a family of comparisons that includes its own."""
    if family.empty or "reading" not in main:
        return main
    readings = family[family["experiment"] == family["experiment"].iloc[0]].set_index(list(GROUP))["reading"]
    names = [tuple(map(str, setting)) for setting in main.loc[:, list(GROUP)].itertuples(index=False)]
    corrected = main.assign(
        reading=[readings.get(name, old) for name, old in zip(names, main["reading"], strict=True)]
    ).drop(columns="p")
    corrected.attrs = main.attrs | {"explained": main.attrs.get("explained", {}) | {"reading": READING}}
    return corrected


def matched_table(runs: pd.DataFrame, items: pd.DataFrame) -> pd.DataFrame:
    """Compares every method with the variant of the baseline that has the nearest late divergence.

    Returns:
        One row per method and setting: ``against`` (the baseline's variant with the nearest late KL),
        ``late_kl`` and ``late_kl_against`` (nats, means over seeds), their ``ratio`` and, if they agree
        within `WITHIN`, the difference in test pass@1 with its 95 % interval and ``seeds``.
    """
    families, late = variants(runs), late_divergences(per_run(runs))
    baselines = [cell for cell in late if families.get(cell.trust_region, cell.trust_region) == BASELINE]
    rows = [
        _matched_row(items, cell, other, late)
        for cell in late
        if cell not in baselines and (other := nearest(cell, baselines, late)) is not None
    ]
    styles = {
        "against": Style("Against"),
        "late_kl_against": Style("Late KL of baseline (nats)"),
        "ratio": Style("Ratio"),
    }
    note = (
        f"Each method beside the variant of {BASELINE} whose late KL to the old policy (mean of the "
        "last third of a run, nats per token) is nearest. Δ is given where the larger of the two is at most "
        f"{1 + WITHIN:g} times the smaller: test pass@1, paired by seed and problem, with Student's 95 % "
        "interval over seeds."
    )
    columns = [*GROUP, "against", "seeds", "late_kl", "late_kl_against", "ratio"]
    columns += interval_columns("difference", None)
    one_seed = [ONE_SEED] if any(row["seeds"] == 1 for row in rows) else []
    return table(rows, styles, note, *one_seed, columns=columns)


def _matched_row(items: pd.DataFrame, cell: Cell, other: Cell, late: Mapping[Cell, float]) -> dict[str, Any]:
    row = cell.coordinates | {"against": other.trust_region}
    row |= {"late_kl": late[cell], "late_kl_against": late[other]}
    gap = difference(items, cell, other) if equally_near(late[cell], late[other]) else None
    seeds = len(seed_differences(items, cell, other)) if gap else 0
    return row | {"ratio": late[cell] / late[other], "seeds": seeds} | interval_columns("difference", gap)
