"""Joins the sparse language-model head to a transformers model, the way TRL joins its fused head.

TRL patches ``model.forward`` so that ``fused_lm_head=True`` returns log-probabilities of labels without
holding the logits. The patch here adds ``sparse_lm_head=True``: it also returns the next-token distribution
on a sparse support. Generation and TRL's own call are untouched.
"""

import functools
import inspect
import types
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers.utils import ModelOutput

from troll.algorithms.lm_head.head import lm_head
from troll.common.errors import UserError


@dataclass
class SparseHeadOutput(ModelOutput):
    """What ``model(..., sparse_lm_head=True)`` returns, at the positions that ``mask`` marks; zero elsewhere.

    The last three are those of `SparseLogProbs.to_batch`, which `SparseLogProbs.from_batch` reads.
    """

    log_probs: Tensor | None = None  # [B, T] of the labels
    entropy: Tensor | None = None  # [B, T]
    aux_loss: Tensor | None = None  # load-balancing loss of a mixture of experts, where it is asked for
    token_ids: Tensor | None = None  # [B, T, K] the support; -1 in unused slots and where the mask is off
    support_log_probs: Tensor | None = None  # [B, T, K]; -inf in unused slots and where the mask is off
    # [B, T]; zero where the mask is off, so that every row is a distribution
    tail_log_prob: Tensor | None = None


def logit_scale_of(config: Any) -> float:
    """The factor that a model family puts on its logits before any softcap.

    The names are those that TRL 1.16 knows (trl/trainer/utils.py, ``add_fused_lm_head``).
    """
    for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"):
        value = getattr(config, name, None)
        if value is not None:
            return float(value)
    scaling = getattr(config, "logits_scaling", None)
    if scaling is None:
        return 1.0
    return float(scaling) if config.model_type == "hyperclovax" else 1.0 / float(scaling)


def _scatter(values: Tensor, mask: Tensor, places: Tensor) -> Tensor:
    """Puts values [N] to the N places that mask [B, T] marks, 0 elsewhere; differentiable even at N = 0."""
    return values.new_zeros(mask.numel()).index_copy(0, places, values).view(mask.shape)


def add_sparse_lm_head(model: Any, temperature: float, *, fp32: bool = False) -> None:
    """Adds ``sparse_lm_head=True`` to ``model.forward``.

    The new forward takes ``input_ids`` and ``attention_mask`` [B, L], ``mask`` [B, T] for the last T tokens,
    and either ``support`` [B, T, K] (token ids at which to evaluate, differentiable) or ``support_size`` and
    ``dropped_mass`` (choose the support here; with gradient it is evaluated in a second pass of the head).
    ``output_router_logits=True`` asks for the load-balancing loss of a mixture of experts.

    The first call compares the new log-probs of a response with those of the model's own forward.

    Args:
        model: a transformers causal language model, before any wrapping (DDP, FSDP); adapters of PEFT in its
            backbone are used.
        temperature: what logits are divided by, as in sampling.
        fp32: multiply in float32 under autocast, too (``GRPOConfig.cast_lm_head_to_fp32``).

    Raises:
        UserError: PEFT trains a copy of the head, which would not be seen here. TRL refuses adapters on it.
            In the first call: the log-probs differ, see `check_log_probs`.
    """
    if hasattr(model.get_output_embeddings(), "modules_to_save"):
        raise UserError(
            "peft_config trains a copy of the language-model head; leave it out of modules_to_save"
        )
    original_forward = model.forward
    config = model.config.get_text_config()
    softcap = getattr(config, "final_logit_softcapping", None)
    scale = logit_scale_of(config)
    checked = False

    # The signature stays the model's own: `generate` validates its arguments against it.
    @functools.wraps(type(model).forward)
    def forward(self: Any, *args: Any, sparse_lm_head: bool = False, **kwargs: Any) -> Any:
        if not sparse_lm_head:
            return original_forward(*args, **kwargs)
        nonlocal checked
        if not checked:
            checked = True  # before it asks for the head itself
            attention, length = kwargs["attention_mask"], kwargs["mask"].shape[1]
            check_log_probs(self, original_forward, kwargs["input_ids"], attention, length, temperature)
        mask = kwargs.pop("mask").bool()
        support, support_size = kwargs.pop("support", None), kwargs.pop("support_size", None)
        dropped_mass = kwargs.pop("dropped_mass", 0.0)
        length = mask.shape[1]
        labels = kwargs["input_ids"][:, -length:]
        # Looked up on each call: FSDP and PEFT replace backbone and head after patching.
        states = self.base_model(*args, **kwargs, use_cache=False)
        hidden = states.last_hidden_state[:, -length - 1 : -1]
        if fp32:
            hidden = hidden.float()
        head = self.get_output_embeddings()
        weight, bias = head.weight, head.bias
        if isinstance(weight, DTensor):
            weight, bias = weight.full_tensor(), None if bias is None else bias.full_tensor()
        # On a GPU the host waits for their number once here, and for nothing else.
        places = mask.reshape(-1).nonzero().squeeze(-1)
        reduce = functools.partial(
            lm_head,
            hidden.reshape(-1, hidden.shape[-1]).index_select(0, places),
            weight,
            labels.reshape(-1).index_select(0, places),
            bias=bias,
            temperature=temperature,
            logit_softcap=softcap,
            logit_scale=scale,
        )
        if support is not None:
            support = support.reshape(-1, support.shape[-1]).index_select(0, places)
        with torch.autocast(hidden.device.type, enabled=False) if fp32 else nullcontext():
            if support_size is not None and torch.is_grad_enabled():
                chosen = reduce(support_size=support_size, dropped_mass=dropped_mass).distribution
                assert chosen is not None
                support, support_size = chosen.token_ids, None
            output = reduce(support=support, support_size=support_size, dropped_mass=dropped_mass)
        result = SparseHeadOutput(
            log_probs=_scatter(output.label_log_probs, mask, places),
            entropy=_scatter(output.entropy, mask, places),
        )
        if output.distribution is not None:
            for name, value in output.distribution.scatter(mask, places).to_batch().items():
                result[name] = value
        if kwargs.get("output_router_logits"):
            # The one that every family of mixtures of experts has (TRL, add_fused_lm_head).
            from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

            attention = kwargs.get("attention_mask")
            result.aux_loss = load_balancing_loss_func(
                states.router_logits, config.num_experts, config.num_experts_per_tok, attention
            )
        return result

    model.forward = types.MethodType(forward, model)


