"""Adds the sparse language-model head to a transformers model, as TRL adds its fused head.

TRL patches ``model.forward``: ``fused_lm_head=True`` returns the log-probabilities of the labels without
materialising the logits. The patch here adds ``sparse_lm_head=True``, which also returns the next-token
distribution on a sparse support. Generation and TRL's own calls are unaffected.
"""

import functools
import inspect
import types
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers.utils import ModelOutput

from troll.algorithms.lm_head.head import lm_head
from troll.common.errors import UserError
from troll.common.models import text_config
from troll.training.dropout import evaluating
from troll.training.shared_prompts import prompt_groups, shared_states

SELECTED = "selected_"
"""Prefix of the outputs of the pass that selects the support."""


@dataclass
class SparseHeadOutput(ModelOutput):
    """Output of ``model(..., sparse_lm_head=True)`` at the positions where ``mask`` is set; zero elsewhere.

    The distributions are in the format of `SparseLogProbs.to_batch` and `SparseLogProbs.from_batch`. The
    fields ``selected_...`` are those of the pass that selected the support, without gradient, if a second
    pass evaluated it.
    """

    log_probs: Tensor | None = None  # [B, T] of the labels
    entropy: Tensor | None = None  # [B, T]
    aux_loss: Tensor | None = None  # load-balancing loss of a mixture of experts, on request
    token_ids: Tensor | None = None  # [B, T, K] the support; -1 in unused slots and at masked positions
    support_log_probs: Tensor | None = None  # [B, T, K]; -inf in unused slots and at masked positions
    # [B, T]; zero at masked positions, so every row is a valid distribution
    tail_log_prob: Tensor | None = None
    selected_log_probs: Tensor | None = None
    selected_token_ids: Tensor | None = None
    selected_support_log_probs: Tensor | None = None
    selected_tail_log_prob: Tensor | None = None


_VIRTUAL = -100
"""PEFT's label of virtual tokens."""


