"""What a whole optimiser step costs: a model's forward and backward pass and AdamW, clip against TROLL.

`troll.analysis.cost` measures the output layer and the loss alone; here the model around them takes part, so
that the ratio is what a training run pays. Both methods run in one process, in turns, on the same
model and data.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from troll.algorithms.aggregation import aggregate
from troll.algorithms.distributions import SparseLogProbs
from troll.algorithms.trust_regions import TokenPolicy, make_trust_region
from troll.analysis.formats import write_table
from troll.errors import UserError
from troll.seeding import derive_seed

SHAPES: dict[str, dict[str, Any]] = {
    # The published configuration of Qwen/Qwen3-0.6B.
    "qwen3-0.6b": {
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
    },
}
GOAL = 1.02
"""TROLL's time over clip's for a whole step."""
_HEADINGS = {
    "method": "Method",
    "old_seconds": "Old policy (s)",
    "seconds": "Step (s) [range]",
    "time_ratio": "Step, times clip",
    "peak_mib": "Peak memory (MiB)",
    "memory_ratio": "Memory, times clip",
}


@dataclass
class _Setup:
    model: Any
    optimiser: torch.optim.Optimizer
    ids: Tensor
    mask: Tensor
    advantages: Tensor
    keep: int

    @property
    def inputs(self) -> dict[str, Tensor]:
        return {"input_ids": self.ids, "attention_mask": torch.ones_like(self.ids), "mask": self.mask}

    def policy(self, keep: int | None = None, support: Tensor | None = None) -> TokenPolicy:
        """The model as a policy; TROLL asks for distributions, clip for log-probs of the sampled tokens."""
        output = self.model(**self.inputs, sparse_lm_head=True, keep=keep, support=support)
        distribution = None
        if output.token_ids is not None:
            parts = (output.token_ids, output.support_log_probs, output.tail_log_prob)
            distribution = SparseLogProbs(*parts)
        return TokenPolicy(output.log_probs, distribution, output.entropy, self.ids[:, -self.mask.shape[1] :])


def _setup(shape: str, responses: int, prompt: int, response: int, keep: int, device: str) -> _Setup:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from troll.training.head import add_sparse_lm_head

    torch.manual_seed(derive_seed(purpose="cost-step") % 2**63)
    config = Qwen3Config(**SHAPES[shape], tie_word_embeddings=True)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = Qwen3ForCausalLM(config).to(device, dtype)
    add_sparse_lm_head(model, temperature=1.0)
    ids = torch.randint(0, SHAPES[shape]["vocab_size"], (responses, prompt + response), device=device)
    mask = torch.ones(responses, response, dtype=torch.long, device=device)
    advantages = torch.randn(responses, 1, device=device).expand(responses, response).contiguous()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0)
    return _Setup(model, optimiser, ids, mask, advantages, keep)


def _step(setup: _Setup, method: str, old: TokenPolicy) -> None:
    support = None if old.distribution is None else old.distribution.token_ids
    new = setup.policy(support=support)
    losses = make_trust_region(method)(new, old, setup.advantages, setup.mask.float())
    loss = aggregate(losses.per_token, setup.mask, "token-mean")
    loss.backward()  # type: ignore[no-untyped-call]
    setup.optimiser.step()
    setup.optimiser.zero_grad(set_to_none=True)


def _timed(device: str, work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Seconds, peak memory in MiB (CUDA only; 0 elsewhere), and what the work gave."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    result = work()
    peak = 0.0
    if device == "cuda":
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() / 2**20
    return time.perf_counter() - begun, peak, result


def run_step_cost(
    out: Path,
    *,
    shape: str = "qwen3-0.6b",
    responses: int = 8,
    prompt: int = 256,
    response: int = 1024,
    keep: int = 64,
    repeats: int = 10,
    device: str = "cuda",
) -> pd.DataFrame:
    """Measures whole optimiser steps of clip and TROLL in turns, and writes ``cost_step.csv``, .md and .tex.

    Args:
        out: a folder.
        shape: one of `SHAPES`; weights are random.
        responses: B, all of full length.
        prompt: tokens of each prompt.
        response: T.
        keep: K of the old policy.
        repeats: steps of each method, after two that warm up.
        device: cuda or cpu.

    Returns:
        One row per method: medians and range of seconds, ratio to clip, peak memory (CUDA only).

    Raises:
        UserError: no such shape or device.
    """
    if shape not in SHAPES:
        raise UserError(f"cost: no shape {shape!r}; valid: {', '.join(SHAPES)}")
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise UserError(f"cost: device {device!r} is not available; cpu always is")
    setup = _setup(shape, responses, prompt, response, keep, device)
    found: list[dict[str, Any]] = []
    for repeat in range(-2, repeats):
        methods = ("clip", "troll") if repeat % 2 == 0 else ("troll", "clip")
        for method in methods:
            kept = setup.keep if method == "troll" else None
            with torch.no_grad():
                old_seconds, _, old = _timed(device, partial(setup.policy, keep=kept))
            seconds, peak, _ = _timed(device, partial(_step, setup, method, old))
            if repeat >= 0:
                row = {"method": method, "old_seconds": old_seconds, "seconds": seconds, "peak": peak}
                found.append(row)
    table = _summary(pd.DataFrame(found))
    parameters = sum(parameter.numel() for parameter in setup.model.parameters())
    ratio = float(table.loc[table["method"] == "troll", "time_ratio"].iloc[0])
    table.attrs["headings"] = _HEADINGS
    table.attrs["notes"] = [
        f"One optimiser step of a random {shape} model ({parameters / 1e6:,.1f} million parameters) on "
        f"{responses} responses of {response} tokens after {prompt} of prompt, K = {keep}, on {device}; "
        f"median and range of {repeats}. TROLL takes {ratio:.3f} x clip's time (goal: {GOAL})."
    ]
    write_table(table, out / "cost_step")
    return table


def _summary(found: pd.DataFrame) -> pd.DataFrame:
    clip = found[found["method"] == "clip"]
    rows = []
    for method, group in found.groupby("method"):
        rows.append(
            {
                "method": method,
                "old_seconds": group["old_seconds"].median(),
                "seconds": group["seconds"].median(),
                "seconds_low": group["seconds"].min(),
                "seconds_high": group["seconds"].max(),
                "time_ratio": group["seconds"].median() / clip["seconds"].median(),
                "peak_mib": group["peak"].max() or float("nan"),
                "memory_ratio": group["peak"].max() / clip["peak"].max()
                if clip["peak"].max()
                else float("nan"),
            }
        )
    return pd.DataFrame(rows)
