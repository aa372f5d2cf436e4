"""The paper's tables with our numbers next to the published ones.

Every row is one comparison of the paper: a baseline and a method on one model and data set. Rows without runs
keep their published numbers with the status "not run"; no published number is left out.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import pandas as pd

from troll.analysis.data.summaries import Cell, cells, difference, per_run, spread
from troll.analysis.data.tidy import BASE
from troll.analysis.render.formats import MINUS, Style, percent, points, significant
from troll.analysis.statistics import interval_columns
from troll.experiment.published import read_published

_ALIASES = {
    "Llama3.2-3B": "Llama-3.2-3B",
    "Llama3.2-3B-Instruct": "Llama-3.2-3B-Instruct",
    "Llama3.1-8B": "Llama-3.1-8B",
    "Llama3.1-8B-Instruct": "Llama-3.1-8B-Instruct",
    "Apertus-8B": "Apertus-8B-2509",
    "Apertus-8B-Instruct": "Apertus-8B-Instruct-2509",
}
"""Hub names of models by their names in the source of the numbers, where these differ."""
_TASKS = {
    "GSM8K": "gsm8k*",
    "Eurus": "eurus-math*",
    "Code": "eurus-code*",
    "MATH": "math*",
    "MBPP": "mbpp*",
    "HumanEval": "mbpp*",  # has no training problems: models trained on MBPP are evaluated on it
}
"""Patterns of our tasks by data set of the source; DAPO's parts and MATH Eval are the task dapo."""
_ESTIMATORS = {"GRPO": ("grpo",), "DrGRPO": ("dr-grpo",), "PPO": ("ppo", "gae"), "GSPO": ("grpo", "gspo")}
_ESTIMATORS |= {"GAE": ("gae", "ppo"), "PPO-max": ("ppo-max",)}
_MEASURES = {
    "DAPO_Train": "final",
    "MATH_Eval": "math-eval/pass@1",
    "HumanEval": "humaneval/pass@1",
}
"""Our metric by data set where it is not test pass@1."""
_SWEPT = re.compile(r"([2-9]|\d\d+)x$|lr\d+$")
"""Conditions of a sweep over staleness or learning rate, which only match rows of these sweeps."""
QWEN3 = ("Qwen3-0.6B", "Qwen3-1.7B", "Qwen3-4B", "Qwen3-8B", "Qwen3-14B")


@dataclass(frozen=True)
class Comparison:
    """A row: a comparison in one setting, with its published numbers."""

    model: str  # name in the source
    data: str  # data set, name in the source
    estimator: str  # name in the source
    baseline: str  # our trust region
    method: str  # our trust region
    measure: str = "pass@1"  # column of ``per_run``, or "pass@1"
    # of baseline and method; NaN if unknown
    published: tuple[float, float] = (math.nan, math.nan)
    quantity: str = ""  # name of the quantity, in tables with several
    condition: str = "*"  # pattern of condition names

    def holds(self, cell: Cell) -> bool:
        """Whether a cell belongs to this row's setting."""
        task = _TASKS.get(self.data, "dapo*")
        return (
            cell.model == _ALIASES.get(self.model, self.model)
            and fnmatchcase(cell.task, task)
            and cell.estimator in _ESTIMATORS[self.estimator]
            and fnmatchcase(cell.condition, self.condition)
            and (self.condition != "*" or not _SWEPT.search(cell.condition))
        )


def _numbers(source: str, metric: str = "final_success*") -> list[Mapping[str, Any]]:
    return [row for row in read_published() if row["source"] == source and fnmatchcase(row["metric"], metric)]


def _pairs(rows: Sequence[Mapping[str, Any]], *, measure: str = "", quantity: str = "") -> list[Comparison]:
    """Rows of clip and TROLL on the same model, data and estimator, in file order."""
    by_setting: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in rows:
        key = (row["model"], row["dataset"], row["estimator"])
        by_setting.setdefault(key, {})[row["method"].partition("_")[0]] = float(row["value"])
    return [
        Comparison(
            model,
            data,
            estimator,
            "gspo-clip" if estimator == "GSPO" else "clip",
            "troll-seq" if estimator == "GSPO" else "troll",
            measure or _MEASURES.get(data, "pass@1"),
            (values.get("Clip", math.nan), values.get("TROLL", math.nan)),
            quantity,
        )
        for (model, data, estimator), values in by_setting.items()
    ]


