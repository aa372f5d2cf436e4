"""The old and the new policy of a batch, in the form that trust regions compare."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from troll.algorithms.distributions import BATCH_PADDING, SparseLogProbs, align, constant_tail
from troll.algorithms.trust_regions import TokenPolicy
from troll.training.batches import OLD, loss_mask
from troll.training.config import TrustRegionConfig
from troll.training.dropout import evaluating
from troll.training.head import SELECTED

LOG_PROBS = "old_per_token_logps"
"""TRL's name for the old policy's log-probs [B, T] in a rollout batch."""


_WIDE = 4096
"""Vocabulary size above which the fraction of full supports is logged. K tokens are a large part of a smaller
vocabulary, and the metrics of its recorded runs stay the same."""


class OldPolicy:
    """Scores responses with the current policy, to be stored in a rollout batch as the old policy.

    Args:
        vocabulary: vocabulary size V of the model.
    """

    def __init__(self, args: TrustRegionConfig, vocabulary: int, accelerator: Accelerator) -> None:
        self._support_size, self._dropped_mass = args.keep, args.dropped_mass
        self._wide, self._accelerator = vocabulary > _WIDE, accelerator
        self._recorded: dict[str, Tensor] | None = None

    @contextmanager
    def recording(self, scored: bool) -> Iterator[dict[str, Tensor]]:
        """Context in which TRL samples; if ``scored``, its first scoring by the policy is recorded.

        Yields a dictionary that `record` fills with the distributions' tensors for the rollout batch.
        """
        recorded: dict[str, Tensor] = {}
        self._recorded = recorded if scored else None
        try:
            yield recorded
        finally:
            self._recorded = None

    @property
    def records(self) -> bool:
        """Whether the next scoring by the policy is to be recorded."""
        return self._recorded is not None

    def record(self, *batch: Any) -> Tensor:
        """As `score`, but returns only the log-probs and passes the distributions to `recording`."""
        assert self._recorded is not None
        log_probs, distribution = self.score(*batch)
        self._recorded |= distribution.to_batch(OLD)
        self._recorded = None
        return log_probs

    def score(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, length: int, chunk: int | None
    ) -> tuple[Tensor, SparseLogProbs]:
        """Log-probs [B, T] of the last T = ``length`` tokens of ids [B, L], and their distributions.

        The support of every distribution is chosen in the forward pass that computes the log-probs. Dropout
        is off: the log-probs are those of the policy and not of a random part of it. ``chunk`` is the number
        of responses per forward pass; None for all.
        """
        log_probs, distributions = [], []
        support = {"support_size": self._support_size, "dropped_mass": self._dropped_mass}
        for output in self._passes(model, input_ids, attention_mask, length, chunk, **support):
            log_probs.append(output.log_probs)
            # Kept in main memory: K numbers per token of a large rollout batch would fill a GPU.
            distributions.append(SparseLogProbs.from_batch(output).cpu())
        return torch.cat(log_probs), SparseLogProbs.cat(distributions)

    @torch.no_grad()
    def log_probs(self, *batch: Any) -> Tensor:
        """As `score`, but only the log-probs, and without recording: for the KL reference."""
        return torch.cat([output.log_probs for output in self._passes(*batch)])

    def _passes(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        length: int,
        chunk: int | None,
        **support: Any,
    ) -> Iterator[Any]:
        """Outputs of the sparse head for ``chunk`` responses at a time; see `score`."""
        for start in range(0, len(input_ids), size := chunk or len(input_ids)):
            rows = slice(start, start + size)
            with self._accelerator.autocast(), evaluating(model):
                output = model(
                    input_ids=input_ids[rows],
                    labels=input_ids[rows],
                    attention_mask=attention_mask[rows],
                    mask=attention_mask[rows, -length:],
                    sparse_lm_head=True,
                    **support,
                )
            yield output

    @torch.no_grad()
    def score_batch(self, model: Any, inputs: Mapping[str, Any], chunk: int | None) -> dict[str, Tensor]:
        """Log-probs and distributions of a rollout batch's responses, as tensors for the batch."""
        log_probs, distribution = self.score(
            model,
            torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
            inputs["completion_ids"].shape[1],
            chunk,
        )
        return {LOG_PROBS: log_probs, **distribution.to_batch(OLD)}

    def read(self, inputs: Mapping[str, Any]) -> TokenPolicy | None:
        """The old policy that is stored in a batch; None if the new policy equals it, as in TRL."""
        if LOG_PROBS not in inputs:
            return None
        distribution = SparseLogProbs.from_batch(inputs, OLD, inputs["completion_ids"].device)
        return TokenPolicy(inputs[LOG_PROBS], distribution, None)

    def fullness(self, kept: Tensor) -> dict[str, Tensor]:
        """For large vocabularies, the metric whether the number ``kept`` [B, T] of kept tokens is K."""
        return {"support_full": kept >= self._support_size} if self._wide else {}

    def mismatch(self, inputs: Mapping[str, Any]) -> dict[str, float]:
        """TRL's measures of the difference between the sampling engine's and the policy's log-probs."""
        mask = loss_mask(inputs)
        difference = (inputs[LOG_PROBS] - inputs["sampling_per_token_logps"]).abs().where(mask.bool(), 0.0)
        totals = torch.stack([difference.sum(), mask.sum().to(difference)])
        total, tokens = self._accelerator.reduce(totals, "sum").tolist()
        largest = float(self._accelerator.gather(difference.max().unsqueeze(0)).max())
        name = "sampling/sampling_logp_difference"
        return {f"{name}/mean": total / max(tokens, 1), f"{name}/max": largest}


