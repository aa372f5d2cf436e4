"""Contrasts that a protocol fixes before its first run: the comparisons and the wording of their outcomes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from troll.analysis.data.results import Results
from troll.analysis.data.summaries import Cell, cells, collapsed_runs, per_run, scores, values_by_seed
from troll.analysis.leaderboard.protocol import Protocol
from troll.analysis.metrics import PRESENT_NAMES
from troll.analysis.render.formats import Style, bracketed, listed, percent, points, probability
from troll.analysis.statistics import (
    LEVEL,
    Array,
    equivalence_p_value,
    holm,
    paired_p_value,
    seed_interval,
    trimmed_mean,
)
from troll.common.errors import UserError
from troll.common.seeding import derive_seed

TRIMMED = 0.2
"""Share of the seeds that the trimmed mean drops at either end."""
RESAMPLES = 10_000
"""Bootstrap draws of the tuning seeds."""
MEAN = "mean of the tasks"
"""The primary analysis; all others are robustness checks."""
_ENDPOINTS = {"pass@1": "test pass@1", "area": "mean height of curve"}

Tuning = Mapping[tuple[str, str], pd.DataFrame]
"""Validation success by task and rule: a row per tuning seed, a column per trial of the last round."""


def fresh_values(final: Sequence[Results], protocol: Protocol, endpoint: str) -> dict[str, pd.DataFrame]:
    """Returns an endpoint of the compared rules' fresh runs: by rule, a row per seed, a column per task."""
    by_rule: dict[str, dict[str, pd.Series]] = {name: {} for name in protocol.compared}
    for results in final:
        summary, present = per_run(results.runs), cells(results.items)
        models = {cell.model for cell in present}
        for cell in (cell for cell in present if cell.trust_region in by_rule):
            values = (
                scores(results.items, cell).mean(axis=1)
                if endpoint == "pass@1"
                else values_by_seed(summary, cell, PRESENT_NAMES[endpoint])
            )
            _check_seeds(values, cell, endpoint, protocol)
            label = cell.task if len(models) == 1 else f"{cell.task} ({cell.model})"
            by_rule[cell.trust_region][label] = values.set_axis(values.index.astype(int))
    settings = sorted({label for by_label in by_rule.values() for label in by_label})
    for name, by_label in by_rule.items():
        if absent := [label for label in settings if label not in by_label]:
            raise UserError(f"{name}: {absent[0]}: no fresh runs; finish the fresh seeds first")
    return {
        name: pd.DataFrame({label: by_label[label] for label in settings})
        for name, by_label in by_rule.items()
    }


def _check_seeds(values: pd.Series, cell: Cell, endpoint: str, protocol: Protocol) -> None:
    present = set(values.index.astype(int))
    if missing := sorted(set(protocol.seeds) - present):
        raise UserError(
            f"{cell.trust_region}: {cell.task}: no {endpoint} of a fresh run with seed "
            f"{', '.join(map(str, missing))}; finish the fresh seeds first"
        )
    if others := sorted(present - set(protocol.seeds)):
        raise UserError(
            f"{cell.trust_region}: {cell.task}: has a fresh run with seed {others[0]}, which is not in the "
            "protocol; contrasts only use the seeds that it fixes"
        )


