"""Tables of results: functions from tidy tables to a DataFrame of numbers for ``formats.write_table``.

Every row is one method in one setting. ``status`` is "run", "not run" (planned or expected, without runs) or
"skipped"; no row is left out silently.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from troll.analysis.data.summaries import (
    BASELINE,
    METHOD,
    Cell,
    cell_order,
    cells,
    difference,
    method_order,
    per_run,
    planned_seeds,
    scores,
    seed_differences,
    spread,
    spreads,
    trained_cells,
    variants,
)
from troll.analysis.data.tidy import BASE, GROUP
from troll.analysis.metrics import DIAGNOSTICS, METRICS
from troll.analysis.render.formats import table
from troll.analysis.statistics import interval_columns, paired_p_value
from troll.analysis.tables.benchmarks import OFFICIAL
from troll.analysis.tables.comparisons import ALONE, ONE_SEED

MAIN_METRICS = ("difference", "auc", "late_kl", "entropy", "final", "peak")
"""Columns after pass@1 and the pass@k with the largest measured k."""
ABLATION_METRICS = ("difference", "auc", "late_kl", "entropy", "final", "peak", "max_drawdown")
OFFICIAL_METRIC = "official/pass@1"
"""pass@1 by lm-eval or evalplus, of runs on public data."""
_COMPARED = ("difference", "difference_low", "difference_high", "reading", "p")
"""Columns of a comparison, which a table lacks where no run of the reference is planned."""
_CONSTRAINT_CHECK: Mapping[str, str] = {name: METRICS[name].over_run for name in DIAGNOSTICS}
"""Aggregation over all steps and seeds, by diagnostic."""


def main_table(
    runs: pd.DataFrame,
    items: pd.DataFrame,
    *,
    expected: Sequence[Mapping[str, object]] | None = None,
    skipped: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """Test scores and training behaviour of every method in every setting, except variants of other methods.

    Args:
        expected: coordinates of the planned runs; by default every method is expected in every setting
            that is present.

    Returns:
        The coordinates, seeds, planned, status, mixed, pass@1 and the pass@k with the largest k (on public
        data preceded by ``official/pass@1`` and followed by the number of ``disagreements``), and
        ``MAIN_METRICS``: mean and ``_sd`` over seeds; ``difference`` has ``_low``, ``_high``, ``reading`` and
        ``p`` (paired t-test over seeds), both uncorrected: see ``comparison_family``; none of these where the
        baseline is neither run nor planned. Shares are between 0 and 1, KL and entropy in nats.
    """
    names = {cell.trust_region for cell in cells(runs)} | {str(run["trust_region"]) for run in expected or ()}
    chosen = (names - set(variants(runs, expected))) | {BASE}
    metrics = (*_of_test(runs, largest_k=True), *MAIN_METRICS)
    frame = _table(runs, items, chosen, metrics, BASELINE, expected, skipped or {})
    if BASELINE not in names:
        frame = frame.drop(columns=[*_COMPARED])
    return _explained(frame, runs, BASELINE, skipped or {})


def comparison_table(main: pd.DataFrame) -> pd.DataFrame:
    """Returns the short form of ``main_table``: one row per setting, two methods side by side.

    Returns:
        The coordinates of the setting, seeds (of the method), on public data the official pass@1 of base
        model and both methods, ``base``, ``baseline`` and ``method`` (test pass@1 with ``_sd``),
        ``difference`` with ``_low``, ``_high`` and ``reading``, and mean height of the training curve and
        late KL of both; no rows without the baseline. Where one method has seeds that the other lacks, both
        pass@1 are those of the seeds that both have. ``attrs["headings"]`` names the methods.
    """
    rows = []
    trained = main[main["trust_region"].isin([METHOD, BASELINE] if "difference" in main else [])]
    for _, setting in trained.loc[:, list(GROUP[:-1])].drop_duplicates().iterrows():
        by_method = trained[(trained[list(setting.index)] == setting).all(axis=1)].set_index("trust_region")
        same = (main["model"] == setting["model"]) & (main["task"] == setting["task"])
        row: dict[str, Any] = dict(setting) | {"seeds": pd.NA, "planned": pd.NA, "status": "not run"}
        for metric, prefix in ((OFFICIAL_METRIC, "official_"), ("pass@1", "")):
            if metric not in main:
                continue
            base = main.loc[same & (main["trust_region"] == BASE), metric]
            row[f"{prefix}base"] = float(base.iloc[0]) if len(base) else math.nan
            for column, name in (("baseline", BASELINE), ("method", METHOD)):
                for part in ("", "_sd"):
                    row[f"{prefix}{column}{part}"] = by_method[f"{metric}{part}"].get(name, math.nan)
        common = main.attrs.get("common", {}).get((*map(str, setting), METHOD))
        row |= common or {}
        for name in ("difference", "difference_low", "difference_high"):
            row[name] = by_method[name].get(METHOD, math.nan)
        row["reading"] = by_method["reading"].get(METHOD, "")
        for metric in ("auc", "late_kl"):
            for column, name in ((f"baseline_{metric}", BASELINE), (metric, METHOD)):
                row[column] = by_method[metric].get(name, math.nan)
        if METHOD in by_method.index:
            row |= {name: by_method.loc[METHOD, name] for name in ("seeds", "planned", "status", "mixed")}
        rows.append(row)
    frame = pd.DataFrame(rows)
    frame.attrs["headings"] = {
        "method": f"{METHOD} (%)",
        "baseline": f"{BASELINE} (%)",
        "official_method": f"{METHOD}, official (%)",
        "official_baseline": f"{BASELINE}, official (%)",
        "auc": f"Mean height, {METHOD} (%)",
        "baseline_auc": f"Mean height, {BASELINE} (%)",
        "late_kl": f"Late KL, {METHOD}",
        "baseline_late_kl": f"Late KL, {BASELINE}",
    }
    of_main = _not_run(main)
    notes = [note for note in main.attrs.get("notes", []) if note not in of_main]
    frame.attrs["notes"] = [*notes, *(_not_run(frame) if rows else ())]
    frame.attrs["explained"] = main.attrs.get("explained", {})
    return frame


def ablation_table(
    runs: pd.DataFrame,
    items: pd.DataFrame,
    *,
    expected: Sequence[Mapping[str, object]] | None = None,
    skipped: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """Variants of each rule and its default, in the settings where a variant was run or planned.

    Returns:
        As ``main_table`` with pass@1 and ``ABLATION_METRICS``, rule by rule; differences are from the rule's
        default. Empty without variants.
    """
    present = set(cells(runs)) | set(planned_seeds(expected or ()))
    parts = []
    defaults = variants(runs, expected)
    for default in sorted(set(defaults.values()), key=method_order):
        varied = {cell for cell in present if defaults.get(cell.trust_region) == default}
        chosen = {cell.trust_region for cell in varied} | {default}
        settings = {cell.with_trust_region(default) for cell in varied}
        metrics = (*_of_test(runs), *ABLATION_METRICS)
        parts.append(_table(runs, items, chosen, metrics, default, expected, skipped or {}, settings))
    frame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    if parts:
        return _explained(frame, runs, "the rule's default", skipped or {})
    frame.attrs["notes"] = ["No variants were run."]
    return frame


def constraint_check_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Diagnostics of the trust regions over all steps and seeds of each method.

    Returns:
        One row per method and setting: ``clip_fraction`` and ``solver_evaluations`` are means over steps,
        ``kept_mass_min`` is the smallest value, the others are the largest; NaN for diagnostics that a rule
        does not log.
    """
    summary, rows = per_run(runs), []
    for cell in cells(runs):
        train = cell.rows(runs)
        train = train[train["source"] == "train"]
        if train.empty:
            continue
        row = cell.coordinates | {"seeds": train["seed"].nunique()}
        lines = cell.rows(summary)
        for metric, how in _CONSTRAINT_CHECK.items():
            if how == "mean":
                row[metric] = _mean_over_steps(lines, f"mean/{metric}")
                continue
            values = train.loc[train["metric"] == metric, "value"]
            row[metric] = float(getattr(values, how)()) if len(values) else math.nan
        rows.append(row)
    note = (
        "Largest and least values are over all tokens, optimiser steps and seeds; shares and evaluations are "
        "means over steps. KL in nats per token, new policy against the old one. After: of the "
        "projected policy. Residual: distance of the projection's KL from the bound, where the bound binds."
    )
    return table(rows, {}, note, columns=[*GROUP, "seeds", *_CONSTRAINT_CHECK])