def logit_scale_of(config: Any) -> float:
    """The factor by which a model family scales its logits before any softcap.

    Reads the configuration keys that TRL 1.16 reads (trl/trainer/utils.py, ``add_fused_lm_head``).
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
    """Scatters values [N] to the N positions where mask [B, T] is set; differentiable even for N = 0."""
    return values.new_zeros(mask.numel()).index_copy(0, places, values).view(mask.shape)


def add_sparse_lm_head(
    model: Any, temperature: float, *, fp32: bool = False, share_prompts: bool = False
) -> None:
    """Adds the option ``sparse_lm_head=True`` to ``model.forward``.

    The new forward takes ``input_ids`` and ``attention_mask`` [B, L], for models with virtual tokens also
    ``labels`` (the ``input_ids`` again), ``mask`` [B, T] for the last T tokens, and either ``support``
    [B, T, K] (the token ids to evaluate, differentiable) or ``support_size`` and ``dropped_mass`` (the
    support is selected here; with gradients, or with ``second_pass``, another pass of the head evaluates it).
    ``output_router_logits=True`` also returns the load-balancing loss of a mixture of experts.

    The first call compares the log-probs of one response with those of the model's original forward.

    Args:
        model: a transformers causal language model, before any wrapping (DDP, FSDP). PEFT adapters in its
            backbone are applied, and so are virtual tokens (prefix and prompt tuning) and a head that is
            trained as a copy (``modules_to_save``).
        temperature: divisor of the logits, as in sampling.
        fp32: multiply in float32 even under autocast (``GRPOConfig.cast_lm_head_to_fp32``).
        share_prompts: compute a prompt once for consecutive rows that repeat it.

    Raises:
        UserError: in the first call: the log-probs differ, see `check_log_probs`.
    """
    original_forward = model.forward
    config = text_config(model.config)
    softcap = getattr(config, "final_logit_softcapping", None)
    scale = logit_scale_of(config)
    checked = False

    # Keeps the model's signature, against which `generate` validates its arguments.
    @functools.wraps(type(model).forward)
    def forward(self: Any, *args: Any, sparse_lm_head: bool = False, **kwargs: Any) -> Any:
        if not sparse_lm_head:
            return original_forward(*args, **kwargs)
        nonlocal checked
        # Of prompt tuning there are only embeddings; PEFT marks its virtual tokens in the labels.
        labels = kwargs.pop("labels", kwargs.get("input_ids"))
        labels = labels[:, int((labels[0] == _VIRTUAL).sum()) :]
        if not checked:
            checked = True  # first, because check_log_probs calls this forward
            attention, length = kwargs["attention_mask"][:, -labels.shape[1] :], kwargs["mask"].shape[1]
            check_log_probs(
                self, original_forward, labels, attention, length, temperature, group=share_prompts
            )
        if kwargs["attention_mask"].shape[1] > labels.shape[1]:
            kwargs["position_ids"] = _after_virtual_tokens(kwargs)
        mask = kwargs.pop("mask").bool()
        support, support_size = kwargs.pop("support", None), kwargs.pop("support_size", None)
        dropped_mass, second_pass = kwargs.pop("dropped_mass", 0.0), kwargs.pop("second_pass", False)
        length = mask.shape[1]
        labels = labels[:, -length:]
        # Looked up on each call because FSDP and PEFT replace backbone and head after patching.
        if share_prompts:
            hidden = shared_states(self.base_model, kwargs["input_ids"], kwargs["attention_mask"], length)
        else:
            states = self.base_model(*args, **kwargs, use_cache=False)
            hidden = states.last_hidden_state[:, -length - 1 : -1]
        if fp32:
            hidden = hidden.float()
        head = self.get_output_embeddings()
        weight, bias = head.weight, head.bias
        if isinstance(weight, DTensor):
            weight, bias = weight.full_tensor(), None if bias is None else bias.full_tensor()
        # The only synchronisation of the host with the GPU: the number of positions.
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
        selected = SparseHeadOutput()
        with torch.autocast(hidden.device.type, enabled=False) if fp32 else nullcontext():
            if support_size is not None and (second_pass or torch.is_grad_enabled()):
                first = reduce(support_size=support_size, dropped_mass=dropped_mass)
                assert first.distribution is not None
                selected.selected_log_probs = _scatter(first.label_log_probs, mask, places)
                for name, value in first.distribution.scatter(mask, places).to_batch(SELECTED).items():
                    selected[name] = value
                support, support_size = first.distribution.token_ids, None
            output = reduce(support=support, support_size=support_size, dropped_mass=dropped_mass)
        result = SparseHeadOutput(
            log_probs=_scatter(output.label_log_probs, mask, places),
            entropy=_scatter(output.entropy, mask, places),
            **selected,
        )
        if output.distribution is not None:
            for name, value in output.distribution.scatter(mask, places).to_batch().items():
                result[name] = value
        if kwargs.get("output_router_logits"):
            # All families of mixtures of experts share this loss (TRL, add_fused_lm_head).
            from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

            attention = kwargs.get("attention_mask")
            result.aux_loss = load_balancing_loss_func(
                states.router_logits, config.num_experts, config.num_experts_per_tok, attention
            )
        return result

    model.forward = types.MethodType(forward, model)


def _after_virtual_tokens(inputs: Mapping[str, Any]) -> Tensor:
    """Positions of the inputs of a model with virtual tokens, as `generate` counts them: without padding.

    The distance of a prompt to the virtual tokens before it would else depend on the rest of the batch.
    """
    given = inputs["inputs_embeds"] if inputs.get("input_ids") is None else inputs["input_ids"]
    return _positions(inputs["attention_mask"])[:, -given.shape[1] :]


def _positions(attention: Tensor) -> Tensor:
    """Counts tokens, as in `generate` (transformers, _prepare_position_ids_for_generation)."""
    return (attention.long().cumsum(-1) - 1).masked_fill(attention == 0, 0)


def add_position_ids(model: Any) -> None:
    """Makes the positions of a model with absolute position embeddings independent of left padding.

    Without ``position_ids`` such a model counts from the first column, padding included, whereas `generate`
    counts from the first token. A hook on its backbone adds ``position_ids`` to every call with an attention
    mask and without a cache. Models with rotary embeddings or ALiBi, which only depend on distances, stay
    bitwise unchanged unless the embeddings scale with the length of the batch.

    Args:
        model: a transformers causal language model, not yet wrapped. Copies of its backbone inherit the hook.
    """
    config, backbone = text_config(model.config), model.base_model
    rotary = getattr(config, "rope_parameters", None) or {}
    kinds = {value for key, value in _leaves(rotary) if key == "rope_type"}
    relative = bool(rotary or getattr(config, "rotary_dim", None) or getattr(config, "alibi", False))
    accepts_positions = "position_ids" in inspect.signature(type(backbone).forward).parameters
    if accepts_positions and (not relative or kinds & {"dynamic", "longrope"}):
        backbone.register_forward_pre_hook(_position_ids_hook, with_kwargs=True)


def _leaves(nested: Any) -> Iterator[tuple[str, Any]]:
    for key, value in nested.items():
        if isinstance(value, dict):
            yield from _leaves(value)
        else:
            yield key, value


def _position_ids_hook(_: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    attention = kwargs.get("attention_mask")
    given = any(kwargs.get(name) is not None for name in ("position_ids", "cache", "past_key_values"))
    if not given and isinstance(attention, Tensor) and attention.dim() == 2:
        kwargs = kwargs | {"position_ids": _positions(attention)}
    return args, kwargs


ROUNDING, COARSE_ROUNDING = 1e-2, 0.4
"""Tolerated mean difference in nats between padded and unpadded text, in float32 (or TF32) and in bfloat16.

