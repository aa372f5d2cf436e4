"""Summaries per run, and scores per seed and problem, shared by tables, figures and verdicts."""

import math
import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from troll.analysis.data.reduction import SUMMARY
from troll.analysis.data.tidy import BASE, GROUP
from troll.analysis.metrics import PRESENT_NAMES
from troll.analysis.registry import BASELINE as BASELINE
from troll.analysis.registry import variants_of
from troll.analysis.statistics import Array, Interval, paired_difference, pass_at_k, sd, seed_interval
from troll.common.errors import NOT_FINITE, UserError
from troll.common.seeding import derive_seed

METHOD = "troll"
"""The rule that tables and figures put beside `BASELINE`."""
COLLAPSED = 0.5
"""A run that ends below this share of its base model's test pass@1 has collapsed."""

_LEADING = (BASE, BASELINE, METHOD)
_LEADING_ESTIMATORS = ("", "grpo", "dr-grpo")
_Result = TypeVar("_Result")


def cached_per_frame(compute: Callable[[pd.DataFrame], _Result]) -> Callable[[pd.DataFrame], _Result]:
    """Caches a function of a table for the table's lifetime; tables must not be changed in place."""
    cache: dict[int, tuple[weakref.ref[pd.DataFrame], _Result]] = {}

    @wraps(compute)
    def remembered(frame: pd.DataFrame) -> _Result:
        key = id(frame)
        entry = cache.get(key)
        if entry is None or entry[0]() is not frame:
            gone = weakref.ref(frame, lambda _: cache.pop(key, None) and None)
            entry = cache[key] = (gone, compute(frame))
        return entry[1]

    return remembered


