"""Batched decoding with a random stream for each response.

The next token is drawn by inverting the cumulative distribution at a uniform number of the response's
own, so a response depends on its stream and its prompt and not on what else is in the batch (up to the
rounding of matrix products, which changes with the batch's shape).
"""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache

# Finished responses are dropped from the batch when they are this share of it; dropping copies the cache.
_DROP_SHARE = 0.25


def uniform_stream(seed: int, length: int) -> NDArray[np.float64]:
    """The uniform numbers of one response, [length]; a longer stream starts with the shorter one."""
    return np.random.Generator(np.random.Philox(key=seed)).random(length)


def draw_tokens(logits: Tensor, uniforms: Tensor, temperature: float) -> Tensor:
    """Draws one token for each row by inverse transform sampling.

    Args:
        logits: [B, V].
        uniforms: [B], in [0, 1).
        temperature: divides the logits; 0 takes the most likely token.

    Returns:
        Token ids, [B]. A token of probability 0 is never drawn.
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
    """Generates one response per row.

    Args:
        model: a causal language model of transformers.
        prompts: token ids of P prompts, none empty; each is read once, however many responses it gets.
        owners: for each of B rows, the index of its prompt.
        uniforms: [B, T] random numbers; T bounds the responses' length.
        temperature: see `draw_tokens`.
        stop_ids: a response ends with the first of these, which stays in it.

    Returns:
        Token ids of each response.
    """
    device = model.device
    width = max(map(len, prompts))
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    rows_of = torch.tensor(owners, device=device)
    mask = mask.to(device)
    cache = DynamicCache(config=model.config)
    logits = _forward(model, ids.to(device), mask, cache, (mask.cumsum(-1) - 1).clamp(min=0))[rows_of]
    cache.batch_select_indices(rows_of)
    mask = mask[rows_of]

    noise = torch.from_numpy(uniforms).to(device)
    stops = torch.tensor(sorted(stop_ids), dtype=torch.long, device=device)
    responses: list[list[int]] = [[] for _ in owners]
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
            cache.batch_select_indices(kept)
            active, mask, tokens, alive = active[kept], mask[kept], tokens[kept], alive[kept]
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
        logits = _forward(model, tokens[:, None], mask, cache, mask.sum(-1, keepdim=True) - 1)
    return responses


def _forward(model: Any, ids: Tensor, mask: Tensor, cache: DynamicCache, positions: Tensor) -> Tensor:
    """Logits [B, V] of the last position."""
    output = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    logits: Tensor = output.logits[:, -1]
    return logits
