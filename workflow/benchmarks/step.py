"""Cost of a whole optimiser step (forward and backward pass, AdamW) of clip, TROLL, and clip with a critic.

`update` measures only the output layer and the loss; here the whole model counts, so that ratios are those of
training.
"""

from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import torch

from cost_tables import annotate_steps, summarise_steps
from harness import check, check_projected, in_turns
from step_worker import METHODS, SHAPES, Work
from troll.analysis.render.formats import write_table
from troll.common.errors import UserError


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

    Every measurement runs in a separate process, and the methods take turns.

    Args:
        out: a directory.
        shape: one of `SHAPES`; weights are random.
        responses: B, number of responses, all of full length.
        prompt: tokens of each prompt.
        response: T, tokens of each response.
        keep: K, tokens kept of the old policy's distribution.
        steps: steps per measurement, after two warm-up steps.
        repeats: measurements of each method.
        device: cuda or cpu.
        threads: CPU threads; by default those of the environment.

    Returns:
        One row per method: medians and range of seconds, ratios to clip, peak memory of weights, optimiser
        states, gradients and activations together.

    Raises:
        UserError: unknown shape or device, a measurement failed (for example out of memory), or TROLL
            projected less than a tenth of its tokens.
    """
    if shape not in SHAPES:
        raise UserError(f"cost: unknown shape {shape!r}; valid: {', '.join(SHAPES)}")
    sizes = {"responses": responses, "prompt": prompt, "response": response, "keep": keep, "steps": steps}
    check(device, repeats=repeats, **sizes)
    works = {method: Work(method, shape, device=device, **sizes) for method in METHODS}
    measurements: list[dict[str, Any]] = []
    for method, _, measured in in_turns("step_worker", works, repeats, threads):
        if method == "troll":
            check_projected(f"a step of {shape} with {method}", min(measured["projected_share"]))
        row = {"method": method, "peak_bytes": measured.pop("peak_bytes")}
        measurements.append(row | {name: median(values) for name, values in measured.items()})
    table = summarise_steps(pd.DataFrame(measurements))
    where = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {threads or 'default'} threads"
    conditions = (
        f"One optimiser step (forward, backward, AdamW) of a random {shape} model on {responses} responses "
        f"of {response} tokens after {prompt} of prompt, K = {keep}, {where}; median and range of "
        f"{repeats} processes, each the median of {steps} steps. Scoring a rollout happens once for every "
        "batch of rollouts: the old policy's log-probs, for TROLL its sparse distribution, for a critic its "
        "values. For TROLL one token in ten is then given another old distribution, outside whose ball the "
        "policy lies. Memory is the peak of weights, optimiser states, gradients and activations."
    )
    write_table(annotate_steps(table, conditions), out / "cost_step")
    return table