def without_old_policy(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The batch without its old policy."""
    stored = {LOG_PROBS, *(OLD + name for name in BATCH_PADDING)}
    return {name: value for name, value in inputs.items() if name not in stored}


@dataclass(frozen=True)
class NewPolicy:
    """Evaluates the policy being trained at the response tokens, and optionally the loss of its experts."""

    args: TrustRegionConfig
    accelerator: Accelerator
    experts: bool

    def read(
        self, model: Any, inputs: Mapping[str, Any], old: TokenPolicy | None
    ) -> tuple[TokenPolicy, TokenPolicy, Tensor | None]:
        """The policy, the old policy and the auxiliary loss of its experts.

        With the pooled tail, its distribution is evaluated on the old policy's support; with the constant
        tail, the policy selects its own support. Without an old policy, which then equals the new one, it is
        that of the same pass, and so of the same dropout: the pass that selected the support.
        """
        mask, args = inputs["completion_mask"], self.args
        ids, pooled = (
            torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
            args.tail == "pooled",
        )
        selection: dict[str, Any] = {"support_size": args.keep, "dropped_mass": args.dropped_mass}
        if pooled and old is not None:
            assert old.distribution is not None
            selection = {"support": old.distribution.token_ids}
        with self.accelerator.autocast():
            output = model(
                input_ids=ids,
                labels=ids,
                attention_mask=torch.cat([inputs["prompt_mask"], mask], dim=1),
                mask=mask,
                sparse_lm_head=True,
                second_pass=pooled,
                **selection,
                **({"output_router_logits": True} if self.experts else {}),
            )
        distribution = SparseLogProbs.from_batch(output)
        policy = TokenPolicy(output.log_probs, distribution, output.entropy, inputs["completion_ids"])
        if old is None and output.selected_log_probs is None:
            old = policy
        elif old is None:
            old = TokenPolicy(output.selected_log_probs, SparseLogProbs.from_batch(output, SELECTED))
        return policy, old, output.aux_loss

    def compared(self, model: Any, new: TokenPolicy, old: TokenPolicy) -> tuple[TokenPolicy, TokenPolicy]:
        """Both policies on the same tokens.

        With the constant tail these are the tokens that either policy keeps; a token that a policy has
        dropped gets the paper's constant.
        """
        if self.args.tail == "pooled":
            return new, old
        assert new.distribution is not None and old.distribution is not None
        vocabulary = self.accelerator.unwrap_model(model).get_output_embeddings().weight.shape[0]
        aligned_new, aligned_old = align(
            constant_tail(new.distribution, vocabulary),
            constant_tail(old.distribution, vocabulary),
            missing="default",
        )
        return replace(new, distribution=aligned_new), replace(old, distribution=aligned_old)