def contrasts_table(final: Sequence[Results], protocol: Protocol, tuning: Tuning) -> pd.DataFrame:
    """Returns the outcome of every contrast of a protocol, with robustness checks.

    Returns:
        A row for each endpoint, contrast and analysis: ``endpoint``, ``method``, ``baseline``, ``analysis``
        (`MEAN`; for the first endpoint also each task alone, the trimmed mean, without collapsed runs, and
        with the uncertainty of the tuning), ``seeds``, ``difference`` (method minus baseline, paired by seed)
        with its 95 % interval, ``p`` of a paired t-test, ``p_holm`` corrected over the contrasts of an
        endpoint, ``p_equivalence`` (the larger p-value of two one-sided tests against the margin) and
        ``reading``: above, below, within or undecided.
    """
    comparison = protocol.comparison
    margin, rows = comparison.margin, list[dict[str, Any]]()
    collapsed_seeds = _collapsed_seeds(final, protocol)
    shifts = _shifts(tuning, protocol)
    for endpoint in comparison.endpoints:
        values, first = fresh_values(final, protocol, endpoint), endpoint == comparison.endpoints[0]
        means: list[dict[str, Any]] = []
        for contrast in comparison.contrasts:
            by_task = values[contrast.method] - values[contrast.baseline]
            names = {"endpoint": _ENDPOINTS[endpoint], **contrast.model_dump()}
            differences = by_task.mean(axis=1)
            means.append(names | {"analysis": MEAN} | _student(differences, margin))
            rows.append(means[-1])
            if not first:
                continue
            collapsed = collapsed_seeds[contrast.method] | collapsed_seeds[contrast.baseline]
            robust = {f"{task} alone": _student(seeds, margin) for task, seeds in by_task.items()}
            robust[f"{TRIMMED:.0%} trimmed mean".replace("%", " %")] = _trimmed(differences)
            robust["without collapsed runs"] = _student(differences[~collapsed], margin)
            if endpoint == "pass@1":
                robust["with the uncertainty of the tuning"] = _with_tuning(
                    differences, shifts[contrast.method] - shifts[contrast.baseline], protocol
                )
            for analysis, row in robust.items():
                reading = outcome(row["difference_low"], row["difference_high"], margin)
                rows.append(names | {"analysis": analysis} | row | {"p_holm": np.nan, "reading": reading})
        for row, p_value, equivalence in zip(
            means,
            holm([mean["p"] for mean in means]),
            holm([mean["p_equivalence"] for mean in means]),
            strict=True,
        ):
            row["p_holm"] = float(p_value)
            if first and row is means[0]:
                row["reading"] = outcome(row["difference_low"], row["difference_high"], margin)
            elif p_value < 1 - LEVEL:
                row["reading"] = "above" if row["difference"] > 0 else "below"
            else:
                row["reading"] = "within" if equivalence < (1 - LEVEL) / 2 else "undecided"
    frame = pd.DataFrame(rows)[[*_COLUMNS]]
    frame.attrs["styles"] = _STYLES | {
        "p_equivalence": Style(f"p (within {100 * margin:g} points)", probability)
    }
    frame.attrs["notes"] = _notes(frame, protocol, tuning)
    return frame


def outcome(low: float, high: float, margin: float) -> str:
    """Classifies the interval of a difference: above or below 0, within the margin, or undecided."""
    if low > 0 or high < 0:
        return "above" if low > 0 else "below"
    return "within" if -margin <= low and high <= margin else "undecided"


def _student(differences: pd.Series, margin: float) -> dict[str, Any]:
    """Student's interval and tests of paired differences [S]."""
    if len(differences) < 2:
        return {"seeds": len(differences)} | dict.fromkeys(_NUMBERS, np.nan)
    return {
        "seeds": len(differences),
        **seed_interval(differences.to_numpy()).columns("difference"),
        "p": paired_p_value(differences),
        "p_equivalence": equivalence_p_value(differences, margin),
    }


def _trimmed(differences: pd.Series) -> dict[str, Any]:
    mean, p_value = trimmed_mean(differences.to_numpy(), TRIMMED)
    return {"seeds": mean.seeds} | mean.columns("difference") | {"p": p_value, "p_equivalence": np.nan}


def _with_tuning(differences: pd.Series, shift: Array, protocol: Protocol) -> dict[str, Any]:
    """Returns the mean over seeds with an interval that includes the uncertainty of the tuning's choice."""
    values = differences.to_numpy()
    random = np.random.default_rng(derive_seed(purpose="fresh seeds", protocol=protocol.name))
    noise = stats.sem(values) * random.standard_t(len(values) - 1, size=len(shift))
    draws = values.mean() + noise + shift
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    numbers = (float(draws.mean()), float(low), float(high), np.nan, np.nan)
    return {"seeds": len(values)} | dict(zip(_NUMBERS, numbers, strict=True))


def _chosen_again(tuning: Tuning, protocol: Protocol) -> dict[tuple[str, str], Array]:
    """Index of the trial chosen in each of `RESAMPLES` draws of the tuning seeds, by task and rule."""
    chosen = {}
    for task in protocol.experiment["tasks"]:
        random = np.random.default_rng(derive_seed(purpose="tuning seeds", protocol=protocol.name, task=task))
        count = len(tuning[task, protocol.compared[0]])
        drawn = random.integers(count, size=(RESAMPLES, count))  # the same for all rules
        for name in protocol.compared:
            values = tuning[task, name].to_numpy()
            chosen[task, name] = values[drawn].mean(axis=1).argmax(axis=1)
    return chosen


