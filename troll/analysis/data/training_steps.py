"""Curves of a cell against training steps, as the paper counts them, and their values at a step.

A training step is one rollout batch with its updates. Success of a batch belongs to the step that the batch
makes, validation to the last step before it.
"""

from typing import Literal

import numpy as np
import pandas as pd

from troll.analysis.data.reduction import FINAL_SHARE, SUMMARY
from troll.analysis.data.summaries import Cell, cached_per_frame

_VALIDATION = {"pass@1": "validation_success", "reward": "validation_reward"}
"""Results on the validation split by test metric; followed by a slash and a name, on that data set."""
_LOGGED = {"final": "success"}
"""Logged metrics by the summary that is their value at the end of training, where the names differ."""
_LAST = "/".join((SUMMARY, "train_s"))
"""A row that every run has for its last optimiser step."""
COLUMNS = ("train_step", "hours", "seed", "value")
Across = Literal["train_step", "hours"]
"""What curves are drawn against."""


def curve_of(runs: pd.DataFrame, cell: Cell, measure: str, *, own_split: bool = False) -> pd.DataFrame:
    """Returns the curve of a measure of `per_run` during training; empty if the runs have none.

    The curve of test results is that of the same data set in validation. ``own_split``: where the task's test
    problems were not solved during training, its validation split is used instead.

    Returns:
        One row per seed and training step, sorted by both, with `COLUMNS`; ``hours`` is the wall-clock time.
    """
    rows = cell.rows(_logged(runs))
    data, _, score = measure.rpartition("/")
    kind = _VALIDATION.get(score, "")
    name = f"{kind}/{data or cell.task}" if kind else _LOGGED.get(measure, measure)
    if own_split and kind and not data and not (rows["metric"] == name).any():
        name = kind
    chosen = rows.loc[rows["metric"] == name, list(COLUMNS)].dropna(subset="value")
    return chosen.sort_values(["seed", "train_step"], ignore_index=True)


@cached_per_frame
def _logged(runs: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows that were logged during training, with ``train_step`` and ``hours``."""
    last = runs.loc[runs["metric"] == _LAST].set_index("run_id")["step"].rename("last_step")
    rows = runs[runs["source"].isin(["train", "validation"]) & runs["rollout_batch"].notna()]
    rows = rows.join(last, on="run_id")
    # Validation is in the line of the step after it, except after the last step.
    later = (rows["source"] == "validation") & (rows["step"] != rows["last_step"]).fillna(True)
    steps = rows["rollout_batch"].astype(float) + np.where(later, 0.0, 1.0)
    return rows.assign(train_step=steps, hours=rows["wall_s"] / 3600)


def training_steps_of(runs: pd.DataFrame, cell: Cell) -> float:
    """Training steps of the cell's longest run; NaN without any."""
    rows = cell.rows(_logged(runs))
    return float(rows.loc[rows["source"] == "train", "train_step"].max())


def values_at(curve: pd.DataFrame, place: float, across: Across) -> list[float]:
    """Returns the values of a curve at a training step or hour by seed: means over the tenth before it.

    Single batches are noisy, and the paper's values are read off smoothed curves. Seeds that ended earlier or
    have no values in this tenth are left out.
    """
    last = curve.groupby("seed", observed=True)[across].transform("max")
    before = curve[(last >= place) & (curve[across] <= place) & (curve[across] > (1 - FINAL_SHARE) * place)]
    return [float(value) for value in before.groupby("seed", observed=True)["value"].mean()]