def tell_positions(model: Any) -> None:
    """Lets padding on the left move no token of a model with absolute positions.

    Without ``position_ids`` such a model counts from the first column, padding included, while `generate`
    counts from the first token. Its backbone is given them wherever it is called with an attention mask and
    without a cache. Rotary embeddings and ALiBi see distances alone and are left as they are, to the last
    bit, unless they scale with the length of the batch.

    Args:
        model: a transformers causal language model, before any wrapping. Copies of its backbone do the same.
    """
    config, backbone = model.config.get_text_config(), model.base_model
    rotary = getattr(config, "rope_parameters", None) or {}
    kinds = {value for key, value in _leaves(rotary) if key == "rope_type"}
    relative = bool(rotary or getattr(config, "rotary_dim", None) or getattr(config, "alibi", False))
    takes_them = "position_ids" in inspect.signature(type(backbone).forward).parameters
    if takes_them and (not relative or kinds & {"dynamic", "longrope"}):
        backbone.register_forward_pre_hook(_add_positions, with_kwargs=True)


def _leaves(nested: Any) -> Iterator[tuple[str, Any]]:
    for key, value in nested.items():
        if isinstance(value, dict):
            yield from _leaves(value)
        else:
            yield key, value


def _add_positions(_: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    attention = kwargs.get("attention_mask")
    told = any(kwargs.get(name) is not None for name in ("position_ids", "cache", "past_key_values"))
    if not told and isinstance(attention, Tensor) and attention.dim() == 2:
        # As `generate` has them (transformers, _prepare_position_ids_for_generation).
        positions = (attention.long().cumsum(-1) - 1).masked_fill(attention == 0, 0)
        kwargs = kwargs | {"position_ids": positions}
    return args, kwargs


ROUNDING, COARSE_ROUNDING = 1e-2, 0.4
"""Nats that may lie between padded and unpadded text on average: in float32 (or TF32), and in bfloat16.

There random mixtures of experts were 0.11 apart; heads that are not supported are by 1 to 18.
"""
CHECKED_TOKENS = 32
"""Tokens of a response that are compared: the logits of whole responses might not fit into memory."""


@torch.no_grad()
def check_log_probs(
    model: Any, own_forward: Any, ids: Tensor, attention: Tensor, length: int, temperature: float
) -> None:
    """Compares the sparse head's log-probs of a response with those of the model's own logits.

    Token ids and attention are [B, L], prompts padded on the left, responses of at most T = ``length`` tokens
    on the right. The model's own are of the text alone, without padding, so that padding that counts is
    found, too. Of the responses it is the one with the most padding before it. Refuses a model whose
    log-probs differ by more than rounding does.
    """
    start = ids.shape[1] - length
    padding = (attention[:, :start] == 0).sum(1)
    row = int((padding + ids.shape[1] * attention[:, start]).argmax())
    part = slice(0, start + CHECKED_TOKENS)
    ids, attention = ids[row : row + 1, part], attention[row : row + 1, part]
    mask, text = attention[:, start:].bool(), ids[attention.bool()].unsqueeze(0)
    tokens = int(mask.sum())
    learning = [part for part in model.modules() if part.training]
    model.eval()  # dropout would differ
    try:
        found = model.forward(input_ids=ids, attention_mask=attention, mask=mask, sparse_lm_head=True)
        last = {"logits_to_keep": tokens + 1}
        known = inspect.signature(own_forward).parameters
        own = own_forward(input_ids=text, use_cache=False, **(last if "logits_to_keep" in known else {}))
    finally:
        for part in learning:
            part.training = True
    if not 0 < tokens < text.shape[1]:
        return
    expected = (own.logits[0, -tokens - 1 : -1].float() / temperature).log_softmax(-1)
    expected = expected.gather(-1, text[0, -tokens:].unsqueeze(-1)).squeeze(-1)
    apart = float((found.log_probs[mask] - expected).abs().mean())
    precise = model.dtype == torch.float32 and not torch.is_autocast_enabled(ids.device.type)
    if not apart <= (ROUNDING if precise else COARSE_ROUNDING):
        raise UserError(
            f"model_type {model.config.model_type!r}: log-probs of a response differ from those of the "
            f"model's own logits by {apart:.2g} nats on average: a softcap, a scale or a layer before its "
            "head, or the way it treats padding, is not supported; use a model of another family"
        )
