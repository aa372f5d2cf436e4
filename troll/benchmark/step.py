"""What a whole optimiser step costs: a model's forward and backward pass and AdamW, clip, TROLL and a critic.

`troll.benchmark.update` measures the output layer and the loss alone; here the model around them takes part,
so that the ratio is what a training run pays.
"""

from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import torch

from troll.analysis.render.formats import write_table
from troll.benchmark.harness import QUIET, check, check_projected, costs, in_turns, spread
from troll.benchmark.step_worker import METHODS, SHAPES, Work
from troll.common.errors import UserError

GOAL = 1.02
"""TROLL's time over clip's for a whole step."""
BASELINE = METHODS[0]
_HEADINGS = {
    "method": "Method",
    "old_seconds": "Scoring a rollout (s)",
    "seconds": "Step (s) [range]",
    "time_ratio": "Step, times clip",
    "processor_seconds": "Step, processor seconds",
    "projected_percent": "Projected (% of tokens)",
    "peak_mib": "Peak memory (MiB)",
    "memory_ratio": "Memory, times clip",
}


def run_step_cost(
    out: Path,
    *,
    shape: str = "qwen3-0.6b",
    responses: int = 8,
    prompt: int = 256,
    response: int = 1024,
    keep: int = 64,
    steps: int = 5,
    repeats: int = 3,
    device: str = "cuda",
    threads: int | None = None,
) -> pd.DataFrame:
    """Measures whole optimiser steps of every method and writes ``cost_step.csv`` and .md.

    Every measurement is a process of its own, and the methods take turns.

    Args:
        out: a folder.
        shape: one of `SHAPES`; weights are random.
        responses: B, all of full length.
        prompt: tokens of each prompt.
        response: T.
        keep: K of the old policy.
        steps: of each measurement, after two that warm up.
        repeats: measurements of each method.
        device: cuda or cpu.
        threads: of a CPU; as the environment has it by default.

    Returns:
        One row per method: medians and range of seconds, ratios to clip, peak memory of weights, optimiser
        states, gradients and activations together.

    Raises:
        UserError: no such shape or device, a measurement failed (out of memory, say), or TROLL projected less
            than a tenth of its tokens.
    """
    if shape not in SHAPES:
        raise UserError(f"cost: no shape {shape!r}; valid: {', '.join(SHAPES)}")
    sizes = {"responses": responses, "prompt": prompt, "response": response, "keep": keep, "steps": steps}
    check(device, repeats=repeats, **sizes)
    works = {method: Work(method, shape, device=device, **sizes) for method in METHODS}
    measurements: list[dict[str, Any]] = []
    for method, _, measured in in_turns("step_worker", works, repeats, threads):
        if method == "troll":
            check_projected(f"a step of {shape} with {method}", min(measured["projected_share"]))
        row = {"method": method, "peak_bytes": measured.pop("peak_bytes")}
        measurements.append(row | {name: median(values) for name, values in measured.items()})
    table = summarise(pd.DataFrame(measurements))
    where = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {threads or 'default'} threads"
    conditions = (
        f"One optimiser step (forward, backward, AdamW) of a random {shape} model on {responses} responses "
        f"of {response} tokens after {prompt} of prompt, K = {keep}, {where}; median and range of "
        f"{repeats} processes, each the median of {steps} steps. Scoring a rollout happens once for every "
        "batch of rollouts: the old policy's log-probs, for TROLL its sparse distribution, for a critic its "
        "values. For TROLL one token in ten is then given another old distribution, outside whose ball the "
        "policy lies. Memory is the peak of weights, optimiser states, gradients and activations."
    )
    write_table(annotate(table, conditions), out / "cost_step")
    return table


def annotate(table: pd.DataFrame, conditions: str) -> pd.DataFrame:
    """Gives the table its headings, and below it the conditions and what follows from its numbers.

    Args:
        table: of `summarise`.
        conditions: under which it was measured.
    """
    table.attrs |= {"headings": _HEADINGS, "notes": [conditions, *_verdict(table)]}
    return table


def summarise(measurements: pd.DataFrame) -> pd.DataFrame:
    """One row per method, with ratios to clip.

    Args:
        measurements: method, old_seconds, seconds, processor_seconds, projected_share and peak_bytes of
            every process.
    """
    by_method = dict(iter(measurements.groupby("method")))
    clip = by_method[BASELINE]
    rows = []
    for method in METHODS:
        group = by_method[method]
        rows.append(
            {
                "method": method,
                "old_seconds": group["old_seconds"].median(),
                **costs(group, clip),
                "projected_percent": 100 * group["projected_share"].median(),
            }
        )
    return pd.DataFrame(rows)


def _verdict(table: pd.DataFrame) -> Iterator[str]:
    rows: dict[str, dict[str, float]] = table.set_index("method").to_dict("index")  # type: ignore[assignment]
    clip, troll, critic = (rows[method] for method in METHODS)
    disturbed = spread(clip, troll)
    ratio = troll["time_ratio"]
    judged = "met" if ratio <= GOAL else "missed"
    if disturbed > QUIET:
        judged = f"not judged, repeats differ by {100 * disturbed:.0f} %"
    if "projected_percent" in table:
        yield f"TROLL's step takes {ratio:.3f} x clip's time (goal {GOAL}: {judged})."
    else:
        yield (
            f"TROLL's step takes {ratio:.3f} x clip's time with no token projected, as the old policy's "
            "weights were the new one's; so this says nothing of what projecting costs, and is not judged."
        )
    yield (
        f"A critic beside the policy: {critic['time_ratio']:.2f} x the time of clip's step and "
        f"{critic['memory_ratio']:.2f} x its memory."
    )
