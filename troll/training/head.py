"""Joins the sparse language-model head to a transformers model, the way TRL joins its fused head.

TRL patches ``model.forward`` so that ``fused_lm_head=True`` returns log-probabilities of labels without
holding the logits. The patch here adds ``sparse_lm_head=True``: it also returns the next-token distribution
on a sparse support. Generation and TRL's own call are untouched.
"""

import functools
import types
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers.utils import ModelOutput

from troll.algorithms.lm_head import lm_head
from troll.errors import UserError


@dataclass
class SparseHeadOutput(ModelOutput):
    """What ``model(..., sparse_lm_head=True)`` returns, at the positions that ``mask`` marks; zero elsewhere.

    Attributes:
        log_probs: [B, T] of the labels.
        entropy: [B, T].
        token_ids: [B, T, K] the support; -1 in unused slots and where the mask is off.
        support_log_probs: [B, T, K]; -inf in unused slots and where the mask is off.
        tail_log_prob: [B, T]; zero where the mask is off, so that every row is a distribution.
    """

    log_probs: Tensor | None = None
    entropy: Tensor | None = None
    token_ids: Tensor | None = None
    support_log_probs: Tensor | None = None
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


def _scatter(values: Tensor, mask: Tensor, fill: float) -> Tensor:
    """Puts [N, ...] values to the N places that mask [B, T] marks; differentiable even where N is 0."""
    full = values.new_full((mask.numel(), *values.shape[1:]), fill)
    places = mask.reshape(-1).nonzero().squeeze(-1)
    return full.index_copy(0, places, values).view(*mask.shape, *values.shape[1:])


def add_sparse_lm_head(model: Any, temperature: float) -> None:
    """Adds ``sparse_lm_head=True`` to ``model.forward``.

    The new forward takes ``input_ids`` and ``attention_mask`` [B, L], ``mask`` [B, T] for the last T tokens,
    and either ``support`` [B, T, K] (token ids at which to evaluate, differentiable) or ``keep`` and
    ``dropped_mass`` (choose the support here; with gradient it is evaluated in a second pass of the head).

    Args:
        model: a transformers causal language model, before any wrapping (DDP, FSDP); adapters of PEFT in its
            backbone are used.
        temperature: what logits are divided by, as in sampling.

    Raises:
        UserError: PEFT trains a copy of the head, which would not be seen here. TRL refuses adapters on it.
    """
    if hasattr(model.get_output_embeddings(), "modules_to_save"):
        raise UserError(
            "peft_config trains a copy of the language-model head; leave it out of modules_to_save"
        )
    original_forward = model.forward
    config = model.config.get_text_config()
    softcap = getattr(config, "final_logit_softcapping", None)
    scale = logit_scale_of(config)

    # The signature stays the model's own: `generate` validates its arguments against it.
    @functools.wraps(type(model).forward)
    def forward(self: Any, *args: Any, sparse_lm_head: bool = False, **kwargs: Any) -> Any:
        if not sparse_lm_head:
            return original_forward(*args, **kwargs)
        mask = kwargs.pop("mask").bool()
        support, keep = kwargs.pop("support", None), kwargs.pop("keep", None)
        dropped_mass = kwargs.pop("dropped_mass", 0.0)
        length = mask.shape[1]
        labels = kwargs["input_ids"][:, -length:]
        # Looked up on each call: FSDP and PEFT replace backbone and head after patching.
        hidden = self.base_model(*args, **kwargs, use_cache=False).last_hidden_state[:, -length - 1 : -1]
        head = self.get_output_embeddings()
        weight, bias = head.weight, head.bias
        if isinstance(weight, DTensor):
            weight, bias = weight.full_tensor(), None if bias is None else bias.full_tensor()
        reduce = functools.partial(
            lm_head,
            hidden[mask],
            weight,
            labels[mask],
            bias=bias,
            temperature=temperature,
            logit_softcap=softcap,
            logit_scale=scale,
        )
        support = None if support is None else support[mask]
        if keep is not None and torch.is_grad_enabled():
            chosen = reduce(keep=keep, dropped_mass=dropped_mass).distribution
            assert chosen is not None
            support, keep = chosen.token_ids, None
        output = reduce(support=support, keep=keep, dropped_mass=dropped_mass)
        result = SparseHeadOutput(
            log_probs=_scatter(output.label_log_probs, mask, 0.0), entropy=_scatter(output.entropy, mask, 0.0)
        )
        if output.distribution is not None:
            result.token_ids = _scatter(output.distribution.token_ids, mask, -1)
            result.support_log_probs = _scatter(output.distribution.log_probs, mask, -torch.inf)
            result.tail_log_prob = _scatter(output.distribution.tail_log_prob, mask, 0.0)
        return result

    model.forward = types.MethodType(forward, model)
