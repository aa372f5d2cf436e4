"""Cost of an update: time and peak memory of clip and TROLL, with and without full logits."""

import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from cost_tables import BASELINE, cost_table
from harness import check, check_projected, hardware, in_turns, measure
from troll.analysis.render.formats import write_table
from troll.common.errors import UserError
from troll.common.files import write_json
from update_worker import OLD_PASSES, PREPARE, VARIANTS, Work

VOCAB = 151_936
"""Size of Qwen3's vocabulary, the largest family of models in the paper."""


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

    Every measurement runs in a separate process; the variants take turns within each repeat, which spreads
    slow minutes of the machine over all of them. Times are medians over the repeats with their range; memory
    is the largest peak above the inputs (hidden states, weight, old policy), including gradients.

    Args:
        out: a directory for ``cost.csv``, ``cost.md`` and the individual measurements, ``cost.json``.
        tokens: N, tokens of the update.
        widths: hidden widths D; each gives one block of rows.
        vocab: V, size of the vocabulary.
        keep: K, tokens kept of the old policy's distribution.
        repeats: measurements per variant.
        device: "cpu" or "cuda".
        dtype: dtype of hidden states and weight; by default float32 on a CPU and bfloat16 on CUDA.
        threads: CPU threads; by default those of the environment.
        variants: some of `VARIANTS` and `OLD_PASSES`, by default all; clip on full logits is always
            included.
        seed: seed of the inputs.

    Returns:
        The written table: one row per width and variant.

    Raises:
        UserError: unknown variant or device, a measurement failed (for example out of memory), or TROLL would
            project less than a tenth of the tokens.
    """
    known = [*VARIANTS, *OLD_PASSES]
    chosen = [name for name in known if variants is None or name in variants or name == BASELINE]
    for name in variants or ():
        if name not in known:
            raise UserError(f"cost: unknown variant {name!r}; valid: {'; '.join(known)}")
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
            # Written after each width, so that an interruption loses only one of them.
            write_json(out / "cost.json", report)
            table = cost_table(report)
            write_table(table, out / "cost")
    return table
