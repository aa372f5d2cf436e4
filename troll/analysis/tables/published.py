"""The paper's tables with our numbers next to the published ones.

Every row is one comparison of the paper: a baseline and a method on one model and data set. Rows without
runs keep their published numbers with the status "not run"; no published number is left out. Ours stand
beside them twice: at the training step or hour at which they were read, and at the end of training.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pandas as pd

from troll.analysis.data import paper
from troll.analysis.data.paper import Comparison
from troll.analysis.data.summaries import Cell, cells, difference, per_run, spread
from troll.analysis.data.tidy import BASE
from troll.analysis.data.training_steps import Across, curve_of, training_steps_of, values_at
from troll.analysis.render.formats import MINUS, Style, percent, points, significant, whole
from troll.analysis.statistics import interval_columns


@dataclass(frozen=True)
class _Section:
    """One table of the paper: its rows, the format of its numbers and a note."""

    rows: Callable[[], list[Comparison]]
    show: Callable[[float], str] = percent
    gain: Callable[[float], str] = points
    unit: str = " (%)"
    gain_unit: str = " (points)"
    note: str = ""


def _gained(value: float) -> str:
    return f"{value:+.3g}".replace("-", MINUS)


_READ = "Numbers read off a smoothed curve by eye, with an error of 0.5 to 1.5 points. "
SECTIONS: Mapping[str, _Section] = {
    "families": _Section(paper.families, note="Numbers printed in the paper's table. "),
    "sizes": _Section(paper.sizes, note=_READ),
    "estimators": _Section(paper.estimators, note=_READ),
    "ablations": _Section(paper.ablations, note=_READ),
    "cost": _Section(
        paper.cost,
        significant,
        _gained,
        "",
        "",
        "Numbers printed on the paper's figure; data set and estimator are not printed there and assumed. "
        "Nor is what the seconds contain: the paper's time axes have about 600 s a step with 1.7B and 770 s "
        "with 8B. Ours are of a whole rollout batch, with sampling and validation. ",
    ),
    "entropy": _Section(
        paper.entropy,
        significant,
        _gained,
        " (nats)",
        " (nats)",
        "Read off the curve at 95 hours, from a start of 0.38. ",
    ),
    "code": _Section(
        paper.code,
        note="No single number could be read; the paper claims gains of 7 to 18 points. Its success is the "
        "share of tests passed, of the first ten; problems solved are those that pass all tests. ",
    ),
    "staleness": _Section(paper.staleness, note="The paper's curves were not read; only ours can be shown. "),
    "summary": _Section(
        paper.summary,
        note=(
            "A question-and-answer summary of the paper names other models, tasks and estimators than the "
            "paper does, and gives no numbers for them. HumanEval has no training problems: models trained "
            "on MBPP are evaluated on it. "
        ),
    ),
}


_ROLES = ("baseline", "method")
_PARTS = ("", "_sd", "_off")


def published_table(section: str, runs: pd.DataFrame, items: pd.DataFrame) -> pd.DataFrame:
    """Returns one table of the paper with our numbers next to the published ones.

    Returns:
        One row per comparison (and condition, if ours has several). ``read_at`` is the training step or hour
        at which the published numbers were read, ``steps`` the number of our training steps. Of both roles,
        ``published_<role>``, ours at that place ``<role>_at`` and at the end ``<role>``, each with ``_sd``,
        and with ``_off`` (ours minus published); likewise ``published_gain``, ``gain_at`` and ``gain``, which
        for pass@1 is paired and has ``_low`` and ``_high``. Where no such place is known, the columns
        ``read_at``, ``steps`` and those with ``_at`` are left out.
    """
    chosen = SECTIONS[section]
    summary = per_run(runs)
    present = cells(runs)
    rows: list[dict[str, Any]] = []
    for row in chosen.rows():
        in_setting = [cell for cell in present if row.holds(cell)]
        matching = [cell for cell in in_setting if fnmatchcase(cell.trust_region, row.method)]
        # A baseline without runs of the method is shown, except as the default of a variant.
        if not row.method.startswith(row.baseline):
            settings = {cell.with_trust_region("") for cell in matching}
            lone = [cell for cell in in_setting if cell.trust_region == row.baseline]
            matching += [
                cell.with_trust_region(row.method)
                for cell in lone
                if cell.with_trust_region("") not in settings
            ]
        rows += [_row(row, cell, summary, runs, items) for cell in matching or (None,)]
    frame = pd.DataFrame(rows)
    unused = [name for name in ("condition", "quantity") if not frame[name].any()]
    if not frame["read_at"].any():
        unused += ["read_at", "steps", *(f"{role}_at{part}" for role in _ROLES for part in _PARTS), "gain_at"]
    frame = frame.drop(columns=unused)
    names = {role: role for role in _ROLES}
    for role in _ROLES:
        if frame[f"{role}_name"].nunique() == 1:
            names[role] = str(frame.pop(f"{role}_name").iloc[0])
    frame.attrs["styles"] = _styles(chosen, names)
    frame.attrs["quoted"] = ["published_baseline", "published_method", "published_gain"]
    frame.attrs["notes"] = _notes(chosen, frame, runs)
    return frame


def _styles(section: _Section, names: Mapping[str, str]) -> dict[str, Style]:
    """Column styles, with the names of baseline and method in the headings if all rows share them."""
    unit, show, gain = section.unit, section.show, section.gain
    styles = {
        "data": Style("Data"),
        "quantity": Style("Quantity"),
        "read_at": Style("Published at"),
        "steps": Style("Steps, ours", whole),
        "published_gain": Style(f"Gain, published{section.gain_unit}", gain),
        "gain_at": Style(f"Gain, ours there{section.gain_unit}", gain),
        "gain": Style(f"Gain, ours at the end{section.gain_unit}", gain),
    }
    for role, name in names.items():
        styles |= {f"{role}_name": Style(role.capitalize())}
        styles |= {f"published_{role}": Style(f"{name}, published{unit}", show)}
        for ending, when in (("_at", "there"), ("", "at the end")):
            difference = f"{name}, ours {when} {MINUS} published{section.gain_unit}"
            styles |= {f"{role}{ending}": Style(f"{name}, ours {when}{unit}", show)}
            styles |= {f"{role}{ending}_off": Style(difference, gain)}
    return styles


def _row(
    row: Comparison, cell: Cell | None, summary: pd.DataFrame, runs: pd.DataFrame, items: pd.DataFrame
) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "model": row.model,
        "data": row.data.replace("_", " "),
        "estimator": row.estimator,
        "condition": cell.condition if cell else row.condition.strip("*"),
        "quantity": row.quantity,
        "baseline_name": row.baseline,
        "method_name": cell.trust_region if cell else row.method,
    }
    pair = (cell.with_trust_region(row.baseline), cell) if cell else ()
    lines = [part.rows(summary) for part in pair] or [pd.DataFrame()] * 2
    ends = [spread(part.get(row.measure, ())) for part in lines]
    curves = [curve_of(runs, part, row.measure) for part in pair]
    place: tuple[float, Across] = (row.hours, "hours") if math.isnan(row.step) else (row.step, "train_step")
    there = [spread(values_at(curve, *place)) for curve in curves] or [(math.nan, math.nan)] * 2
    measured = not all(math.isnan(mean) for mean, _ in (*ends, *there))
    shown |= {"seeds": max(map(len, lines)), "status": "run" if measured else "not run"}
    shown |= {
        "read_at": row.read_at,
        "steps": np.fmax.reduce([math.nan, *(training_steps_of(runs, part) for part in pair)]),
    }
    for name, published, *ours in zip(_ROLES, row.published, there, ends, strict=True):
        shown[f"published_{name}"] = published
        for column, (mean, deviation) in zip((f"{name}_at", name), ours, strict=True):
            shown |= {column: mean, f"{column}_sd": deviation, f"{column}_off": mean - published}
    shown |= {"published_gain": row.published[1] - row.published[0]}
    shown |= {"gain_at": there[1][0] - there[0][0]}
    if cell is not None and row.measure == "pass@1":
        interval = difference(items, cell, cell.with_trust_region(row.baseline))
        if interval is not None:
            return shown | interval.columns("gain")
    return shown | interval_columns("gain", None) | {"gain": ends[1][0] - ends[0][0]}


def _notes(section: _Section, frame: pd.DataFrame, runs: pd.DataFrame) -> list[str]:
    missing = int((frame["status"] == "not run").sum())
    models = sorted({str(name) for name in runs.loc[runs["trust_region"] != BASE, "model"]})
    coverage = f"{missing} of {len(frame)} rows have not been run; the runs here are of {', '.join(models)}."
    steps = (
        "A training step is one rollout batch. Ours there is the mean over the tenth of training before the "
        "step or hour at which the published number was read, held-out sets as validation solves them; hours "
        "depend on the machine. Ours at the end is as graded after the last step, and for training the mean "
        "over the last tenth. "
    )
    compare = (
        "Published numbers come without seeds and without intervals: a difference from ours can be shown, "
        "not tested. Gain: method minus baseline; ours at the end paired by seed and problem with a 95 % "
        "interval where the measure is test pass@1."
    )
    return [f"{section.note}{steps if 'read_at' in frame else ''}{compare}", *([coverage] if missing else [])]
