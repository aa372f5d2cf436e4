"""The old policy, which sampled: its log-probs and sparse distributions, from scoring to the loss."""

from collections.abc import Mapping
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from troll.algorithms.distributions import SparseLogProbs
from troll.algorithms.trust_regions import TokenPolicy
from troll.training.batches import OLD, loss_mask

LOG_PROBS = "old_per_token_logps"
"""TRL's name of the old policy's log-probs [B, T] in a rollout batch."""


class OldPolicy:
    """Scores responses by the policy as it is now, and owns what travels of it in a rollout batch.

    Args:
        accelerator: the trainer's.
        keep: K, tokens kept of each distribution.
        dropped_mass: mass that may be left to the tail.
    """

    def __init__(self, accelerator: Accelerator, keep: int, dropped_mass: float) -> None:
        self._accelerator, self._keep, self._dropped_mass = accelerator, keep, dropped_mass
        self._distribution: SparseLogProbs | None = None
        self.awaited = False
        """Whether TRL's next scoring by the policy, while it samples, is that of the old policy."""

    def expect(self, scored: bool) -> None:
        """Before TRL samples: whether it will score the responses by the policy that sampled them."""
        self._distribution, self.awaited = None, scored

    def score(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, length: int, chunk: int | None
    ) -> Tensor:
        """Log-probs [B, T] of the last T = ``length`` tokens; keeps their distributions for `collect`.

        The support of every distribution is chosen in the same forward pass that gives the log-probs.

        Args:
            model: with the sparse head of `troll.training.head`.
            input_ids: [B, L].
            attention_mask: [B, L].
            length: T.
            chunk: responses in one forward pass; none for all.
        """
        self.awaited = False
        log_probs, distributions = [], []
        size = chunk or len(input_ids)
        for start in range(0, len(input_ids), size):
            rows = slice(start, start + size)
            with self._accelerator.autocast():
                output = model(
                    input_ids=input_ids[rows],
                    attention_mask=attention_mask[rows],
                    mask=attention_mask[rows, -length:],
                    keep=self._keep,
                    dropped_mass=self._dropped_mass,
                    sparse_lm_head=True,
                )
            log_probs.append(output.log_probs)
            # They wait in main memory: K numbers for each token of a large rollout batch would fill a GPU.
            distributions.append(SparseLogProbs.from_batch(output).cpu())
        self._distribution = SparseLogProbs.cat(distributions)
        return torch.cat(log_probs)

    def collect(self) -> dict[str, Tensor]:
        """The distributions of the last scoring, as they travel in a rollout batch; empty without one."""
        distribution, self._distribution = self._distribution, None
        return {} if distribution is None else distribution.to_batch(OLD)

    @torch.no_grad()
    def score_batch(self, model: Any, inputs: Mapping[str, Any], chunk: int | None) -> dict[str, Tensor]:
        """Log-probs and distributions of a rollout batch's responses, as they travel in it."""
        log_probs = self.score(
            model,
            torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
            inputs["completion_ids"].shape[1],
            chunk,
        )
        return {LOG_PROBS: log_probs, **self.collect()}

    def read(self, inputs: Mapping[str, Any]) -> TokenPolicy:
        """What a rule may know of the old policy, from a (completed) batch."""
        distribution = SparseLogProbs.from_batch(inputs, OLD, inputs["completion_ids"].device)
        return TokenPolicy(inputs[LOG_PROBS], distribution, None)

    def mismatch(self, inputs: Mapping[str, Any]) -> dict[str, float]:
        """How far the log-probs of another engine, which sampled, are from the policy's: TRL's measures."""
        mask = loss_mask(inputs)
        apart = (inputs[LOG_PROBS] - inputs["sampling_per_token_logps"]).abs().where(mask.bool(), 0.0)
        totals = torch.stack([apart.sum(), mask.sum().to(apart)])
        total, tokens = self._accelerator.reduce(totals, "sum").tolist()
        largest = float(self._accelerator.gather(apart.max().unsqueeze(0)).max())
        name = "sampling/sampling_logp_difference"
        return {f"{name}/mean": total / max(tokens, 1), f"{name}/max": largest}