def _ablations() -> list[Comparison]:
    rows = [row for row in _numbers("page_cost") if row["model"] == "Qwen3-1.7B"]
    default = next(float(row["value"]) for row in rows if row["note"].startswith("default"))
    comparisons = []
    for row in rows:
        for sign, pattern in (("kl", r"eps=([\d.]+)$"), ("k", r"^K=(\d+)")):
            if changed := re.search(pattern, row["note"]):
                setting = (
                    row["model"],
                    row["dataset"],
                    row["estimator"],
                    "troll",
                    f"troll-{sign}{changed[1]}",
                )
                values = (default, float(row["value"]))
                comparisons.append(Comparison(*setting, _MEASURES[row["dataset"]], values))
    return comparisons


def _cost() -> list[Comparison]:
    memory = _pairs(_numbers("page_cost", "vram_gib"), measure="peak_gib", quantity="memory (GiB)")
    time = _pairs(_numbers("page_cost", "step_runtime_s"), measure="batch_s", quantity="time per step (s)")
    return [*memory, *time]


def _code() -> list[Comparison]:
    """Comparisons without numbers: none were read off the figure; the text claims gains of 7 to 18 points."""
    return [Comparison(model, "Code", "GRPO", "clip", "troll") for model in QWEN3]


def _staleness() -> list[Comparison]:
    """Comparisons without numbers: none were read off the figure; the conditions are those of the matrix."""
    return [
        Comparison("Qwen3-4B", "DAPO_Eval", "GRPO", "clip", method, condition=f"*{condition}")
        for condition in ("stale1x", "stale4x", "stale16x")
        for method in ("troll", "gspo-clip", "quatro")
    ]


def _summary() -> list[Comparison]:
    """Comparisons of a published summary, which describes other experiments and gives no numbers."""
    models = ("CodeLlama-7B", "CodeLlama-13B", "DeepSeek-Coder-1.3B", "DeepSeek-Coder-6.7B")
    comparisons = [
        Comparison(model, data, estimator, "clip", "troll", _MEASURES.get(data, "pass@1"))
        for data in ("GSM8K", "MATH", "HumanEval", "MBPP")
        for model in models
        for estimator in ("GAE", "PPO-max")
    ]
    variants = ("troll-k10", "troll-k20", "troll-kl0.01", "troll-kl0.25")
    return comparisons + [
        Comparison(model, "GSM8K", "GAE", "troll", name) for model in models for name in variants
    ]


@dataclass(frozen=True)
class _Section:
    """One table of the paper: its rows, the format of its numbers and a note."""

    rows: Any
    show: Any = percent
    gain: Any = points
    unit: str = " (%)"
    gain_unit: str = " (points)"
    note: str = ""


def _gained(value: float) -> str:
    return f"{value:+.3g}".replace("-", MINUS)


_READ = "Numbers read off a smoothed curve by eye, with an error of 0.5 to 1.5 points. "
SECTIONS: Mapping[str, _Section] = {
    "families": _Section(
        lambda: _pairs(_numbers("page_table")),
        note="Numbers printed in the paper's table. ",
    ),
    "sizes": _Section(lambda: _pairs(_numbers("fig_size")), note=_READ),
    "estimators": _Section(lambda: _pairs(_numbers("fig_methods")), note=_READ),
    "ablations": _Section(_ablations, note=_READ),
    "cost": _Section(
        _cost,
        significant,
        _gained,
        "",
        "",
        "Numbers printed on the paper's figure; data set and estimator are not printed there and assumed. ",
    ),
    "entropy": _Section(
        lambda: _pairs(_numbers("page_cost", "policy_entropy*"), measure="entropy", quantity="at 95 h"),
        significant,
        _gained,
        " (nats)",
        " (nats)",
        "Read off the curve at 95 hours, from a start of 0.38; ours is the mean of the last tenth. ",
    ),
    "code": _Section(
        _code,
        note="No single number could be read; the paper claims gains of 7 to 18 points. ",
    ),
    "staleness": _Section(_staleness, note="The paper's curves were not read; only ours can be shown. "),
    "summary": _Section(
        _summary,
        note=(
            "A question-and-answer summary of the paper names other models, tasks and estimators than the "
            "paper does, and gives no numbers for them. HumanEval has no training problems: models trained "
            "on MBPP are evaluated on it. "
        ),
    ),
}