@dataclass(frozen=True)
class Cell:
    """All seeds of one method in one setting; empty strings for the base model's estimator and condition."""

    model: str
    task: str
    condition: str
    estimator: str
    trust_region: str

    def rows(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Returns the rows of this cell in a tidy table."""
        return frame[np.logical_and.reduce([frame[name] == getattr(self, name) for name in GROUP])]

    @property
    def coordinates(self) -> dict[str, Any]:
        """The coordinates by name, the first columns of a table's row."""
        return {name: getattr(self, name) for name in GROUP}

    def base_model(self) -> "Cell":
        """Returns the base model of the same task."""
        return Cell(self.model, self.task, "", "", BASE)

    def with_condition(self, condition: str, estimator: str) -> "Cell":
        """Another setting of the same model and task, without a method."""
        return Cell(self.model, self.task, condition, estimator, "")

    def with_trust_region(self, trust_region: str) -> "Cell":
        """Another method in the same setting."""
        return Cell(self.model, self.task, self.condition, self.estimator, trust_region)


def cells(frame: pd.DataFrame) -> list[Cell]:
    """Returns the cells in a tidy table, in display order."""
    present = frame.loc[:, list(GROUP)].drop_duplicates()
    return sorted((Cell(*map(str, row)) for row in present.itertuples(index=False)), key=cell_order)


def trained_cells(frame: pd.DataFrame) -> list[Cell]:
    """`cells` without those of base models."""
    return [cell for cell in cells(frame) if cell.trust_region != BASE]


def cell_order(cell: Cell) -> tuple[object, ...]:
    """Sort key of rows and panels."""
    return (
        cell.model,
        cell.task,
        condition_order(cell.condition),
        *estimator_order(cell.estimator),
        *method_order(cell.trust_region),
    )


def estimator_order(estimator: str) -> tuple[int, str]:
    """Sort key: grpo, its variant dr-grpo, then other estimators by name."""
    leading = estimator in _LEADING_ESTIMATORS
    return _LEADING_ESTIMATORS.index(estimator) if leading else len(_LEADING_ESTIMATORS), estimator


def method_order(trust_region: str) -> tuple[int, tuple[tuple[str, float], ...]]:
    """Sort key: the base model, clip, troll, then other methods by name, with numbers by size."""
    rank = _LEADING.index(trust_region) if trust_region in _LEADING else len(_LEADING)
    return rank, condition_order(trust_region)


def condition_order(name: str) -> tuple[tuple[str, float], ...]:
    """Sort key: by name, with numbers by size."""
    pieces = re.findall(r"([^\d]*)(\d+(?:\.\d+)?(?:e-?\d+)?)?", name)
    return tuple((text, float(number or -1)) for text, number in pieces)


def variants(frame: pd.DataFrame, expected: Sequence[Mapping[str, object]] | None = None) -> dict[str, str]:
    """`variants_of` the methods, from the rules that runs and plan record."""
    rules = {str(run["trust_region"]): str(run.get("rule", "")) for run in expected or ()}
    recorded = frame.loc[:, ["trust_region", "rule"]].drop_duplicates()
    rules |= {str(name): str(rule) for name, rule in recorded.itertuples(index=False)}
    return variants_of(rules)


def require_one(frame: pd.DataFrame) -> None:
    """Rejects a table that mixes experiments, over which means would be meaningless."""
    values = sorted(set(frame["experiment"]))
    if len(values) > 1:
        raise UserError(f"the table contains experiments {' and '.join(values)}; choose one of them")


def curve(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Returns one metric of a cell's runs: a row per step, a column per seed."""
    rows = frame[(frame["metric"] == metric) & frame["source"].isin(["train", "validation"])]
    if rows.empty:
        return pd.DataFrame()
    return rows.pivot(index="step", columns="seed", values="value").sort_index()


def per_run(runs: pd.DataFrame) -> pd.DataFrame:
    """Returns one row per run with its summaries; cached per table.

    Columns: the coordinates; ``mixed``; every test metric by name; the summaries of training from
    `troll.analysis.data.reduction.summary_of`, with ``hours`` (wall-clock time of training), ``batch_s`` and
    ``batch_cpu_s`` (wall-clock and processor seconds per rollout batch with its updates) in place of seconds
    and batches; and ``peak_gib`` (memory) if the manifest has it. ``auc`` and ``final`` of `stopped_runs` are
    0.
    """
    return _summaries(runs).copy()


def stopped_runs(runs: pd.DataFrame) -> set[str]:
    """Returns ids of runs that stopped at a non-finite loss and count with a success of 0."""
    rows = (runs["source"] == "manifest") & (runs["metric"] == NOT_FINITE)
    return set(runs.loc[rows, "run_id"].astype(str))


@cached_per_frame
def _summaries(runs: pd.DataFrame) -> pd.DataFrame:
    if runs.empty:
        return pd.DataFrame()
    firsts = runs[["run_id", *GROUP, "seed"]].drop_duplicates("run_id").sort_values("run_id")
    firsts = firsts.assign(mixed=runs.groupby("run_id", observed=True)["mixed"].any().to_numpy())
    seeds = firsts.pop("seed").astype(object)
    records: dict[str, dict[Any, Any]] = {record["run_id"]: record for record in firsts.to_dict("records")}
    memory = (runs["source"] == "manifest") & (runs["metric"] == "peak_gib")
    for chosen in (runs["source"] == "test", memory):
        for run, metric, value in runs.loc[chosen, ["run_id", "metric", "value"]].itertuples(index=False):
            records[run][metric] = value
    summaries = runs.loc[runs["source"] == SUMMARY, ["run_id", "metric", "value"]]
    for run, metric, value in summaries.itertuples(index=False):
        name = metric.removeprefix(f"{SUMMARY}/")
        records[run][PRESENT_NAMES.get(name, name)] = value
    for run in stopped_runs(runs):  # regardless of its success until then
        records[run] |= {"auc": 0.0, "final": 0.0}
    table = pd.DataFrame.from_records(list(records.values()))
    table.insert(len(GROUP) + 1, "seed", seeds.to_numpy())  # whole numbers, or missing
    if "batches" in table:
        seconds, batches = table.pop("train_s"), table.pop("batches").replace(0, np.nan)
        table["hours"] = seconds / 3600
        table["batch_s"] = seconds / batches
        if "cpu_s" in table:
            table["batch_cpu_s"] = table.pop("cpu_s") / batches
    return table


def scores(items: pd.DataFrame, cell: Cell, k: int = 1) -> pd.DataFrame:
    """Pass@k of a cell: a row per seed, a column per ``task_id``; cached per table.

    Problems with fewer than k usable samples for some seed are left out for all seeds.
    """
    cache = _score_cache(items)
    if (cell, k) not in cache:
        cache[cell, k] = _scores(items, cell, k)
    return cache[cell, k].copy()


@cached_per_frame
def _score_cache(items: pd.DataFrame) -> dict[tuple[Cell, int], pd.DataFrame]:
    return {}


def _scores(items: pd.DataFrame, cell: Cell, k: int) -> pd.DataFrame:
    rows = cell.rows(items)
    if rows.empty:
        return pd.DataFrame()
    value = pass_at_k(rows["n"].to_numpy(dtype=float), rows["c"].to_numpy(dtype=float), k)
    seed = rows["seed"].astype("float64").fillna(-1.0)  # the base model has no seed
    table = rows.assign(value=value, seed=seed).pivot(index="seed", columns="task_id", values="value")
    return table.sort_index().dropna(axis="columns")


def interval(items: pd.DataFrame, cell: Cell) -> Interval | None:
    """Interval over seeds of a cell's pass@1, clipped to [0, 1]; None without runs."""
    table = scores(items, cell)
    return None if table.empty else _cut(seed_interval(table.to_numpy()), 0.0, 1.0)


def difference(items: pd.DataFrame, cell: Cell, baseline: Cell) -> Interval | None:
    """Paired interval of pass@1 of ``cell`` minus ``baseline``, clipped to [-1, 1].

    None if they share no seed or no problem. Every seed is paired with the same samples of a base model,
    which has only one set.
    """
    pair = paired_scores(items, cell, baseline)
    return None if pair is None else _cut(paired_difference(*pair), -1.0, 1.0)


def paired_scores(
    items: pd.DataFrame, cell: Cell, baseline: Cell, k: int = 1
) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Scores [S, I] of two cells on their common seeds and problems; None if they share none.

    The index of both is the method's seeds, even for a base model, which has no seeds.
    """
    first, second = scores(items, cell, k), scores(items, baseline, k)
    if first.empty or second.empty:
        return None
    problems = first.columns.intersection(second.columns)
    seeds = first.index if baseline.trust_region == BASE else first.index.intersection(second.index)
    if problems.empty or seeds.empty:
        return None
    other = second.loc[[-1.0] * len(seeds)] if baseline.trust_region == BASE else second.loc[seeds]
    return first.loc[seeds, problems], other[problems].set_axis(seeds)


def seed_differences(items: pd.DataFrame, cell: Cell, baseline: Cell) -> Array:
    """Paired differences in pass@1 [S] over the common seeds; empty if there are none."""
    pair = paired_scores(items, cell, baseline)
    return np.empty(0) if pair is None else np.asarray((pair[0] - pair[1]).mean(axis=1))


def values_by_seed(summary: pd.DataFrame, cell: Cell, metric: str) -> pd.Series:
    """Returns a metric of a cell's runs from the table of `per_run`, by seed; empty if no run has it."""
    if metric not in summary:
        return pd.Series(dtype=float)
    values: pd.Series = cell.rows(summary).set_index("seed")[metric].dropna().astype(float)
    return values


def collapsed_runs(items: pd.DataFrame, cell: Cell) -> pd.Series:
    """Returns which seeds ended below `COLLAPSED` of their base model; empty if that has no results."""
    base = scores(items, cell.base_model())
    if base.empty:
        return pd.Series(dtype=bool)
    rates = scores(items, cell).mean(axis=1)
    return (rates < COLLAPSED * float(base.to_numpy().mean())).set_axis(rates.index.astype(int))


def spread(values: Iterable[float]) -> tuple[float, float]:
    """Returns the mean and sample standard deviation, ignoring missing values; NaN where undefined."""
    array: Array = np.asarray([value for value in values if value == value], dtype=np.float64)
    return float(array.mean()) if array.size else math.nan, sd(array)


def spreads(lines: pd.DataFrame, *names: str) -> dict[str, float]:
    """`spread` of columns of `per_run`: ``name`` and ``name_sd`` of each, NaN if missing."""
    columns: dict[str, float] = {}
    for name in names:
        columns[name], columns[f"{name}_sd"] = spread(lines.get(name, ()))
    return columns


def planned_seeds(expected: Sequence[Mapping[str, object]]) -> dict[Cell, int]:
    """Number of planned runs per cell."""
    return dict(Counter(Cell(*(str(run[name]) for name in GROUP)) for run in expected))


def stream(purpose: str, k: int, *parts: Cell) -> np.random.Generator:
    """Returns the random stream of a bootstrap, seeded by its purpose, the k of pass@k and the cells."""
    coordinates: dict[str, str | int] = {"purpose": f"bootstrap {purpose}", "k": k}
    for index, cell in enumerate(parts):
        coordinates |= {f"{name}{index}": getattr(cell, name) for name in GROUP}
    return np.random.default_rng(derive_seed(**coordinates))


def _cut(interval: Interval, least: float, most: float) -> Interval:
    low, high = np.clip([interval.low, interval.high], least, most)
    return replace(interval, low=float(low), high=float(high))
