"""Tables of training behaviour: speed, stability and cost, and the seeds needed to detect a difference."""

import math

import numpy as np
import pandas as pd

from troll.analysis.data.reduction import FINAL_SHARE
from troll.analysis.data.summaries import (
    BASELINE,
    COLLAPSED,
    METHOD,
    Cell,
    cells,
    curve,
    per_run,
    seed_differences,
    spread,
    spreads,
    trained_cells,
    variants,
)
from troll.analysis.render.formats import Style, percent, points, significant, table, whole
from troll.analysis.statistics import (
    LEVEL,
    POWER,
    Interval,
    interval_columns,
    seed_interval,
    seeds_needed,
    spread_interval,
    steps_to,
)

TARGET_STEP = 0.05
"""Target success rates are rounded to multiples of this, so that they do not fit a particular run."""
POINTS = (0.01, 0.02, 0.05)
"""Differences in pass@1 of the power table."""
MOST_SEEDS = 1000
REFERENCE = "grpo"
"""The estimator, without a critic, with which costs are compared."""
_RATIOS = {"batch_cpu_s": "cpu_ratio", "peak_gib": "memory_ratio"}


def speed_table(runs: pd.DataFrame, *, target: float | None = None) -> pd.DataFrame:
    """Returns steps and hours to a target training success, and the mean height of the success curve.

    A run reaches the target at the first step at which the mean over its last batches (a tenth of the run, at
    least two) is at or above it. In medians, runs that never reach it count as later than all others.

    Args:
        target: success between 0 and 1; by default, for each model and task, half-way from the success of the
            first batch to the best final mean of any method, rounded to 5 points.

    Returns:
        One row per method and setting: ``target``, ``reached`` and ``seeds`` (runs), ``steps_to`` and
        ``hours_to`` (medians over seeds; infinite if at least half of the runs never reach it), ``auc``
        with ``_sd``, ``area_difference`` with ``_low`` and ``_high``.
    """
    success = runs[(runs["metric"] == "success") & (runs["source"] == "train")]
    summary = per_run(runs)
    rows = []
    for cell in trained_cells(success):
        goal = target if target is not None else _target(success, summary, cell)
        lines, firsts = cell.rows(summary), _reached(cell.rows(success), goal)
        reached = sum(math.isfinite(step) for step, _ in firsts)
        row = cell.coordinates | {"seeds": len(firsts), "target": goal, "reached": reached}
        row["steps_to"], row["hours_to"] = (float(np.median(part)) for part in zip(*firsts, strict=True))
        row |= spreads(lines, "auc")
        row |= interval_columns("area_difference", _area_difference(summary, cell))
        rows.append(row)
    styles = {
        "target": Style("Target (%)", percent),
        "reached": Style("Runs that reach it", whole),
        "steps_to": Style("Steps to target", _reach),
        "hours_to": Style("Minutes to target", lambda value: _reach(60 * value)),
        "area_difference": Style(f"Δ mean height from {BASELINE} (points)", points),
    }
    note = (
        "Target: training success half-way between the first batch and the best final mean of any method on "
        "the same model and task, to the nearest 5 points. Steps and minutes of wall-clock training are "
        "medians over seeds; never: half of the runs or more do not reach it. Mean height of the success "
        "curve over all steps, mean ± standard deviation; Δ paired by seed, with Student's 95 % interval "
        "over seeds. Time depends on the machine and on what else it did."
    )
    return table(rows, styles, note)


def _reach(value: float) -> str:
    return "never" if math.isinf(value) else significant(value)


def _target(success: pd.DataFrame, summary: pd.DataFrame, cell: Cell) -> float:
    """Half-way from the initial success to the best final success for this model and task."""
    rows, ends = (
        frame[(frame["model"] == cell.model) & (frame["task"] == cell.task)] for frame in (success, summary)
    )
    start = float(rows.loc[rows["step"] == rows["step"].min(), "value"].mean())
    methods = ends.groupby(["condition", "estimator", "trust_region"], observed=True)
    best = float(methods["final"].mean().max())
    return max(1, round((start + best) / 2 / TARGET_STEP)) * TARGET_STEP


