"""PPO-ptx: adds the negative log-likelihood of demonstrations to the policy's loss."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from troll.common.errors import UserError
from troll.common.seeding import derive_seed
from troll.experiment.settings import Pretraining

IGNORED = -100


class PretrainingLoss:
    """Mean -log pi(token) of demonstrations, which are drawn for every micro-batch.

    Source: InstructGPT, arXiv 2203.02155 (PPO-ptx, weight 27.8). Log-probabilities are those of the policy at
    its sampling temperature.

    Args:
        rows: ``input_ids`` and ``labels`` of each demonstration; labels are -100 at tokens without a loss.

    Raises:
        UserError: there are no demonstrations.
    """

    def __init__(
        self,
        settings: Pretraining,
        rows: Sequence[Mapping[str, Sequence[int]]] | None,
        pad_token_id: int,
        seed: int,
    ) -> None:
        if not rows:
            raise UserError("the pretraining loss needs demonstrations, but pretraining_rows has none")
        self.coefficient, self._count = settings.coefficient, settings.demonstrations
        self._rows, self._pad, self._seed = rows, pad_token_id, seed

    def _draw(self, device: torch.device, **coordinates: int) -> tuple[Tensor, Tensor, Tensor]:
        """Token ids, attention mask and loss mask, [B, L] each, padded on the left."""
        seed = derive_seed(stream="pretraining", seed=self._seed, **coordinates)
        generator = torch.Generator().manual_seed(seed)
        drawn = [
            self._rows[int(i)] for i in torch.randint(len(self._rows), (self._count,), generator=generator)
        ]
        length = max(len(row["input_ids"]) for row in drawn)
        ids = torch.full((len(drawn), length), self._pad)
        attention, trained = torch.zeros_like(ids), torch.zeros_like(ids)
        for index, row in enumerate(drawn):
            start = length - len(row["input_ids"])
            ids[index, start:] = torch.tensor(row["input_ids"])
            attention[index, start:] = 1
            trained[index, start:] = (torch.tensor(row["labels"]) != IGNORED).long()
        return ids.to(device), attention.to(device), trained.to(device)

    def __call__(self, model: Any, device: torch.device, **coordinates: int) -> Tensor:
        """The loss of a batch, without the coefficient.

        The coordinates (optimiser step, micro-batch, process) seed the draw of the batch.
        """
        ids, attention, trained = self._draw(device, **coordinates)
        mask = trained[:, 1:]
        output = model(input_ids=ids, labels=ids, attention_mask=attention, mask=mask, sparse_lm_head=True)
        return -(output.log_probs * mask).sum() / mask.sum().clamp(min=1)
