"""Measures on a graded base model whether a task can discriminate between rules.

If pass@8 is near 1, every rule solves the task. If right answers use only a few dozen tokens and every
position has one good continuation, K tokens hold the whole distribution, and settings of sparsity cannot
matter.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from troll.analysis.render.formats import Style, percent, whole, write_table
from troll.common.errors import UserError
from troll.common.files import read_json, read_jsonl
from troll.common.models import check_checkpoint, load_model
from troll.evaluation.pass_at_k import mean_pass_at_k
from troll.tasks.registry import get_task
from troll.tasks.types import Problem

TAILS = ((16, 1e-2), (64, 1e-3))
"""Pairs of K and dropped mass for `tail_shares`."""
_QUANTILES = (0.05, 0.5, 0.95)
_BATCH = 16
_STYLES: Mapping[str, Style] = {
    "base_seed": Style("Base seed", whole),
    "parameters": Style("Parameters", whole),
    "without_embedding": Style("without embedding", whole),
    "problems": Style("Problems", whole),
    "right_tokens": Style("Different tokens in right answers", whole),
    "length_5": Style("Length, 5 %", whole),
    "length_50": Style("50 %", whole),
    "length_95": Style("95 %", whole),
    **{
        f"tail_{keep}": Style(f"K = {keep} drops > {100 * mass:g} % (% of tokens)", percent)
        for keep, mass in TAILS
    },
    "tail_tokens": Style("Tokens looked at", whole),
}


def tail_shares(log_probs: Tensor) -> list[float]:
    """Returns the share of positions where the K most likely tokens leave out more mass, for each of `TAILS`.

    Args:
        log_probs: [N, V], normalised.
    """
    largest = max(keep for keep, _ in TAILS)
    top = log_probs.double().exp().topk(min(largest, log_probs.shape[1]), dim=-1).values.cumsum(-1)
    return [(1 - top[:, min(keep, top.shape[1]) - 1] > mass).double().mean().item() for keep, mass in TAILS]


@dataclass(frozen=True)
class _Graded:
    """Samples of a base model with their verdicts, and the problems."""

    problems: Mapping[str, Problem]
    samples: Sequence[Mapping[str, Any]]
    passed: Sequence[bool]

    @property
    def counts(self) -> list[tuple[int, int]]:
        """The numbers of samples and of right samples of each problem."""
        found: dict[str, list[bool]] = {}
        for row, right in zip(self.samples, self.passed, strict=True):
            found.setdefault(row["task_id"], []).append(right)
        return [(len(flags), sum(flags)) for flags in found.values()]


def _read(base: Path, problems: Path, task: str) -> _Graded:
    verdicts = read_json(base / "grades.json").get("problems", {})
    samples = list(read_jsonl(base / "samples.jsonl"))
    waiting = {name: iter(entry["passed"]) for name, entry in verdicts.items()}
    try:
        passed = [bool(next(waiting[row["task_id"]])) for row in samples]
    except (KeyError, StopIteration):
        raise UserError(
            f"{base}: grades.json does not match samples.jsonl; grade the samples again"
        ) from None
    known = {problem.task_id: problem for problem in get_task(task).load(problems)}
    unknown = next((row["task_id"] for row in samples if row["task_id"] not in known), None)
    if unknown is not None:
        raise UserError(f"{problems}: lacks problem {unknown}, for which {base} has samples")
    return _Graded(known, samples, passed)


def difficulty(base: Path, problems: Path, task: str, *, tokens: int = 8192) -> dict[str, Any]:
    """Measures the difficulty of a task for one graded base model.

    Texts are tokenised again, so that tokens may differ from the sampled ones. Distributions are those at
    temperature 1, at the tokens of every problem's first sample.

    Args:
        base: directory with checkpoint/, samples.jsonl and grades.json.
        problems: the problems that were sampled, as JSON lines.
        task: name of the task.
        tokens: maximum number of response tokens whose distributions are read.

    Returns:
        ``parameters`` and ``without_embedding`` (numbers of parameters); ``problems``; ``pass@1`` and, with
        at least eight samples of each problem, ``pass@8``; ``right_tokens`` (distinct tokens in right
        answers); ``length_5``, ``length_50`` and ``length_95`` (percentiles of the answers' lengths in
        tokens, including the end); ``tail_16`` and ``tail_64`` (see `tail_shares`); ``tail_tokens`` (number
        of tokens read for them).

    Raises:
        UserError: a file is missing or does not match the others.
    """
    graded = _read(base, problems, task)
    check_checkpoint(base / "checkpoint")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base / "checkpoint")
    model = load_model(base / "checkpoint", dtype=torch.float32).eval()
    fewest = min(samples for samples, _ in graded.counts)
    right = {
        token
        for row, passed in zip(graded.samples, graded.passed, strict=True)
        if passed
        for token in tokenizer(row["completion"], add_special_tokens=False).input_ids
    }
    lengths = np.quantile([row["tokens"] for row in graded.samples], _QUANTILES)
    found = torch.cat(list(_distributions(model, tokenizer, graded)))[:tokens]
    embedding = model.get_input_embeddings().weight.numel()
    parameters = sum(item.numel() for item in model.parameters())
    return {
        "parameters": parameters,
        "without_embedding": parameters - embedding,
        "problems": len(graded.counts),
        **{f"pass@{k}": mean_pass_at_k(graded.counts, k) for k in (1, 8) if k <= fewest},
        "right_tokens": len(right),
        **{f"length_{100 * q:g}": float(value) for q, value in zip(_QUANTILES, lengths, strict=True)},
        **{f"tail_{keep}": share for (keep, _), share in zip(TAILS, tail_shares(found), strict=True)},
        "tail_tokens": len(found),
    }


@torch.no_grad()
def _distributions(model: Any, tokenizer: Any, graded: _Graded) -> Iterator[Tensor]:
    """Yields log-probs [N, V] at the tokens of the first response to each problem."""
    first = {row["task_id"]: row["completion"] for row in reversed(graded.samples)}
    names = list(first)
    for start in range(0, len(names), _BATCH):
        part = names[start : start + _BATCH]
        prompts = [
            tokenizer(graded.problems[name].prompt, add_special_tokens=False).input_ids for name in part
        ]
        answers = [
            [*tokenizer(first[name], add_special_tokens=False).input_ids, tokenizer.eos_token_id]
            for name in part
        ]
        longest = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
        # Padded on the right, where causal attention ignores it.
        rows = [
            [*p, *a, *[tokenizer.pad_token_id] * (longest - len(p) - len(a))]
            for p, a in zip(prompts, answers, strict=True)
        ]
        logits = model(input_ids=torch.tensor(rows)).logits
        for row, prompt, answer in zip(logits, prompts, answers, strict=True):
            yield row[len(prompt) - 1 : len(prompt) + len(answer) - 1].log_softmax(-1)


def _base_seed(base: Path) -> int | None:
    """Returns the base seed in the manifest; None if this kind of model has only one base model."""
    found = read_json(base / "manifest.json").get("config", {}).get("model", {}).get("base_seed")
    return int(found) if found is not None else None


def run_difficulty(
    bases: Sequence[Path], out: Path, *, data: Path | None = None, tokens: int = 8192
) -> pd.DataFrame:
    """Writes a table with a row per base model, as .csv and .md.

    Args:
        bases: directories ``<experiment>/base/<model>/<task>``, sampled and graded.
        out: path without suffix.
        data: directory with ``<task>/test.jsonl``; by default ``<experiment>/data`` of each base model.
        tokens: see `difficulty`.
    """
    rows = []
    for base in bases:
        model, task = base.resolve().parts[-2:]
        where = data if data is not None else base.resolve().parents[2] / "data"
        found = difficulty(base, where / task / "test.jsonl", task, tokens=tokens)
        rows.append({"model": model, "task": task, "base_seed": _base_seed(base), **found})
    frame = pd.DataFrame(rows)
    frame.attrs["styles"] = _STYLES
    frame.attrs["notes"] = [
        "Lengths are quantiles of all answers, in tokens. The last shares are those of response tokens at "
        "which the K likeliest tokens leave out more than so much of the mass."
    ]
    write_table(frame, out)
    return frame
