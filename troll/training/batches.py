"""Operations on rollout batches: masks, selecting, splitting, trimming and joining rows, length penalty."""

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from troll.algorithms.distributions import BATCH_PADDING

OLD = "old_"
"""Prefix of the old policy's tensors in a rollout batch: see `SparseLogProbs.to_batch`."""

# Padding values; 0 for all other tensors.
_FILL: Mapping[str, float] = {OLD + name: value for name, value in BATCH_PADDING.items()} | {"tool_mask": 1}
_COST = 24576  # a response of L tokens costs as much as 24,576 L + L², for a model of 7B parameters (verl)
_LEFT = ("prompt_ids", "prompt_mask")
_NO_TOKENS = ("group_rewards",)  # [B, G]
RESPONSE_WEIGHTS = "response_weights"


def loss_mask(batch: Mapping[str, Any]) -> Tensor:
    """Loss mask [B, T]: 1 at tokens that the policy generated, 0 at tool output and padding."""
    mask: Tensor = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask


def mixed_groups(rewards: Tensor, size: int) -> Tensor:
    """Tells which groups of `size` have unequal rewards, [P] bool, from rewards [P * G] (DAPO)."""
    grouped = rewards.view(-1, size)
    return grouped.amax(1) > grouped.amin(1)


def overlong_penalty(lengths: Tensor, limit: int, buffer: int, factor: float = 1.0) -> Tensor:
    """DAPO's overlong penalty, [B]: 0 up to limit - buffer tokens, then linear down to -factor at the limit.

    Source: DAPO, arXiv 2503.14476, eq. 13 (L_max = limit 20480, L_c = buffer 4096, factor 1).
    """
    return -factor * ((lengths - (limit - buffer)) / buffer).clamp(0, 1)


def take_rows(batch: Mapping[str, Any], rows: Tensor) -> dict[str, Any]:
    """Select rows [B] (bool or indices) of every tensor with a batch dimension."""
    return {key: value[rows.to(value.device)] if _has_rows(value) else value for key, value in batch.items()}


def step_counts(batches: Sequence[Mapping[str, Any]], accelerator: Accelerator) -> list[dict[str, Any]]:
    """Add the counts of the whole optimiser step, over all processes, to this process's micro-batches.

    The counts are ``step_tokens``, ``step_sequences`` (non-empty responses) and ``step_responses``.
    """
    masks = [loss_mask(batch) for batch in batches]
    counts = torch.stack(
        [
            torch.stack([mask.sum(), (mask.sum(1) > 0).sum(), mask.new_tensor(mask.shape[0]).sum()])
            for mask in masks
        ]
    ).sum(0)
    totals = accelerator.reduce(counts.double(), reduction="sum").unbind()
    names = ("step_tokens", "step_sequences", "step_responses")
    return [{**batch, **dict(zip(names, totals, strict=True))} for batch in batches]


def with_response_weights(
    batches: Sequence[Mapping[str, Any]], budget: int | None, accelerator: Accelerator
) -> list[dict[str, Any]]:
    """Add the weights [B] of the aggregation ``released`` to this process's micro-batches of a step.

    The released code cuts the responses of a process into micro-batches of at most ``budget`` prompt and
    response tokens on average, as few as possible and equally many on all processes, and balances their cost.
    A micro-batch counts with its token mean times its share of the process's responses. Without a budget,
    its micro-batches are those given.

    Source: verl/trainer/ppo/core_algos.py, workers/actor/dp_actor.py and utils/seqlen_balancing.py there.
    """
    tokens = torch.cat([loss_mask(batch).sum(1) for batch in batches]).double()
    sizes = [len(batch["completion_mask"]) for batch in batches]
    if budget is None:
        groups = list(torch.split(torch.arange(len(tokens)), sizes))
    else:
        lengths = torch.cat(
            [batch["prompt_mask"].sum(1) + batch["completion_mask"].sum(1) for batch in batches]
        )
        least = lengths.sum().div(budget).ceil().clamp(1, len(lengths)).long()
        count = int(accelerator.gather(least.reshape(1)).max())
        groups = balanced((_COST * lengths + lengths.square()).tolist(), count)
    weights = torch.zeros_like(tokens)
    for group in groups:
        rows = group.to(tokens.device)
        share = len(group) / len(tokens) / accelerator.num_processes
        weights[rows] = share / tokens[rows].sum().clamp(min=1)
    parts = torch.split(weights, sizes)
    return [{**batch, RESPONSE_WEIGHTS: part} for batch, part in zip(batches, parts, strict=True)]


