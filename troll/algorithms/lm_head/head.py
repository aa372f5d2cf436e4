"""Log-probs, entropy and sparse distributions from hidden states, without materialising the logits.

The logits of N tokens over a vocabulary of V = 151,936 are by far the largest tensor of an update. Here they
only exist tile by tile (``chunk_tokens`` x ``chunk_vocab``): the forward pass folds each tile into a few
numbers per token; the backward pass recomputes the tile, turns it into its gradient in place and multiplies
it into the gradients of the hidden states and of the weight. Besides the inputs, O(N K) numbers are saved for
the backward pass. On CUDA, tiles of 16-bit operands (without a softcap) need not be in memory at all, see
`triton_gemm`.

TRL's chunked head (`trl.kernels.chunked_logprob`) does the same for label log-probs and entropy. This head
adds the log-probs at a given support with the log-mass of all other tokens, their gradient, and the exact
top-K in the same pass.
"""

import importlib
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from troll.algorithms.distributions import SparseLogProbs
from troll.algorithms.lm_head import tiles
from troll.algorithms.lm_head.passes import Head, kernels, operand_dtype, top
from troll.algorithms.lm_head.plan import Kernels, Plan
from troll.algorithms.lm_head.tiles import Shape
from troll.common.errors import UserError

# CPU: measured in float32 at D = 1024; from 512 x 512 to 1024 x 4096 the time differs by 3 %, and 256 tokens
# cost 4 % more. CUDA: the tokens of TRL's head, columns for a float32 tile of 128 MiB. With 16-bit operands
# the two determine the memory of a block in backward; half of it took 1 % longer on an H100, twice 2 % less.
CHUNK_TOKENS = {"cpu": 512, "cuda": 4096}
CHUNK_VOCAB = {"cpu": 2048, "cuda": 8192}


@dataclass(frozen=True)
class HeadOutput:
    """Output of `lm_head` for N tokens."""

    label_log_probs: Tensor
    """[N] log-probs of the labels, in nats, float32 (float64 for float64 inputs)."""
    entropy: Tensor
    """[N] entropy of the full distribution, in nats."""
    distribution: SparseLogProbs | None
    """[N, K] log-probs at ``support`` or of the ``support_size`` most likely tokens, and tail; else None."""


def lm_head(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    support: Tensor | None = None,
    support_size: int | None = None,
    dropped_mass: float = 0.0,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    logit_softcap: float | None = None,
    logit_scale: float = 1.0,
    chunk_tokens: int | None = None,
    chunk_vocab: int | None = None,
    backend: Literal["auto", "torch", "triton"] = "auto",
) -> HeadOutput:
    """Applies the output layer of a language model and reduces its logits tile by tile.

    logits = softcap * tanh(logit_scale * (hidden @ weight.T + bias) / softcap) / temperature, as in TRL's
    head. Products are accumulated and everything else is computed in float32 (in float64 for float64
    inputs), even under autocast. Differentiable once in ``hidden``, ``weight`` and ``bias`` through every
    output, unless ``support_size`` is given.

    Args:
        hidden: [N, D] last hidden states.
        weight: [V, D] weight of the output layer, tied to the embedding or not.
        labels: [N] ids of the sampled tokens.
        support: [N, K] distinct ids per token at which to compute log-probs; -1 marks unused slots (log-prob
            -inf, no gradient). All other tokens are pooled into the tail, by a log-sum-exp over them and not
            as 1 - sum; without other tokens it is -inf and has no gradient.
        support_size: alternative to ``support``: K, the maximum number of tokens to keep. Selects the exact
            most likely tokens in descending order, always including the label. Without any gradient (the pass
            of the old policy).
        dropped_mass: with ``support_size``: stop once the kept tokens hold 1 - dropped_mass. In [0, 1).
        bias: [V].
        temperature: sampling temperature, > 0.
        logit_softcap: > 0, as Gemma 2's `final_logit_softcapping`; None disables it.
        logit_scale: as Cohere's `logit_scale`.
        chunk_tokens: tokens per tile; the default depends on the device (measured, see `CHUNK_TOKENS`).
        chunk_vocab: columns per tile; likewise.
        backend: Triton kernels or plain torch for the computations inside a tile; "auto" uses Triton on CUDA
            if it is installed. With ``support_size`` (up to 1,024; plain torch above) the kernels take rows
            of the whole vocabulary, as many as fit into two tiles, and the weight is converted at most once.

    Raises:
        UserError: invalid shapes, ids or options.
    """
    _check(hidden, weight, labels, support, support_size, dropped_mass, bias, temperature, logit_softcap)
    device = hidden.device.type
    operands = operand_dtype(hidden, weight)
    plan = Plan(
        shape=Shape(logit_scale, logit_softcap, temperature),
        chunk_tokens=_positive("chunk_tokens", chunk_tokens, CHUNK_TOKENS.get(device, 1024)),
        chunk_vocab=_positive("chunk_vocab", chunk_vocab, CHUNK_VOCAB.get(device, 8192)),
        operands=operands,
        kernels=kernels(backend, hidden.device, operands),
    )
    _check_ids(labels, support, weight.shape[0], plan.kernels)
    if support_size is not None:
        with torch.no_grad():
            label_log_probs, entropy, distribution = top(
                hidden.detach(), weight.detach(), bias, labels, support_size, dropped_mass, plan
            )
        return HeadOutput(label_log_probs, entropy, distribution)
    label_log_probs, entropy, log_probs, tail = Head.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, labels, support, plan
    )
    if support is None:
        return HeadOutput(label_log_probs, entropy, None)
    return HeadOutput(label_log_probs, entropy, SparseLogProbs(support, log_probs, tail))