def _reached(rows: pd.DataFrame, target: float) -> list[tuple[float, float]]:
    """Step and hours at which each seed reaches the target; infinite if never."""
    reached = []
    for _, run in rows.sort_values("step").groupby("seed"):
        window = max(2, round(FINAL_SHARE * len(run)))
        step = steps_to(run["step"], run["value"], target, window=min(window, len(run)))
        wall = run.loc[run["step"] == step, "wall_s"]
        reached.append((step, float(wall.iloc[0]) / 3600) if len(wall) else (math.inf, math.inf))
    return reached


def _area_difference(summary: pd.DataFrame, cell: Cell) -> Interval | None:
    if cell.trust_region == BASELINE:
        return None
    first, second = (
        part.rows(summary).set_index("seed")["auc"] for part in (cell, cell.with_trust_region(BASELINE))
    )
    seeds = first.index.intersection(second.index)
    return seed_interval((first[seeds] - second[seeds]).to_numpy(dtype=float)) if len(seeds) else None


def stability_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Stability of training by method: drawdown, collapses, divergence and entropy.

    Returns:
        One row per method and setting: ``max_drawdown`` (largest fall of training success below its best so
        far) with ``_sd``, ``max_drawdown_worst`` (worst seed), ``collapsed`` (runs that end below half of the
        base model's test pass@1, or of the first batch's training success if no base model was graded),
        ``late_kl`` (with ``_sd``), ``kl_max`` (largest over tokens), ``entropy_start``, ``entropy`` and
        ``entropy_kept`` (their ratio).
    """
    summary = per_run(runs)
    rows = []
    for cell in trained_cells(runs[runs["metric"] == "success"]):
        lines = cell.rows(summary)
        row = cell.coordinates | {"seeds": len(lines), "collapsed": _collapsed(runs, summary, cell)}
        row |= spreads(lines, "max_drawdown")
        row["max_drawdown_worst"] = float(lines["max_drawdown"].max())
        row |= spreads(lines, *(name for name in ("late_kl", "entropy_start", "entropy") if name in lines))
        if "entropy" in lines:
            row["entropy_kept"] = float((lines["entropy"] / lines["entropy_start"]).mean())
        if "kl_max" in lines:
            row["kl_max"] = float(lines["kl_max"].max())
        rows.append(row)
    styles = {
        "collapsed": Style("Runs that collapse", whole),
        "max_drawdown_worst": Style("Worst seed's drop (points)", percent),
        "kl_max": Style("Largest KL of a token"),
        "entropy_start": Style("Entropy, start (nats)"),
        "entropy_kept": Style("Entropy kept (%)", percent),
    }
    note = (
        "Largest drop: largest fall of training success below its best batch so far, mean ± standard "
        "deviation over seeds; single batches scatter, so a few points are no sign of trouble. A run "
        f"collapses when it ends below {100 * COLLAPSED:.0f} % of its base model's test pass@1. KL to the "
        "old policy (that which sampled, or with a policy lag that before the updates), in nats per token: "
        "mean over the last third of the run, and the largest of any token. Entropy: first batch and last "
        "tenth."
    )
    return table(rows, styles, note)


def _collapsed(runs: pd.DataFrame, summary: pd.DataFrame, cell: Cell) -> int:
    lines, base = cell.rows(summary), cell.base_model().rows(summary)
    if len(base) and "pass@1" in lines:
        return int((lines["pass@1"] < COLLAPSED * float(base["pass@1"].iloc[0])).sum())
    first = curve(cell.rows(runs), "success").bfill().iloc[0]
    final = lines.set_index("seed")["final"]
    return int((final < COLLAPSED * first.reindex(final.index)).sum())


def power_table(items: pd.DataFrame) -> pd.DataFrame:
    """Seeds needed to detect a difference in test pass@1, at the observed spread.

    Returns:
        One row per setting: ``spread`` (standard deviation over seeds of the paired difference) with
        ``_low`` and ``_high`` (its 95 % interval), and ``points_1``, ``points_2``, ``points_5``: the fewest
        seeds at which a paired t-test detects a difference of that many points with 80 % power; infinite
        above 1000.
    """
    rows, varied = [], variants(items)
    for cell in cells(items):
        if METHOD not in (cell.trust_region, varied.get(cell.trust_region)):
            continue
        changes = seed_differences(items, cell, cell.with_trust_region(BASELINE))
        if not changes.size:
            continue
        _, deviation = spread(changes)
        row = cell.coordinates | {"seeds": changes.size, "spread": deviation}
        row["spread_low"], row["spread_high"] = spread_interval(deviation, changes.size)
        for share in POINTS:
            row[f"points_{100 * share:.0f}"] = _needed(deviation, share)
        rows.append(row)
    styles = {
        "spread": Style("Spread of Δ over seeds (points)", percent),
        **{f"points_{100 * share:.0f}": _seeds_style(share) for share in POINTS},
    }
    note = (
        f"Seeds that each method needs so that a paired t-test at the {100 * LEVEL:.0f} % level finds a true "
        f"difference of that size in {100 * POWER:.0f} % of experiments, if the spread of the paired "
        "difference is as observed. The interval of the spread says how little few seeds know about it."
    )
    return table(rows, styles, note, empty=f"No run of {METHOD} has a run of {BASELINE} beside it.")


def _needed(deviation: float, share: float) -> float:
    if math.isnan(deviation):
        return math.nan
    seeds = seeds_needed(deviation, share, most=MOST_SEEDS)
    return math.inf if seeds is None else seeds


def _seeds_style(share: float) -> Style:
    size = f"{100 * share:.0f} point{'' if share == POINTS[0] else 's'}"
    return Style(
        f"Seeds for {size}", lambda value: f"over {MOST_SEEDS}" if math.isinf(value) else f"{value:.0f}"
    )


def training_cost_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Time and memory of whole training runs.

    Returns:
        One row per method and setting: ``batch_s`` and ``batch_cpu_s`` (wall-clock and processor seconds per
        rollout batch with its updates; mean and ``_sd`` over seeds), ``peak_gib`` (memory of the largest
        process or, on a GPU, of tensors), and ``cpu_ratio`` and ``memory_ratio`` (processor time and memory
        relative to clip with `REFERENCE`; neither without a run of clip).
    """
    summary = per_run(runs)
    rows = []
    for cell in trained_cells(runs[runs["source"] == "train"]):
        lines = cell.rows(summary)
        row = cell.coordinates | {"seeds": len(lines)} | spreads(lines, "batch_s", *_RATIOS)
        reference_cell = Cell(cell.model, cell.task, cell.condition, REFERENCE, BASELINE)
        reference = spreads(reference_cell.rows(summary), *_RATIOS)
        rows.append(row | {ratio: row[name] / reference[name] for name, ratio in _RATIOS.items()})
    styles = {
        "batch_s": Style("Seconds per batch"),
        "batch_cpu_s": Style("Processor seconds per batch"),
        "cpu_ratio": Style(f"Times {BASELINE} with {REFERENCE}"),
        "peak_gib": Style("Peak memory (GiB)"),
        "memory_ratio": Style(f"Memory, times {BASELINE} with {REFERENCE}"),
    }
    note = (
        "A batch: sampling, rewards, old policy and values, and all optimiser steps on it; mean ± standard "
        "deviation over seeds. Wall-clock time depends on what else the machine did, processor time hardly. "
        "Both depend on the length of the answers that a method learns to give. Memory without a GPU is the "
        "whole process, of which the libraries are most on the testbed; the cost of a step is measured apart."
    )
    made = table(rows, styles, note)
    return made if (runs["trust_region"] == BASELINE).any() else made.drop(columns=[*_RATIOS.values()])