def balanced(costs: Sequence[float], count: int) -> list[Tensor]:
    """Cut rows into ``count`` groups whose summed costs are about equal; returns the rows of each group.

    Largest differencing method (Karmarkar and Karp 1982) for several groups: the two partial solutions that
    are farthest from equal are joined, the largest group of one with the smallest of the other.
    """
    heap: list[tuple[float, int, list[tuple[float, list[int]]]]] = []
    for row, cost in enumerate(costs):
        sums: list[tuple[float, list[int]]] = [(cost, [row])]
        heap.append((-cost if count > 1 else 0.0, row, sums + [(0.0, []) for _ in range(count - 1)]))
    heapq.heapify(heap)
    while len(heap) > 1:
        _, order, first = heapq.heappop(heap)
        _, _, second = heapq.heappop(heap)
        joined = [
            (high + low, [*rows, *others])
            for (high, rows), (low, others) in zip(first, reversed(second), strict=True)
        ]
        joined.sort(key=lambda group: group[0], reverse=True)
        heapq.heappush(heap, (joined[-1][0] - joined[0][0], order, joined))
    return [torch.tensor(sorted(rows)) for _, rows in heap[0][2] if rows]


def parts_within(inputs: Mapping[str, Any], budget: int, accelerator: Accelerator) -> list[dict[str, Any]]:
    """Split a micro-batch into parts of at most ``budget`` padded tokens, equally many in each process."""
    lengths = inputs["prompt_mask"].sum(1) + inputs["completion_mask"].sum(1)
    groups = cut_by_tokens(lengths, budget)
    count = int(accelerator.gather(lengths.new_tensor([len(groups)])).max())
    return [trim(take_rows(inputs, rows)) for rows in split_to(groups, count)]


def widest(columns: int, accelerator: Accelerator) -> int:
    """The most columns of any process, which pads its rows by itself; for equally many passes in each."""
    return int(accelerator.gather(torch.tensor([columns], device=accelerator.device)).max())


def cut_by_tokens(lengths: Tensor, budget: int) -> list[Tensor]:
    """Group rows by length, longest first, so that each group is within the budget when padded.

    ``lengths`` [B] count prompt and response tokens; a row longer than the budget forms a separate group.
    Returns the row indices of each group.
    """
    groups: list[list[int]] = []
    longest = 0
    for row in lengths.argsort(descending=True, stable=True).tolist():
        if groups and (len(groups[-1]) + 1) * longest <= budget:
            groups[-1].append(row)
        else:
            groups.append([row])
            longest = int(lengths[row])
    return [torch.tensor(group, device=lengths.device) for group in groups]


def split_to(groups: list[Tensor], count: int) -> list[Tensor]:
    """Halve the largest groups until there are ``count``: sharded processes must run equally many passes."""
    groups = list(groups)
    while len(groups) < count:
        largest = max(range(len(groups)), key=lambda index: len(groups[index]))
        groups[largest : largest + 1] = groups[largest].tensor_split(2)
    return groups


def trim(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the columns of a rollout batch that are padding in every row."""
    prompt, length = batch["prompt_mask"], batch["completion_mask"].shape[1]
    start = prompt.shape[1] - max(1, int(prompt.sum(1).max()))
    stop = max(1, int(batch["completion_mask"].sum(1).max()))
    trimmed = {}
    for key, value in batch.items():
        if key in _LEFT:
            trimmed[key] = value[:, start:]
        elif key not in _NO_TOKENS and _has_tokens(value, length):
            trimmed[key] = value[:, :stop]
        else:
            trimmed[key] = value
    return trimmed


def join_rows(batches: Sequence[Mapping[str, Any]], pad_token_id: int) -> dict[str, Any]:
    """Concatenate rollout batches, padding prompts on the left and responses on the right.

    Tensors are [B, ...] with lengths on the second axis; scalar tensors are summed.
    """
    joined: dict[str, Any] = {}
    for key, first in batches[0].items():
        parts = [batch[key] for batch in batches]
        if not _has_rows(first):
            joined[key] = sum(parts) if isinstance(first, Tensor) else first
        elif first.dim() == 1:
            joined[key] = torch.cat(parts)
        else:
            fill = pad_token_id if key in ("prompt_ids", "completion_ids") else _FILL.get(key, 0)
            longest = max(part.shape[1] for part in parts)
            joined[key] = torch.cat([_pad(part, longest, fill, left=key in _LEFT) for part in parts])
    return joined


def _has_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


def _has_tokens(value: Any, length: int) -> bool:
    return isinstance(value, Tensor) and value.dim() > 1 and value.shape[1] == length


def _pad(value: Tensor, length: int, fill: float, *, left: bool) -> Tensor:
    missing = length - value.shape[1]
    if not missing:
        return value
    padding = value.new_full((value.shape[0], missing, *value.shape[2:]), fill)
    return torch.cat([padding, value] if left else [value, padding], dim=1)