def _check(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    support: Tensor | None,
    support_size: int | None,
    dropped_mass: float,
    bias: Tensor | None,
    temperature: float,
    logit_softcap: float | None,
) -> None:
    if hidden.dim() != 2 or weight.dim() != 2 or hidden.shape[1] != weight.shape[1]:
        raise UserError(
            f"lm_head: hidden {tuple(hidden.shape)} must be [N, D] and weight {tuple(weight.shape)} [V, D]"
        )
    tokens, vocab = hidden.shape[0], weight.shape[0]
    if labels.shape != (tokens,):
        raise UserError(f"lm_head: labels {tuple(labels.shape)} must be [N] = [{tokens}]")
    if bias is not None and bias.shape != (vocab,):
        raise UserError(f"lm_head: bias {tuple(bias.shape)} must be [V] = [{vocab}]")
    if support is not None and support_size is not None:
        raise UserError("lm_head: give support (new policy) or support_size (old policy), not both")
    if support is not None and (support.dim() != 2 or support.shape[0] != tokens):
        raise UserError(f"lm_head: support {tuple(support.shape)} must be [N, K] with N = {tokens}")
    if support_size is not None and support_size < 1:
        raise UserError(f"lm_head: support_size is {support_size}, must be at least 1")
    if not 0 <= dropped_mass < 1:
        raise UserError(f"lm_head: dropped_mass is {dropped_mass}, must be in [0, 1)")
    if not temperature > 0:
        raise UserError(
            f"lm_head: temperature is {temperature}, must be positive (greedy sampling has no log-probs)"
        )
    if logit_softcap is not None and not logit_softcap > 0:
        raise UserError(f"lm_head: logit_softcap is {logit_softcap}, must be positive, or None for no cap")
    for name, ids in (("labels", labels), ("support", support)):
        if ids is not None and ids.dtype != torch.int64:
            raise UserError(f"lm_head: {name} must be int64, not {ids.dtype}")


def _check_ids(labels: Tensor, support: Tensor | None, vocab: int, kernels: Kernels) -> None:
    if labels.device.type == "cuda" and kernels is not tiles:
        rows = importlib.import_module("troll.algorithms.lm_head.triton_rows")
        message = (
            f"lm_head: labels outside [0, {vocab}), support outside [-1, {vocab}), or an id twice in a row"
        )
        torch._assert_async(rows.good_ids(labels, support, vocab), message)
        return
    _check_range("labels", labels, 0, vocab)
    if support is not None:
        _check_range("support", support, -1, vocab)
        _check_distinct(support)


def _check_range(name: str, ids: Tensor, least: int, vocab: int) -> None:
    good = ((ids >= least) & (ids < vocab)).all()
    if ids.device.type == "cuda":
        torch._assert_async(good, f"lm_head: {name} outside [{least}, {vocab})")  # without synchronising
    elif not good:
        raise UserError(
            f"lm_head: {name} must be in [{least}, {vocab}), found {int(ids.min())} to {int(ids.max())}"
        )


def _check_distinct(support: Tensor) -> None:
    """Rejects an id that occurs twice in a row [N, K]: its mass would be taken out of the tail twice."""
    ordered = support.sort(dim=-1).values
    repeated = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    if support.device.type == "cuda":
        torch._assert_async(~repeated.any(), "lm_head: an id occurs twice in a row of support")
    elif bool(repeated.any()):
        row, place = (int(index) for index in repeated.nonzero()[0])
        raise UserError(
            f"lm_head: support must hold distinct ids in each row, found {int(ordered[row, place])} twice in "
            f"row {row}"
        )


def _positive(name: str, value: int | None, default: int) -> int:
    if value is None:
        return default
    if value < 1:
        raise UserError(f"lm_head: {name} is {value}, must be at least 1")
    return value