def _shifts(tuning: Tuning, protocol: Protocol) -> dict[str, Array]:
    """Returns the change in a rule's expected success by draw of the tuning seeds, mean over the tasks."""
    changes: dict[str, list[Array]] = {name: [] for name in protocol.compared}
    for key, numbers in _chosen_again(tuning, protocol).items():
        means = tuning[key].to_numpy().mean(axis=0)
        changes[key[1]].append(means[numbers] - means.max())  # the highest mean is that of the chosen trial
    return {name: np.mean(shifts, axis=0) for name, shifts in changes.items()}


def _collapsed_seeds(final: Sequence[Results], protocol: Protocol) -> dict[str, pd.Series]:
    """By rule, which of the protocol's seeds collapsed in any setting."""
    seeds = sorted(protocol.seeds)
    collapsed_seeds = {name: pd.Series(False, index=seeds) for name in protocol.compared}
    for results in final:
        for cell in cells(results.items):
            if (name := cell.trust_region) in collapsed_seeds:
                collapsed_seeds[name] |= collapsed_runs(results.items, cell).reindex(seeds, fill_value=False)
    return collapsed_seeds


def sentence(table: pd.DataFrame, protocol: Protocol) -> str:
    """Returns the protocol's sentence for the outcome of its first contrast."""
    comparison, row = protocol.comparison, table.iloc[0]
    low, high = row["difference_low"], row["difference_high"]
    parts = [getattr(comparison.sentences, str(row["reading"]))]
    if row["reading"] in ("above", "below") and -comparison.margin <= low and high <= comparison.margin:
        parts.append(comparison.sentences.small)
    return " ".join(parts).format(
        method=row["method"],
        baseline=row["baseline"],
        difference=f"{points(row['difference'])} {bracketed(row, 'difference')}",
        seeds=row["seeds"],
        tasks=listed([*protocol.experiment["tasks"]]),
        margin=f"{100 * comparison.margin:g}",
    )


_NUMBERS = ("difference", "difference_low", "difference_high", "p", "p_equivalence")
_COLUMNS = (
    *("endpoint", "method", "baseline", "analysis", "seeds"),
    *("difference", "difference_low", "difference_high", "p", "p_holm", "p_equivalence", "reading"),
)
_STYLES = {
    "endpoint": Style("Endpoint"),
    "method": Style("Rule"),
    "baseline": Style("Minus"),
    "analysis": Style("Analysis"),
    "difference": Style("Δ (points)", points),
    "reading": Style("Outcome"),
}


def _notes(table: pd.DataFrame, protocol: Protocol, tuning: Tuning) -> list[str]:
    margin = 100 * protocol.comparison.margin
    first = table.iloc[0]
    same = (table["endpoint"] == first["endpoint"]) & (table["method"] == first["method"])
    analyses = table[same & (table["baseline"] == first["baseline"])]
    other = analyses[(analyses["reading"] != first["reading"]) & analyses["difference"].notna()]
    deviating = [f"{row['analysis']} ({row['reading']})" for _, row in other.iterrows()]
    robust = f"otherwise in {listed(deviating)}" if deviating else "the same in every analysis"
    again = []
    for (task, name), numbers in _chosen_again(tuning, protocol).items():
        best = int(tuning[task, name].to_numpy().mean(axis=0).argmax())
        again.append(f"{name} on {task} in {percent(float((numbers != best).mean()))} %")
    return [
        sentence(table, protocol),
        f"How robust this outcome is: {robust}.",
        f"The first row is read by its own interval, against 0 and a margin of {margin:g} points; rows below "
        "it, which show how robust it is, likewise. The last p is the larger of two one-sided tests: below "
        "0.025 where the interval lies within the margin. All other means are read by p-values of both kinds "
        "that Holm corrects over the contrasts of their endpoint.",
        f"With the uncertainty of the tuning: {RESAMPLES:,} draws of the tuning seeds with replacement, and "
        f"a choice for each. Another trial is chosen for {listed(again)} of the draws.",
    ]
