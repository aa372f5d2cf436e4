"""Tables and verdicts of the costs that `update.py` and `step.py` measure."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

QUIET = 0.1
"""Maximum relative difference between repeats; above it, times were disturbed by other programs."""
TIME_GOAL, MEMORY_GOAL, SOLVER_GOAL = 1.02, 1.01, 0.01
"""Upper limits of TROLL relative to clip with the same head: time, peak memory, and share of the solver."""

BASELINE, _CLIP, _TROLL = "clip, full logits", "clip, our head", "TROLL, our head"
_OLD = "old policy"
_HEADINGS = {
    "width": "D",
    "pass": "Pass",
    "variant": "Variant",
    "seconds": "Seconds [range]",
    "time_ratio": "Time",
    "processor_seconds": "Processor seconds",
    "peak_mib": "Peak memory (MiB)",
    "memory_ratio": "Memory",
    "solver_percent": "Solver (% of update)",
}
STEP_GOAL = 1.02
"""Upper limit of TROLL's time relative to clip's for a whole step."""
_METHODS = ("clip", "troll", "clip, critic")
_STEP_HEADINGS = {
    "method": "Method",
    "old_seconds": "Scoring a rollout (s)",
    "seconds": "Step (s) [range]",
    "time_ratio": "Step, times clip",
    "processor_seconds": "Step, processor seconds",
    "projected_percent": "Projected (% of tokens)",
    "peak_mib": "Peak memory (MiB)",
    "memory_ratio": "Memory, times clip",
}


def cost_table(report: Mapping[str, Any]) -> pd.DataFrame:
    """Makes the cost table from the individual measurements in ``cost.json``."""
    settings, measurements = report["settings"], pd.DataFrame(report["measurements"])
    table = summarise(measurements)
    table.attrs["headings"] = _HEADINGS
    table.attrs["notes"] = [
        f"One update's forward and backward pass of the output layer and the loss: "
        f"N = {settings['tokens']:,} tokens, V = {settings['vocab']:,}, K = {settings['keep']}, "
        f"{settings['dtype']} on {report['environment']['hardware']}; median and range of "
        f"{measurements['repeat'].nunique()}. Time and memory as multiples of clip with full logits at the "
        f"same D. Projected tokens: {100 * max(report['projected_share'].values()):.0f} %.",
        *verdicts(table),
    ]
    return table


def summarise(measurements: pd.DataFrame) -> pd.DataFrame:
    """Returns a row per width and variant, in order of measurement, with ratios to clip on full logits.

    Measurements have width, variant, seconds, processor_seconds, peak_bytes and optionally solver_seconds.
    """
    rows: list[dict[str, Any]] = []
    for width, group in measurements.groupby("width", sort=False):
        by_variant = dict(iter(group.groupby("variant")))
        base = by_variant[BASELINE]
        for name in group["variant"].unique():
            repeats = by_variant[name]
            kind, _, old_pass = name.partition(", ")
            update = kind != _OLD
            solver = math.nan
            if "solver_seconds" in repeats:
                solver = 100 * float(repeats["solver_seconds"].min() / repeats["seconds"].min())
            rows.append(
                {
                    "width": str(width),
                    "pass": "update" if update else _OLD,
                    "variant": name if update else old_pass,
                    **_costs(repeats, base),
                    "solver_percent": solver,
                }
            )
    return pd.DataFrame(rows)


def verdicts(table: pd.DataFrame) -> Iterator[str]:
    """Yields a sentence per width that compares TROLL with clip on the same head, with the goals met."""
    for width, group in table.groupby("width", sort=False):
        rows: dict[str, dict[str, float]] = group.set_index("variant").to_dict("index")  # type: ignore[assignment]
        if _CLIP not in rows or _TROLL not in rows:
            continue
        ours, clip = rows[_TROLL], rows[_CLIP]
        time = ours["seconds_low"] / clip["seconds_low"]
        processor = ours["processor_seconds"] / clip["processor_seconds"]
        memory, solver = ours["peak_mib"] / clip["peak_mib"], ours["solver_percent"] / 100
        goals = {"time": (time, TIME_GOAL), "memory": (memory, MEMORY_GOAL), "solver": (solver, SOLVER_GOAL)}
        disturbed = _spread(ours, clip)
        if disturbed > QUIET:
            del goals["time"]
        missed = [name for name, (value, goal) in goals.items() if value > goal]
        yield (
            f"D = {width}: TROLL takes {time:.3f} x the time ({processor:.3f} x the processor time) "
            f"and {memory:.3f} x the peak memory of clip with the same head (goals: {TIME_GOAL} and "
            f"{MEMORY_GOAL}); the solver takes {100 * solver:.2f} % (goal: {100 * SOLVER_GOAL:.0f} %). "
            + (f"Missed: {', '.join(missed)}." if missed else f"Met: {', '.join(goals)}.")
            + ("" if "time" in goals else f" Time is not judged: repeats differ by {100 * disturbed:.0f} %.")
        )


def annotate_steps(table: pd.DataFrame, conditions: str) -> pd.DataFrame:
    """Adds headings, conditions and verdicts to a table of `summarise_steps`."""
    table.attrs |= {"headings": _STEP_HEADINGS, "notes": [conditions, *_step_verdicts(table)]}
    return table


def summarise_steps(measurements: pd.DataFrame) -> pd.DataFrame:
    """Returns a row per method, in order of first measurement, with ratios to clip.

    Measurements have method, old_seconds, seconds, processor_seconds, projected_share and peak_bytes of every
    process.
    """
    by_method = dict(iter(measurements.groupby("method")))
    clip = by_method[_METHODS[0]]
    rows = []
    for method in measurements["method"].unique():
        group = by_method[method]
        rows.append(
            {
                "method": method,
                "old_seconds": group["old_seconds"].median(),
                **_costs(group, clip),
                "projected_percent": 100 * group["projected_share"].median(),
            }
        )
    return pd.DataFrame(rows)


def _step_verdicts(table: pd.DataFrame) -> Iterator[str]:
    rows: dict[str, dict[str, float]] = table.set_index("method").to_dict("index")  # type: ignore[assignment]
    clip, troll, critic = (rows[method] for method in _METHODS)
    disturbed = _spread(clip, troll)
    ratio = troll["time_ratio"]
    judged = "met" if ratio <= STEP_GOAL else "missed"
    if disturbed > QUIET:
        judged = f"not judged, repeats differ by {100 * disturbed:.0f} %"
    if "projected_percent" in table:
        yield f"TROLL's step takes {ratio:.3f} x clip's time (goal {STEP_GOAL}: {judged})."
    else:
        yield (
            f"TROLL's step takes {ratio:.3f} x clip's time with no token projected, as the old policy's "
            "weights were the new one's; so this says nothing of what projecting costs, and is not judged."
        )
    yield (
        f"A critic beside the policy: {critic['time_ratio']:.2f} x the time of clip's step and "
        f"{critic['memory_ratio']:.2f} x its memory."
    )


def _costs(repeats: pd.DataFrame, base: pd.DataFrame) -> dict[str, float]:
    """Returns the costs of one row: median and range of seconds, peak memory, and ratios to the base.

    Ratios of time use the fastest repeats, which other programs disturbed least; memory is the largest peak.
    """
    return {
        "seconds": repeats["seconds"].median(),
        "seconds_low": repeats["seconds"].min(),
        "seconds_high": repeats["seconds"].max(),
        "time_ratio": repeats["seconds"].min() / base["seconds"].min(),
        "processor_seconds": repeats["processor_seconds"].min(),
        "peak_mib": repeats["peak_bytes"].max() / 2**20,
        "memory_ratio": repeats["peak_bytes"].max() / base["peak_bytes"].max(),
    }


def _spread(*rows: Mapping[str, float]) -> float:
    """Returns the largest relative difference between repeats of a row; 0.1 is ten per cent."""
    return max(row["seconds_high"] / row["seconds_low"] for row in rows) - 1