def _mean_over_steps(summary: pd.DataFrame, column: str) -> float:
    """Returns the mean over all optimiser steps from the runs' means; NaN if no run logs the metric."""
    if column not in summary:
        return math.nan
    present = summary[summary[column].notna()]
    return float(np.average(present[column], weights=present["steps"])) if len(present) else math.nan


def test_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Returns every test metric of every method, with the share of each status: mean and ``_sd`` over seeds.

    Returns:
        One row per method and setting, a column per metric; NaN if a task does not have the metric.
    """
    summary = per_run(runs)
    metrics = sorted(set(runs.loc[runs["source"] == "test", "metric"]), key=_test_order)
    rows = []
    for cell in cells(runs):
        lines = cell.rows(summary)
        row = cell.coordinates | {"seeds": _seeds(cell, lines)}
        for metric in metrics:
            # A status that no sample of a run has is not recorded: its share is zero.
            values = lines[metric].fillna(0.0) if metric.startswith("status/") else lines[metric]
            row[metric], row[f"{metric}_sd"] = spread(values)
        rows.append(row)
    return pd.DataFrame(rows).astype({"seeds": "Int64"})


def _test_order(metric: str) -> tuple[bool, bool, bool, str]:
    """Sort key: official scores, those of our judge, disagreements, then all other metrics."""
    official = metric.startswith("official/")
    disagreements = metric == "disagreements"
    return not official, disagreements or "/" in metric, not disagreements and "/" in metric, metric


def _of_test(runs: pd.DataFrame, *, largest_k: bool = False) -> list[str]:
    """Our pass@k; on public data preceded by the official pass@1 and followed by the disagreements."""
    tested = set(runs.loc[runs["source"] == "test", "metric"])
    sizes = {int(name.removeprefix("pass@")) for name in tested if largest_k and name.startswith("pass@")}
    ours = [f"pass@{k}" for k in sorted({1, max(sizes, default=1)})]
    return [name for name in (OFFICIAL_METRIC, *ours, "disagreements") if name in ours or name in tested]


def _table(
    runs: pd.DataFrame,
    items: pd.DataFrame,
    chosen: set[str],
    metrics: Iterable[str],
    reference: str,
    expected: Sequence[Mapping[str, object]] | None,
    skipped: Mapping[str, str],
    settings: set[Cell] | None = None,
) -> pd.DataFrame:
    """Returns rows of all chosen methods, restricted to ``settings`` (given as cells of the reference)."""
    summary = per_run(runs)
    planned = planned_seeds(expected) if expected is not None else {}
    shown = set(cells(runs)) | (set(planned) if expected is not None else _product(runs, chosen))
    models = {cell.model for cell in shown}
    shown |= {Cell(model, task, "", "", BASE) for model in models for task in skipped if BASE in chosen}
    shown = {cell for cell in shown if cell.trust_region in chosen}
    if settings is not None:
        shown = {cell for cell in shown if cell.with_trust_region(reference) in settings}
    rows = []
    for cell in sorted(shown, key=cell_order):
        lines = cell.rows(summary)
        row = cell.coordinates | {"seeds": _seeds(cell, lines), "planned": planned.get(cell)}
        row["status"] = "run" if len(lines) else ("skipped" if cell.task in skipped else "not run")
        row["mixed"] = bool(len(lines) and lines["mixed"].any())
        for metric in metrics:
            if metric == "difference":
                row |= _difference(items, cell, reference)
            else:
                row |= spreads(lines, metric)
        rows.append(row)
    frame = pd.DataFrame(rows)
    frame = frame.astype({"seeds": "Int64", "planned": "Int64"}) if rows else frame
    frame.attrs["common"] = _on_common_seeds(items, shown, reference)
    return frame


def _on_common_seeds(
    items: pd.DataFrame, shown: Iterable[Cell], reference: str
) -> dict[tuple[str, ...], dict[str, float]]:
    """Test pass@1 of method and reference where one has seeds that the other lacks, by coordinates."""
    found = {}
    for cell in shown:
        other = cell.with_trust_region(reference)
        if cell.trust_region in (reference, BASE):
            continue
        method, baseline = (scores(items, member).mean(axis=1) for member in (cell, other))
        seeds = method.index.intersection(baseline.index)
        if len(seeds) and {*method.index} != {*baseline.index}:
            both = pd.DataFrame({"method": method[seeds], "baseline": baseline[seeds]})
            found[tuple(cell.coordinates.values())] = spreads(both, "method", "baseline")
    return found


def _product(runs: pd.DataFrame, chosen: set[str]) -> set[Cell]:
    """Returns every chosen method in every setting that is present, so that missing runs are visible."""
    trained = trained_cells(runs)
    axes = [sorted({getattr(cell, name) for cell in trained}) for name in GROUP[:-1]]
    methods = sorted(chosen & {cell.trust_region for cell in trained})
    planned = {Cell(*names) for names in itertools.product(*axes, methods)}
    return planned | {cell.base_model() for cell in planned if BASE in chosen}


def _seeds(cell: Cell, lines: pd.DataFrame) -> int | None:
    return None if cell.trust_region == BASE else int(lines["seed"].nunique()) if len(lines) else 0


def _difference(items: pd.DataFrame, cell: Cell, reference: str) -> dict[str, Any]:
    other, interval = cell.with_trust_region(reference), None
    if cell.trust_region not in (reference, BASE):
        interval = difference(items, cell, other)
    return interval_columns("difference", interval) | {
        "reading": interval.reading() if interval else "",
        "p": paired_p_value(seed_differences(items, cell, other)) if interval else math.nan,
    }


def _explained(
    frame: pd.DataFrame, runs: pd.DataFrame, reference: str, skipped: Mapping[str, str]
) -> pd.DataFrame:
    """Gives a table its notes, and to each column the sentence about it."""
    counts = sorted({int(n) for n in frame["seeds"].dropna() if n})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}" if counts else "no"
    frame.attrs["explained"] = {
        "seeds": f"Mean ± standard deviation over {seeds} seed{'' if counts == [1] else 's'}.",
        "difference": f"Δ: difference from {reference} in the same setting, paired by seed, with Student's "
        "95 % interval over seeds.",
        "reading": ALONE,
        "p": "p: paired t-test over seeds.",
        "late_kl": "KL: mean over the last third of the run, in nats per token.",
        "final": "Final: mean over the last tenth of the run; entropy is in nats per token.",
    }
    notes = [ONE_SEED] if 1 in counts and "difference" in frame else []
    if OFFICIAL_METRIC in frame:
        notes.append(f"{OFFICIAL} `disagreements.jsonl` in each run's directory under `runs/` lists them.")
    notes += [f"Task {task}: skipped, because {reason}." for task, reason in sorted(skipped.items())]
    notes += _not_run(frame)
    if frame["mixed"].any():
        mixed = sorted(set(runs.loc[runs["mixed"], "run_id"]))
        notes.append(
            f"† includes runs made with another version of program, environment or data: {', '.join(mixed)}."
        )
    frame.attrs["notes"] = notes
    return frame


def _not_run(frame: pd.DataFrame) -> list[str]:
    missing = int((frame["status"] == "not run").sum())
    return [f"{missing} of {len(frame)} rows have not been run."] if missing else []
