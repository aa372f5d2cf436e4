"""Reduction of per-token losses to one number, by name.

The caller passes the normalisers of the whole mini-batch (over all its micro-batches and processes); each
micro-batch then contributes its share, and the shares add up. A mean over each micro-batch would instead
weight tokens by the size of their micro-batch.

* token-mean: sum m l / sum m. DAPO; default of verl and of the TROLL paper.
* seq-mean-token-mean: sum_i (sum_t m l / T_i) / B'. GRPO, GSPO, SAPO.
* seq-mean-token-sum: sum_i (sum_t m l) / B'. REINFORCE.
* seq-mean-token-sum-norm: sum_i (sum_t m l) / (B C). Dr. GRPO, with C the maximum response length.

Here l are losses [B, T], m is the mask, T_i the number of tokens of response i and B' the number of
non-empty responses, as in newer verl; TRL also counts empty responses, so masking whole responses shrinks the
gradient of the others. seq-mean-token-sum-norm divides by all B responses, as TRL does (loss_type "dr_grpo");
older verl omits that division, so its effective learning rate grows with B.

* released: sum_i w_i sum_t m l, the exception: a mean over each micro-batch, as in the TROLL paper's released
  code. `troll.training.batches.with_response_weights` computes the weights w_i from the whole mini-batch, so
  that this does not depend either on how the mini-batch is split for the passes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from troll.common.errors import UserError, unknown

RELEASED = "released"
"""As in the TROLL paper's released code; for runs, not for rules to require."""

AGGREGATIONS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")

Count = float | Tensor


def check_aggregation(name: str, *, of_run: bool = False) -> str:
    """Return the name if it is valid, for a run or for a rule that requires it.

    Raises:
        UserError: unknown name; the message lists the valid names and suggests the closest.
    """
    valid = (*AGGREGATIONS, RELEASED) if of_run else AGGREGATIONS
    if name not in valid:
        raise UserError(unknown("aggregation", name, valid))
    return name


def aggregate(
    per_token: Tensor,
    mask: Tensor,
    name: str,
    *,
    tokens: Count | None = None,
    sequences: Count | None = None,
    responses: Count | None = None,
    max_response_tokens: Count | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """Compute one micro-batch's share of the mini-batch loss.

    The counts are those of the whole mini-batch, over all micro-batches and processes. They default to the
    counts of this mask, which is correct for a mini-batch of one micro-batch on one process.

    Args:
        per_token: [B, T] losses.
        mask: [B, T], 1 (or True) at response tokens. Masked losses are never read, NaN included.
        name: one of `AGGREGATIONS`, or `RELEASED`.
        tokens: number of response tokens.
        sequences: number of non-empty responses.
        responses: number of responses, empty ones included.
        max_response_tokens: maximum response length, a constant of the run; T by default.
        weights: [B], weight of each token of a response, for `RELEASED` alone; by default those of a
            mini-batch of one micro-batch: token-mean.

    Returns:
        A scalar. The shares of all micro-batches and processes add up to the loss of the mini-batch; if
        gradients are averaged over W processes (DDP), multiply by W. It is 0 without any token.

    Raises:
        UserError: unknown name.
    """
    check_aggregation(name, of_run=True)
    mask = mask.bool()
    losses = per_token.masked_fill(~mask, 0.0)

    def count(of_mini_batch: Count | None, of_mask: Count) -> Tensor:
        number = of_mask if of_mini_batch is None else of_mini_batch
        return torch.as_tensor(number, device=losses.device).to(losses).clamp(min=1.0)

    if name == RELEASED and weights is not None:
        return (losses.sum(-1) * weights.to(losses)).sum()
    if name in ("token-mean", RELEASED):
        return losses.sum() / count(tokens, mask.sum())
    per_response = losses.sum(-1)
    if name == "seq-mean-token-sum-norm":
        longest = count(max_response_tokens, mask.shape[1])
        return per_response.sum() / (count(responses, mask.shape[0]) * longest)
    if name == "seq-mean-token-mean":
        per_response = per_response / mask.sum(-1).clamp(min=1)
    return per_response.sum() / count(sequences, mask.any(-1).sum())