def published_table(section: str, runs: pd.DataFrame, items: pd.DataFrame) -> pd.DataFrame:
    """One table of the paper with our numbers next to the published ones.

    Returns:
        One row per comparison (and condition, if ours has several): ``published_baseline``,
        ``published_method``, ``published_gain``; our ``baseline`` and ``method`` with ``_sd`` and ``_off``
        (ours minus published), and our ``gain``, for pass@1 paired and with ``_low`` and ``_high``.
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
        rows += [_row(row, cell, summary, items) for cell in matching or (None,)]
    frame = pd.DataFrame(rows)
    frame = frame.drop(columns=[name for name in ("condition", "quantity") if not frame[name].any()])
    names = {role: role for role in ("baseline", "method")}
    for role in names:
        if frame[f"{role}_name"].nunique() == 1:
            names[role] = str(frame.pop(f"{role}_name").iloc[0])
    frame.attrs["styles"] = _styles(chosen, names)
    frame.attrs["quoted"] = ["published_baseline", "published_method", "published_gain"]
    frame.attrs["notes"] = _notes(chosen, frame, runs)
    return frame


def _styles(section: _Section, names: Mapping[str, str]) -> dict[str, Style]:
    """Column styles, with the names of baseline and method in the headings if all rows share them."""
    styles = {"data": Style("Data"), "quantity": Style("Quantity")}
    for role, name in names.items():
        styles |= {
            f"{role}_name": Style(role.capitalize()),
            f"published_{role}": Style(f"{name}, published{section.unit}", section.show),
            role: Style(f"{name}, ours{section.unit}", section.show),
            f"{role}_off": Style(f"{name}, ours \N{MINUS SIGN} published{section.gain_unit}", section.gain),
        }
    styles["published_gain"] = Style(f"Gain, published{section.gain_unit}", section.gain)
    styles["gain"] = Style(f"Gain, ours{section.gain_unit}", section.gain)
    return styles


def _row(row: Comparison, cell: Cell | None, summary: pd.DataFrame, items: pd.DataFrame) -> dict[str, Any]:
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
    ours = [spread(part.get(row.measure, ())) for part in lines]
    measured = not all(math.isnan(mean) for mean, _ in ours)
    shown |= {"seeds": max(map(len, lines)), "status": "run" if measured else "not run"}
    for name, published, (mean, deviation) in zip(("baseline", "method"), row.published, ours, strict=True):
        shown |= {
            f"published_{name}": published,
            name: mean,
            f"{name}_sd": deviation,
            f"{name}_off": mean - published,
        }
    shown |= {"published_gain": row.published[1] - row.published[0]}
    if cell is not None and row.measure == "pass@1":
        interval = difference(items, cell, cell.with_trust_region(row.baseline))
        if interval is not None:
            return shown | interval.columns("gain")
    return shown | interval_columns("gain", None) | {"gain": ours[1][0] - ours[0][0]}


def _notes(section: _Section, frame: pd.DataFrame, runs: pd.DataFrame) -> list[str]:
    missing = int((frame["status"] == "not run").sum())
    models = sorted({str(name) for name in runs.loc[runs["trust_region"] != BASE, "model"]})
    coverage = f"{missing} of {len(frame)} rows have not been run; the runs here are of {', '.join(models)}."
    compare = (
        "Published numbers come without seeds and without intervals: a difference from ours can be shown, "
        "not tested. Gain: method minus baseline; ours paired by seed and problem with a 95 % interval where "
        "the measure is test pass@1."
    )
    return [f"{section.note}{compare}", *([coverage] if missing else [])]
