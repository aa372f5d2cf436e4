"""Replication: new runs compared with prediction intervals from the released ones.

Another processor rounds differently, and training amplifies this, so individual numbers differ; the
difference between two methods should replicate. A release with S seeds predicts that the mean difference of
S' new seeds is within d ± t s sqrt(1 / S + 1 / S'), where d is the released mean, s its standard deviation
over seeds and t Student's quantile with S - 1 degrees of freedom (Patil, Peng and Leek 2016; Spence and
Stanley 2016). One in twenty such 95 % intervals misses by chance; results do not replicate if more miss than
chance explains (binomial test at 5 %).
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from troll.analysis.data.reproduction import compare_runs, equality
from troll.analysis.data.settings import differing, settings_by
from troll.analysis.data.summaries import BASELINE, Cell, cell_order
from troll.analysis.data.tidy import BASE, GROUP, Tidy, read_tidy
from troll.analysis.render.formats import counted, points
from troll.analysis.statistics import LEVEL
from troll.common.errors import UserError
from troll.experiment.directories import released_directory

_METRIC = "pass@1"


@dataclass(frozen=True)
class Predicted:
    """A setting's mean difference over seeds, here and in the release, with the prediction interval."""

    cell: Cell
    difference: float
    seeds: int
    reference: float
    reference_seeds: int
    low: float
    high: float

    @property
    def inside(self) -> bool:
        """Whether the difference is within the prediction interval, up to rounding."""
        return self.low - 1e-9 <= self.difference <= self.high + 1e-9


def predictions(ours: pd.DataFrame, theirs: pd.DataFrame) -> list[Predicted]:
    """Each method's difference from the baseline in test pass@1, where both tables have equal settings."""
    ours, theirs = (frame[frame["trust_region"] != BASE] for frame in (ours, theirs))
    changed = _changed(ours, theirs)
    new_by_cell, old_by_cell = (_differences(frame) for frame in (ours, theirs))
    predicted = []
    for cell in sorted(new_by_cell.keys() & old_by_cell.keys(), key=cell_order):
        if {cell, cell.with_trust_region(BASELINE)} & changed or len(old_by_cell[cell]) < 2:
            continue
        new, old = new_by_cell[cell], old_by_cell[cell]
        spread = float(old.std(ddof=1)) * math.sqrt(1 / len(old) + 1 / len(new))
        half = float(stats.t.ppf((1 + LEVEL) / 2, len(old) - 1)) * spread
        centre = float(old.mean())
        ends = centre - half, centre + half
        predicted.append(Predicted(cell, float(new.mean()), len(new), centre, len(old), *ends))
    return predicted


def replicates(predicted: list[Predicted]) -> bool:
    """Returns whether no more settings miss their prediction than chance explains; False without settings."""
    outside = sum(not prediction.inside for prediction in predicted)
    chance = float(stats.binom.sf(outside - 1, len(predicted), 1 - LEVEL))
    return bool(predicted) and chance > 1 - LEVEL + 1e-9  # a single setting that misses has exactly 1 - LEVEL


def describe_replication(predicted: list[Predicted]) -> list[str]:
    """Returns the verdict as lines of text: how many settings are as predicted, and which are not."""
    if not predicted:
        return ["Nothing to replicate: no setting here has two methods that the release has with two seeds"]
    outside = [prediction for prediction in predicted if not prediction.inside]
    methods = sorted({prediction.cell.trust_region for prediction in predicted})
    word = "Replicates" if replicates(predicted) else "Does not replicate"
    what = "settings" if len(methods) == 1 else "comparisons"
    lines = [
        f"{word}: {len(predicted) - len(outside)} of {len(predicted)} {what} lie within the 95 % prediction "
        f"interval of the release ({' and '.join(methods)} minus {BASELINE}, test {_METRIC})"
    ]
    return lines + [f"  outside: {_line(prediction, named=len(methods) > 1)}" for prediction in outside]


def _line(prediction: Predicted, *, named: bool) -> str:
    names = [prediction.cell.task, prediction.cell.condition, prediction.cell.estimator]
    names += [prediction.cell.trust_region] if named else []
    ends = f"[{points(prediction.low)}, {points(prediction.high)}]"
    return (
        f"{' / '.join(names)}: {points(prediction.difference)} points ({counted(prediction.seeds, 'seed')}), "
        f"predicted {ends} ({counted(prediction.reference_seeds, 'seed')})"
    )


def _differences(runs: pd.DataFrame) -> dict[Cell, np.ndarray]:
    """Returns the paired differences over seeds by method and setting."""
    tested = runs[(runs["source"] == "test") & (runs["metric"] == _METRIC)]
    scores = {
        Cell(*map(str, names)): rows.set_index("seed")["value"].astype(float)
        for names, rows in tested.groupby(list(GROUP), observed=True)
    }
    changes = {}
    for cell, values in scores.items():
        before = scores.get(cell.with_trust_region(BASELINE))
        if before is None or cell.trust_region == BASELINE:
            continue
        change = (values - before).dropna()
        if len(change):
            changes[cell] = change.to_numpy()
    return changes


def _changed(ours: pd.DataFrame, theirs: pd.DataFrame) -> set[Cell]:
    """Returns the cells whose settings are recorded in both tables and differ."""
    first, second = (dict(settings_by(runs, list(GROUP))) for runs in (ours, theirs))
    both = first.keys() & second.keys()
    return {Cell(*map(str, names)) for names in both if differing(first[names], second[names])}


def replication_of(results: Path) -> list[str]:
    """Returns lines that compare results/<experiment> with its release; none without one."""
    try:
        every, theirs = read_tidy(results), read_tidy(released_directory(results))
    except UserError:
        return []
    ours, _ = made_here(every, theirs)
    if not _seconds(ours.runs):
        return []
    predicted = describe_replication(predictions(ours.runs, theirs.runs))
    return [*equality(compare_runs(ours, theirs), ours, theirs), *predicted]


def made_here(ours: Tidy, theirs: Tidy) -> tuple[Tidy, int]:
    """Returns the tables without runs that are the released ones themselves, and the number of those.

    A run that took exactly as long as the released one is the released one.
    """
    copied = {run_id for run_id, _ in _seconds(ours.runs).items() & _seconds(theirs.runs).items()}
    return ours.of_runs(set(ours.runs["run_id"]) - copied), len(copied)


def _seconds(runs: pd.DataFrame) -> dict[str, float]:
    """Returns the training time of each run, which no second run has again."""
    trained = runs[
        (runs["metric"] == "wall_s") & (runs["source"] == "manifest") & (runs["trust_region"] != BASE)
    ]
    return dict(zip(trained["run_id"], trained["value"], strict=True))