In bfloat16, random mixtures of experts differed by 0.11 nats; unsupported heads differ by 1 to 18.
"""
CHECKED_TOKENS = 32
"""Compared tokens of a response: the logits of a whole response might not fit into memory."""


@torch.no_grad()
def check_log_probs(
    model: Any,
    original_forward: Any,
    ids: Tensor,
    attention: Tensor,
    length: int,
    temperature: float,
    *,
    group: bool = False,
) -> None:
    """Compares the sparse head's log-probs of one response with those of the model's own logits.

    With ``group``, the sparse head computes the response with others of its prompt, and the last is compared.

    Token ids and attention mask are [B, L]: prompts are padded on the left, responses of at most
    T = ``length`` tokens on the right. The response with the most left padding is checked; the reference
    log-probs are computed without padding, which also detects models that treat padding differently.

    Raises:
        UserError: the log-probs differ by more than rounding.
    """
    start = ids.shape[1] - length
    padding = (attention[:, :start] == 0).sum(1)
    row = int((padding + ids.shape[1] * attention[:, start]).argmax())
    part = slice(0, start + CHECKED_TOKENS)
    rows = torch.tensor([row], device=ids.device)
    if group:
        groups, filled = prompt_groups(ids[:, :start], attention[:, :start]), attention[:, start]
        rows = ((groups == groups[row]) & (filled == filled[row])).nonzero().squeeze(1)
    ids, attention = ids[rows, part], attention[rows, part]
    mask, text = attention[:, start:].bool(), ids[-1][attention[-1].bool()].unsqueeze(0)
    tokens = int(mask[-1].sum())
    with evaluating(model):
        sparse = model.forward(
            input_ids=ids, labels=ids, attention_mask=attention, mask=mask, sparse_lm_head=True
        )
        last = {"logits_to_keep": tokens + 1}
        accepted = inspect.signature(original_forward).parameters
        dense = original_forward(
            input_ids=text, use_cache=False, **(last if "logits_to_keep" in accepted else {})
        )
    if not 0 < tokens < text.shape[1]:
        return
    expected = (dense.logits[0, -tokens - 1 : -1].float() / temperature).log_softmax(-1)
    expected = expected.gather(-1, text[0, -tokens:].unsqueeze(-1)).squeeze(-1)
    difference = float((sparse.log_probs[-1][mask[-1]] - expected).abs().mean())
    precise = model.dtype == torch.float32 and not torch.is_autocast_enabled(ids.device.type)
    if not difference <= (ROUNDING if precise else COARSE_ROUNDING):
        raise UserError(
            f"model_type {model.config.model_type!r}: log-probs of a response differ from those of the "
            f"model's own logits by {difference:.2g} nats on average: its softcap, its logit scale, a layer "
            "before its head or its treatment of padding is not supported; use another model family"
        )
