"""What training took, by method: time of a rollout batch and memory, against GRPO with clip."""

import pandas as pd

from troll.analysis.data.summaries import BASELINE, Cell, per_run, require_one, spreads, trained_cells
from troll.analysis.render.formats import Style

REFERENCE = "grpo"
"""The estimator without a critic that others are compared with."""
_RATIOS = {"batch_cpu_s": "cpu_ratio", "peak_gib": "memory_ratio"}


def training_cost_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Time and memory of whole training runs.

    Returns:
        One row per method and setting: ``batch_s`` and ``batch_cpu_s`` (wall-clock and processor seconds per
        rollout batch with its updates; mean and ``_sd`` over seeds), ``cpu_ratio`` (processor time, times the
        reference), ``peak_gib`` (largest process or, on a GPU, memory of tensors) and ``memory_ratio``.
    """
    require_one(runs)
    summary = per_run(runs)
    rows = []
    for cell in trained_cells(runs[runs["source"] == "train"]):
        lines = cell.rows(summary)
        row = cell.coordinates | {"seeds": len(lines)} | spreads(lines, "batch_s", *_RATIOS)
        other = Cell(cell.model, cell.task, cell.condition, REFERENCE, BASELINE)
        beside = spreads(other.rows(summary), *_RATIOS)
        rows.append(row | {ratio: row[name] / beside[name] for name, ratio in _RATIOS.items()})
    frame = pd.DataFrame(rows)
    frame.attrs["styles"] = {
        "batch_s": Style("Seconds per batch"),
        "batch_cpu_s": Style("Processor seconds per batch"),
        "cpu_ratio": Style(f"Times {BASELINE} with {REFERENCE}"),
        "peak_gib": Style("Peak memory (GiB)"),
        "memory_ratio": Style(f"Memory, times {BASELINE} with {REFERENCE}"),
    }
    frame.attrs["notes"] = [
        "A batch: sampling, rewards, old policy and values, and all optimiser steps on it; mean ± standard "
        "deviation over seeds. Wall-clock time depends on what else the machine did, processor time hardly. "
        "Both depend on the length of the answers that a method learns to give. Memory without a GPU is the "
        "whole process, of which the libraries are most on the testbed; the cost of a step is measured apart."
    ]
    return frame
