"""One copy of a prompt for all of its responses: the same policy, with fewer tokens to compute.

The responses of a group repeat their prompt, so most tokens of a rollout batch may be copies. Here the rows
of a pass with the same prompt become one row: the prompt and then its responses, each of which continues the
positions of the prompt, and attends to the prompt and to itself. Log-probs and gradients are those of
separate rows up to rounding. Source: Prefix Grouper, arXiv 2506.05433.
"""

import inspect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor
from transformers import DynamicCache

from troll.common.errors import UserError
from troll.common.models import text_config
from troll.training.batches import cut_by_tokens, split_to, take_rows, trim

FAMILIES = ("llama", "qwen2", "qwen3")
"""Values of ``model_type`` whose tokens only meet in attention, by positions and mask."""
ATTENTION = ("eager", "sdpa")
"""Implementations of attention that take a mask for each pair of tokens."""
GROUP = "group"
"""Key of a rollout batch: the group [B] of each response, until its rows are in order."""

_WHOLE = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)


def check_shared_prompts(
    args: Any, model: Any, accelerator: Accelerator, noise: str, *, experts: bool
) -> None:
    """Rejects settings and models with which ``share_prompts`` would not give the same update.

    Args:
        args: a `troll.training.config.TrustRegionConfig` with ``share_prompts``.
        model: a transformers model or a PEFT model.
        accelerator: of the trainer.
        noise: see `troll.training.dropout.sources_of_noise`.
        experts: whether the loss has the term that balances experts.
    """
    config, rows, size = text_config(model.config), args.per_device_train_batch_size, args.num_generations
    rotary = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    adapters = getattr(model, "peft_config", {}).values()
    problems = {
        f"per_device_train_batch_size is {rows}, which holds no whole groups of {size} responses": rows
        % size,
        f"model_type {config.model_type!r} is not among {', '.join(FAMILIES)}": config.model_type
        not in FAMILIES,
        f"attention {config._attn_implementation!r} is not among {', '.join(ATTENTION)}": (
            config._attn_implementation not in ATTENTION
        ),
        "the model has sliding attention": "sliding_attention"
        in (getattr(config, "layer_types", None) or ()),
        f"the model's positions are {rotary!r}, which depend on the length of a row": (
            rotary in ("dynamic", "longrope")
        ),
        "the adapter has virtual tokens": any(adapter.is_prompt_learning for adapter in adapters),
        f"the model has {noise}, which would be the same for all responses of a prompt": noise,
        "the loss has the term that balances experts, whose tokens are counted": experts,
        "the weights are sharded": accelerator.distributed_type not in _WHOLE,
    }
    for problem, found in problems.items():
        if found:
            raise UserError(f"share_prompts: {problem}; leave share_prompts out")


def prompt_groups(prompt_ids: Tensor, prompt_mask: Tensor) -> Tensor:
    """Numbers runs of rows with the same prompt from 0: [B], from left-padded ids and mask [B, P]."""
    text = prompt_ids.masked_fill(prompt_mask == 0, -1)
    new = (text[1:] != text[:-1]).any(1)
    return torch.cat([new.new_zeros(1), new]).long().cumsum(0)


