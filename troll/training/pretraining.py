"""PPO-ptx: the likelihood of demonstrations beside the policy's loss."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from troll.common.errors import UserError
from troll.common.seeding import derive_seed
from troll.experiment.settings import Pretraining

IGNORED = -100


class PretrainingLoss:
    """Mean -log pi(token) of demonstrations, drawn anew for every micro-batch.

    Source: InstructGPT, arXiv 2203.02155 (PPO-ptx, weight 27.8). Log-probabilities are those of the policy at
    its sampling temperature.

    Args:
        rows: ``input_ids`` and ``labels`` of each demonstration, -100 where a token is not learnt.

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
            raise UserError("the pretraining loss needs demonstrations, and there are none")
        self.coefficient, self._count = settings.coefficient, settings.demonstrations
        self._rows, self._pad, self._seed = rows, pad_token_id, seed

    def _draw(self, device: torch.device, **coordinates: int) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, attention mask and mask of the tokens to learn, [B, L] each, padded on the left."""
        seed = derive_seed(stream="pretraining", seed=self._seed, **coordinates)
        generator = torch.Generator().manual_seed(seed)
        drawn = [
            self._rows[int(i)] for i in torch.randint(len(self._rows), (self._count,), generator=generator)
        ]
        length = max(len(row["input_ids"]) for row in drawn)
        ids = torch.full((len(drawn), length), self._pad)
        attention, learnt = torch.zeros_like(ids), torch.zeros_like(ids)
        for index, row in enumerate(drawn):
            start = length - len(row["input_ids"])
            ids[index, start:] = torch.tensor(row["input_ids"])
            attention[index, start:] = 1
            learnt[index, start:] = (torch.tensor(row["labels"]) != IGNORED).long()
        return ids.to(device), attention.to(device), learnt.to(device)

    def __call__(self, model: Any, device: torch.device, **coordinates: int) -> Tensor:
        """The loss of a batch, without its coefficient.

        Coordinates name the draw: the optimiser step, the micro-batch, the process.
        """
        ids, attention, learnt = self._draw(device, **coordinates)
        mask = learnt[:, 1:]
        output = model(input_ids=ids, attention_mask=attention, mask=mask, sparse_lm_head=True)
        return -(output.log_probs * mask).sum() / mask.sum().clamp(min=1)
