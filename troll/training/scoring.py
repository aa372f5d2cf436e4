"""Log-probs of responses under the policy and the KL reference, without dropout."""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from troll.training.batches import widest
from troll.training.dropout import evaluating, sources_of_noise
from troll.training.policies import LOG_PROBS, OldPolicy
from troll.training.resumable import ResumableTrainer


class ScoringTrainer(ResumableTrainer):
    """TRL's trainer, but the old policy is scored with its distribution, and nothing with dropout."""

    old_policy: OldPolicy

    @cached_property
    def noise(self) -> str:
        """Sources of randomness in training passes, such as dropout; empty if there are none."""
        return sources_of_noise(self.model, self.args.neftune_noise_alpha)

    def _is_precise(self) -> bool:
        return self.model.dtype == torch.float32 and self.accelerator.mixed_precision == "no"

    @property
    def _reference_name(self) -> str:
        return "" if self.ref_model is None else str(self.model.config.name_or_path)

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        # TRL calls this for the old policy and for the reference; with PEFT both are the same model.
        if not (self.model.training or self.args.eval_loss or self.use_vllm):
            return torch.zeros(len(input_ids), logits_to_keep, device=input_ids.device), None, None
        prompt = input_ids.shape[1] - logits_to_keep
        batch_size = self._rows_at_once(prompt, logits_to_keep, batch_size)
        if model is self.model and self.old_policy.records:
            scores = self.old_policy.record(model, input_ids, attention_mask, logits_to_keep, batch_size)
            return scores, None, None
        if self.args.share_prompts:
            batch = (model, input_ids, attention_mask, logits_to_keep, batch_size)
            return self.old_policy.log_probs(*batch), None, None
        with evaluating(model):  # without dropout, as the old policy
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size=batch_size, **kwargs
            )

    def _rows_at_once(self, prompt: int, response: int, default: int | None) -> int | None:
        """Responses of a pass, from the columns of prompts and of responses."""
        budget = self.args.micro_batch_tokens
        if budget is None:
            return default
        group = self.num_generations if self.args.share_prompts and self.model.training else 1
        return max(1, budget // widest(prompt + group * response, self.accelerator)) * group

    def _score(self, inputs: dict[str, Any]) -> dict[str, Tensor]:
        """Scores a batch with the current policy as the old one; TRL only scores it where they may differ."""
        rows = self.args.per_device_train_batch_size
        widths = inputs["prompt_ids"].shape[1], inputs["completion_ids"].shape[1]
        return self.old_policy.score_batch(self.model, inputs, self._rows_at_once(*widths, rows))

    def _with_old_policy(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Adds the old policy to a batch that has none, because the new policy equals it."""
        return inputs if LOG_PROBS in inputs else inputs | self._score(inputs)