def whole_groups(batches: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Puts the rows of each `GROUP` of shuffled, equally large parts of a rollout batch next to each other.

    Groups are in the order in which their first rows were, which is as random as that of the rows.
    """
    groups = torch.cat([batch[GROUP] for batch in batches]).tolist()
    first: dict[int, int] = {}
    for row, group in enumerate(groups):
        first.setdefault(group, row)
    order = sorted(range(len(groups)), key=lambda row: (first[groups[row]], row))
    size = len(groups) // len(batches)
    parts: list[dict[str, Any]] = [{} for _ in batches]
    for key in batches[0].keys() - {GROUP}:
        values = [batch[key] for batch in batches]
        for number, part in enumerate(parts):
            rows = order[number * size : (number + 1) * size]
            if isinstance(values[0], Tensor) and values[0].dim():
                part[key] = torch.cat(values)[torch.tensor(rows, device=values[0].device)]
            elif isinstance(values[0], list):
                joined = list(itertools.chain.from_iterable(values))
                part[key] = [joined[row] for row in rows]
            else:
                part[key] = values[number]
    return parts


def shared_parts_within(
    inputs: Mapping[str, Any], budget: int, accelerator: Accelerator
) -> list[dict[str, Any]]:
    """As `troll.training.batches.parts_within`, but of whole groups; a prompt counts once for its group."""
    prompts, responses = inputs["prompt_mask"].sum(1), inputs["completion_mask"].sum(1)
    groups = prompt_groups(inputs["prompt_ids"], inputs["prompt_mask"])
    rows = [(groups == number).nonzero().squeeze(1) for number in range(int(groups[-1]) + 1)]
    lengths = torch.stack([prompts[one[0]] + responses[one].sum() for one in rows])
    parts = [torch.cat([rows[one] for one in part.tolist()]) for part in cut_by_tokens(lengths, budget)]
    count = int(accelerator.gather(lengths.new_tensor([len(parts)])).max())
    return [trim(take_rows(inputs, part)) for part in split_to(parts, count)]


@dataclass(frozen=True)
class Packed:
    """N packed rows of at most W tokens, for B rows of a rollout batch with responses of at most T tokens."""

    input_ids: Tensor  # [N, W]
    position_ids: Tensor  # [N, W]
    allowed: Tensor  # [N, 1, W, W] bool: whether a token attends to another
    places: Tensor  # [B, T] where, in N * W, the token before each token of a response is; 0 at padding


def pack(ids: Tensor, attention: Tensor, length: int) -> Packed:
    """Packs ids and attention mask [B, L] whose last ``length`` = T columns are the responses.

    Prompts are padded on the left, responses on the right. A response's last token predicts nothing, and is
    left out.
    """
    start = ids.shape[1] - length
    groups = prompt_groups(ids[:, :start], attention[:, :start]).tolist()
    prompts, responses = attention[:, :start].sum(1).tolist(), attention[:, start:].sum(1).tolist()
    inputs = [max(tokens - 1, 0) for tokens in responses]
    widths = [0] * (groups[-1] + 1)
    for group, prompt, tokens in zip(groups, prompts, inputs, strict=True):
        widths[group] = (widths[group] or prompt) + tokens
    shape = (len(widths), max(widths))
    packed, positions = ids.new_zeros(shape), ids.new_zeros(shape)
    owners = ids.new_full(shape, -1)  # 0: the prompt; from 1: the response; -1: padding
    places = ids.new_zeros(len(ids), length)
    used = [0] * len(widths)
    for row, (group, prompt, tokens) in enumerate(zip(groups, prompts, inputs, strict=True)):
        if not used[group]:
            used[group] = prompt
            packed[group, :prompt] = ids[row, start - prompt : start]
            positions[group, :prompt] = torch.arange(prompt, device=ids.device)
            owners[group, :prompt] = 0
        here = slice(used[group], used[group] + tokens)
        packed[group, here] = ids[row, start : start + tokens]
        positions[group, here] = torch.arange(prompt, prompt + tokens, device=ids.device)
        owners[group, here] = row + 1
        begin = group * shape[1]
        places[row, 0] = begin + prompt - 1
        places[row, 1 : tokens + 1] = begin + torch.arange(here.start, here.stop, device=ids.device)
        used[group] = here.stop
    query, key = owners.unsqueeze(2), owners.unsqueeze(1)
    order = torch.arange(shape[1], device=ids.device)
    allowed = ((key == 0) | (key == query)) & (order.unsqueeze(1) >= order)  # padding attends to padding
    return Packed(packed, positions, allowed.unsqueeze(1), places)


def shared_states(backbone: Any, ids: Tensor, attention: Tensor, length: int) -> Tensor:
    """Last hidden states [B, T, D] before each token of the responses, with each prompt computed once.

    Arguments as in `pack`.
    """
    packed, mask = pack(ids, attention, length), None
    if backbone.config._attn_implementation == "eager":
        least = torch.finfo(backbone.dtype).min
        mask = torch.zeros_like(packed.allowed, dtype=backbone.dtype).masked_fill(~packed.allowed, least)
    states = backbone(
        input_ids=packed.input_ids,
        attention_mask=packed.allowed if mask is None else mask,
        position_ids=packed.position_ids,
        use_cache=False,
    ).last_hidden_state
    hidden = states.reshape(-1, states.shape[-1]).index_select(0, packed.places.reshape(-1))
    return hidden.view(*packed.places.shape, -1)


def share_in_sampling(model: Any, size: int) -> None:
    """Makes ``model.generate`` compute a prompt once for ``size`` consecutive rows that repeat it.

    Other calls, such as those with a cache or with ragged groups, are unchanged. ``model`` is a transformers
    model without wrappers.
    """
    generate = model.generate
    accepted = inspect.signature(type(model).forward).parameters
    cache_name = "cache" if "cache" in accepted else "past_key_values"  # transformers 5.23 and before

    @torch.no_grad()
    def shared(*args: Any, **kwargs: Any) -> Any:
        if args or kwargs.keys() != {"input_ids", "attention_mask", "generation_config"}:
            return generate(*args, **kwargs)
        ids, attention = kwargs["input_ids"], kwargs["attention_mask"]
        groups = torch.arange(len(ids), device=ids.device) // size
        if size == 1 or ids.shape[1] == 1 or not torch.equal(prompt_groups(ids, attention), groups):
            return generate(**kwargs)
        cache, once = DynamicCache(config=model.config), attention[::size]
        model.base_model(
            input_ids=ids[::size, :-1],
            attention_mask=once[:, :-1],
            position_ids=(once.cumsum(1) - 1).clamp(min=0)[:, :-1],
            use_cache=True,
            **{cache_name: cache},
        )
        cache.batch_repeat_interleave(size)
        return generate(**kwargs, **{cache_name: cache})

    model.generate = shared
