"""What an update costs: time and peak memory of clip and TROLL, with full logits and without them."""

import math
import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from troll.analysis.render.formats import write_table
from troll.benchmark.harness import QUIET, check, check_projected, costs, hardware, in_turns, measure, spread
from troll.benchmark.update_variants import VARIANTS
from troll.benchmark.update_worker import OLD_PASSES, PREPARE, Work
from troll.common.errors import UserError
from troll.common.files import write_json

VOCAB = 151_936
"""Of Qwen3, the paper's largest family of models."""
TIME_GOAL, MEMORY_GOAL, SOLVER_GOAL = 1.02, 1.01, 0.01
"""TROLL over clip with the same head: time and peak memory at most, and the solver's share of an update."""

_BASELINE, _CLIP, _TROLL = "clip, full logits", "clip, our head", "TROLL, our head"
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


def run_cost(
    out: Path,
    *,
    tokens: int = 1024,
    widths: Sequence[int] = (1024, 2560),
    vocab: int = VOCAB,
    keep: int = 64,
    repeats: int = 3,
    device: str = "cpu",
    dtype: str | None = None,
    threads: int | None = None,
    variants: Sequence[str] | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Measures forward and backward of one update in every variant and writes the cost table.

    Every measurement is a process of its own; the variants take turns within each repeat, so that a slow
    minute of the machine hits all of them. Times are medians over the repeats with their range; memory is
    the largest peak above the inputs (hidden states, weight, old policy), gradients included.

    Args:
        out: a folder; ``cost.csv``, ``cost.md`` and the single measurements in ``cost.json``.
        tokens: N.
        widths: D, one block of rows each.
        vocab: V.
        keep: K of the old policy.
        repeats: measurements per variant.
        device: "cpu" or "cuda".
        dtype: of hidden states and weight; float32 on a CPU and bfloat16 on CUDA by default.
        threads: of a CPU; as the environment has it by default.
        variants: some of `VARIANTS` and `OLD_PASSES`, all by default; clip on full logits is always among
            them.
        seed: of the inputs.

    Returns:
        One row per width and variant: the written table.

    Raises:
        UserError: no such variant or device, a measurement failed (out of memory, say), or TROLL would
            project less than a tenth of the tokens.
    """
    known = [*VARIANTS, *OLD_PASSES]
    chosen = [name for name in known if variants is None or name in variants or name == _BASELINE]
    for name in variants or ():
        if name not in known:
            raise UserError(f"cost: no variant {name!r}; there are {', '.join(known)}")
    check(device, tokens=tokens, widths=min(widths), vocab=vocab, keep=keep, repeats=repeats)
    dtype = dtype or ("bfloat16" if device == "cuda" else "float32")
    report: dict[str, Any] = {
        "settings": {
            "tokens": tokens,
            "vocab": vocab,
            "keep": keep,
            "device": device,
            "dtype": dtype,
            "seed": seed,
        },
        "environment": {
            "hardware": hardware(device, threads),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "projected_share": {},
        "measurements": [],
    }
    table = pd.DataFrame()
    with tempfile.TemporaryDirectory() as folder:
        for width in widths:
            fixed = (tokens, width, vocab, keep, device, dtype, seed, folder)
            prepared = measure("update_worker", "the old policy", Work(PREPARE, *fixed), threads)
            check_projected(f"an update of D = {width}", prepared["projected_share"])
            report["projected_share"][width] = prepared["projected_share"]
            works = {name: Work(name, *fixed) for name in chosen}
            for name, repeat, measured in in_turns("update_worker", works, repeats, threads):
                report["measurements"].append({"width": width, "variant": name, "repeat": repeat, **measured})
            # Each width as it ends: an interruption costs one of them.
            write_json(out / "cost.json", report)
            table = cost_table(report)
            write_table(table, out / "cost")
    return table


def cost_table(report: Mapping[str, Any]) -> pd.DataFrame:
    """The cost table of the single measurements.

    Args:
        report: the contents of ``cost.json``.
    """
    settings, measurements = report["settings"], pd.DataFrame(report["measurements"])
    order = [name for name in (*VARIANTS, *OLD_PASSES) if name in set(measurements["variant"])]
    table = summarise(measurements, order)
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


def summarise(measurements: pd.DataFrame, order: Sequence[str]) -> pd.DataFrame:
    """One row per width and variant, with ratios to clip on full logits.

    Args:
        measurements: width, variant, seconds, processor_seconds, peak_bytes and perhaps solver_seconds.
        order: the variants, as they shall appear.
    """
    rows: list[dict[str, Any]] = []
    for width, group in measurements.groupby("width", sort=False):
        by_variant = dict(iter(group.groupby("variant")))
        base = by_variant[_BASELINE]
        for name in order:
            own = by_variant[name]
            update = name in VARIANTS
            solver = math.nan
            if "solver_seconds" in own:
                solver = 100 * float(own["solver_seconds"].min() / own["seconds"].min())
            rows.append(
                {
                    "width": str(width),
                    "pass": "update" if update else "old policy",
                    "variant": name if update else name.partition(", ")[2],
                    **costs(own, base),
                    "solver_percent": solver,
                }
            )
    return pd.DataFrame(rows)


def verdicts(table: pd.DataFrame) -> Iterator[str]:
    """One sentence per width on TROLL against clip with the same head, and which goals are missed."""
    for width, group in table.groupby("width", sort=False):
        rows: dict[str, dict[str, float]] = group.set_index("variant").to_dict("index")  # type: ignore[assignment]
        if _CLIP not in rows or _TROLL not in rows:
            continue
        ours, clip = rows[_TROLL], rows[_CLIP]
        time = ours["seconds_low"] / clip["seconds_low"]
        processor = ours["processor_seconds"] / clip["processor_seconds"]
        memory, solver = ours["peak_mib"] / clip["peak_mib"], ours["solver_percent"] / 100
        goals = {"time": (time, TIME_GOAL), "memory": (memory, MEMORY_GOAL), "solver": (solver, SOLVER_GOAL)}
        disturbed = spread(ours, clip)
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
