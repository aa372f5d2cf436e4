"""Batched decoding with a random stream for each response.

Each token is drawn by inverse transform sampling, with a uniform number from the response's own stream. So a
response depends on its prompt and stream and not on the rest of the batch, up to the rounding of matrix
products, which changes with the batch's shape.
"""

import inspect
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache

# Finished responses leave the batch once they are this share of it, since dropping rows copies the cache.
_DROP_SHARE = 0.25


def uniform_stream(seed: int, length: int) -> NDArray[np.float64]:
    """Returns the uniform numbers of one response, [length]; a longer stream starts with the shorter one."""
    return np.random.Generator(np.random.Philox(key=seed)).random(length)


def draw_tokens(logits: Tensor, uniforms: Tensor, temperature: float) -> Tensor:
    """Draws token ids [B] from logits [B, V] by inverse transform sampling with uniforms [B] in [0, 1).

    Temperature 0 takes the most likely token. A token of probability 0 is never drawn.
    """
    if temperature == 0:
        return logits.argmax(-1)
    cumulative = torch.softmax(logits.double() / temperature, dim=-1).cumsum(-1)
    targets = uniforms[:, None] * cumulative[:, -1:]
    # The first token whose cumulative mass exceeds the target.
    return torch.searchsorted(cumulative, targets, right=True).squeeze(-1).clamp(max=logits.shape[-1] - 1)


@torch.inference_mode()
def decode_batch(
    model: Any,
    prompts: Sequence[Sequence[int]],
    owners: Sequence[int],
    uniforms: NDArray[np.float64],
    *,
    temperature: float,
    stop_ids: Collection[int],
) -> list[list[int]]:
    """Samples B responses as token ids, from transformers models with attention, recurrent states or both.

    ``owners`` [B] gives each response's index into the P prompts, none of them empty; each prompt is read
    once. ``uniforms`` [B, T] are random numbers in [0, 1); T is the longest response. A response ends with
    the first of ``stop_ids``, which it includes.
    """
    responses: list[list[int]] = [[] for _ in owners]
    name, lengths = _cache_name(model), set(map(len, prompts))
    if name is None and len(lengths) > 1:
        # Such models (RWKV, xLSTM) do not support padding either: decode rows of one length at a time.
        for length in lengths:
            rows = [row for row, owner in enumerate(owners) if len(prompts[owner]) == length]
            shown = sorted({owners[row] for row in rows})
            found = decode_batch(
                model,
                [prompts[owner] for owner in shown],
                [shown.index(owners[row]) for row in rows],
                uniforms[rows],
                temperature=temperature,
                stop_ids=stop_ids,
            )
            for row, response in zip(rows, found, strict=True):
                responses[row] = response
        return responses
    device = model.device
    reader = _Rereader(model, prompts) if name is None else _Reader(model, prompts, name)
    rows_of = torch.tensor(owners, device=device)
    logits = reader.logits[rows_of]
    reader.select(rows_of)

    noise = torch.from_numpy(uniforms).to(device)
    stops = torch.tensor(sorted(stop_ids), dtype=torch.long, device=device)
    active = torch.arange(len(owners), device=device)  # the response of each row of the batch
    alive = torch.ones_like(active, dtype=torch.bool)
    for step in range(uniforms.shape[1]):
        tokens = draw_tokens(logits, noise[active, step], temperature)
        for response, token, going in zip(active.tolist(), tokens.tolist(), alive.tolist(), strict=True):
            if going:
                responses[response].append(token)
        alive &= ~torch.isin(tokens, stops)
        left = int(alive.sum())
        if left == 0 or step + 1 == uniforms.shape[1]:
            break
        if left <= (1 - _DROP_SHARE) * len(alive):
            kept = alive.nonzero().squeeze(-1)
            reader.select(kept)
            active, tokens, alive = active[kept], tokens[kept], alive[kept]
        logits = reader.read(tokens)
    return responses


def _cache_name(model: Any) -> str | None:
    """Returns the argument by which a model takes transformers' cache; None if it cannot use that cache."""
    # There is no public way to ask. With this cache, xLSTM and MiniMax raise and RWKV keeps one token only.
    if not model._supports_default_dynamic_cache():
        return None
    names = inspect.signature(model.forward).parameters
    # ``cache`` from transformers 5.24 on, one of the others before.
    return next((name for name in ("cache", "past_key_values", "cache_params") if name in names), None)


class _Reader:
    """A left-padded batch that a model has read, with its cache.

    Attributes:
        logits: [P, V], of the first token after each prompt.
    """

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], name: str) -> None:
        width = max(map(len, prompts))
        ids = torch.zeros(len(prompts), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        self._model, self._name = model, name
        self._mask = mask.to(model.device)
        self._cache = DynamicCache(config=model.config)
        positions = (self._mask.cumsum(-1) - 1).clamp(min=0)
        self.logits = self._forward(ids.to(model.device), positions)

    def select(self, rows: Tensor) -> None:
        """Replaces the batch by the given rows, which may repeat."""
        # Meant for beams, and defined for recurrent layers too, unlike `batch_select_indices`.
        self._cache.reorder_cache(rows)
        self._mask = self._mask[rows]

    def read(self, tokens: Tensor) -> Tensor:
        """Appends a token to each row, [B], and returns the next logits, [B, V]."""
        self._mask = torch.cat([self._mask, torch.ones_like(self._mask[:, :1])], dim=1)
        return self._forward(tokens[:, None], self._mask.sum(-1, keepdim=True) - 1)

    def _forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        output = self._model(
            input_ids=ids,
            attention_mask=self._mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._name: self._cache},
        )
        logits: Tensor = output.logits[:, -1]
        return logits


class _Rereader:
    """Does the same without a cache, for prompts of one length: reads everything again for each token."""

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]]) -> None:
        self._model, self._ids = model, torch.tensor(prompts, device=model.device)
        self.logits = self._forward()

    def select(self, rows: Tensor) -> None:
        self._ids = self._ids[rows]

    def read(self, tokens: Tensor) -> Tensor:
        self._ids = torch.cat([self._ids, tokens[:, None]], dim=1)
        return self._forward()

    def _forward(self) -> Tensor:
        logits: Tensor = self._model(input_ids=self._ids, use_cache=False).logits[:, -1]
        return logits
