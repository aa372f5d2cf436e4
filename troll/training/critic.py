"""The critic of GAE and PPO-max: a value model with a separate optimiser.

It starts from a copy of the policy's backbone with a zero-initialised scalar head, so its initial values are
0 instead of noise. V_t is the value of the prompt and the response tokens before t, computed at the position
from which the policy predicts token t.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import is_peft_model
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from troll.algorithms.aggregation import aggregate
from troll.common.errors import NotFinite, UserError
from troll.common.files import atomic_path
from troll.common.models import text_config
from troll.experiment.settings import Critic as CriticSettings
from troll.training.batches import widest

FILE = "critic.pt"
_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


class ValueModel(nn.Module):
    """A transformers backbone without its language-model head, and a scalar head.

    The backbone is a copy of the policy's. If it has PEFT adapters, only the copied adapters and the head are
    trained.
    """

    def __init__(self, policy: Any) -> None:
        super().__init__()
        if is_peft_model(policy):
            self.backbone = copy.deepcopy(policy.get_base_model().base_model)
        else:
            self.backbone = copy.deepcopy(policy.base_model).requires_grad_(True)
        weight = policy.get_output_embeddings().weight
        self.head = nn.Linear(text_config(policy.config).hidden_size, 1)
        self.head.to(device=weight.device, dtype=weight.dtype)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, length: int) -> Tensor:
        """Values [B, T] of the states before each of the last T = ``length`` tokens of ids [B, L].

        Prompts are padded on the left, responses on the right.
        """
        output = self.backbone(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
        hidden = output.last_hidden_state[:, -length - 1 : -1]
        values: Tensor = self.head(hidden).squeeze(-1).float()
        return values


def enable_checkpointing(model: Any) -> None:
    """Makes a transformers model recompute its activations in the backward pass."""
    enable = getattr(model, "activation_checkpointing_enable", None)  # its new name in transformers 5.24
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, clip: float | None
) -> tuple[Tensor, Tensor]:
    """0.5 max((V - R)^2, (clip(V, V_old +- c) - R)^2) for each token, and where clipping cuts the gradient.

    All tensors are [B, T]; ``clip`` is c, or None for the plain squared error. Source: verl, core_algos.py
    (compute_value_loss), c = 0.5; PPO-max uses c = 0.2.
    """
    plain = (values - returns).square()
    if clip is None:
        return 0.5 * plain, torch.zeros_like(plain, dtype=torch.bool)
    change = values - old_values
    clipped = (old_values + change.clamp(-clip, clip) - returns).square()
    # Within the limit both are equal up to rounding, which must not count as clipped.
    return 0.5 * torch.maximum(plain, clipped), (change.abs() > clip) & (clipped > plain)


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> float:
    """1 - Var(R - V) / Var(R) over the tokens of mask [B, T]; NaN if all returns are equal."""
    on = mask.bool()
    kept_values, kept_returns = values[on].double(), returns[on].double()
    if not len(kept_returns):
        return torch.nan
    variance = kept_returns.var(correction=0)
    return float(1 - (kept_returns - kept_values).var(correction=0) / variance) if variance > 0 else torch.nan


class Critic:
    """Computes values of a rollout batch, and trains the value model on its mini-batches.

    The policy must not be wrapped yet (DDP, FSDP). A forward pass of `values` takes ``chunk`` responses or,
    if a ``budget`` is given, at most that many tokens, padding included. With ``checkpointing``, activations
    are recomputed in the backward pass.
    """

    def __init__(
        self,
        policy: Any,
        settings: CriticSettings,
        accelerator: Accelerator,
        chunk: int,
        budget: int | None = None,
        checkpointing: bool = False,
    ) -> None:
        self.settings, self._accelerator = settings, accelerator
        self._chunk, self._budget = chunk, budget
        self.model: Any = ValueModel(policy)
        # The copy does not inherit it: the training loop enables it for the policy later, when it starts.
        if checkpointing:
            enable_checkpointing(self.model.backbone)
        self.optimizer: Any = self._new_optimizer()
        self._prepared = False
        self._scaler: Any = None
        self._optimizers: list[Any] = []
        self._loss = self._clipped = torch.zeros(())

    def prepare(self) -> None:
        """Wraps and shards model and optimiser with accelerate, like the policy; only once."""
        if self._prepared:
            return
        accelerator = self._accelerator
        with self._own_scaler():
            if accelerator.is_fsdp2:  # accelerate moves the optimiser to the sharded weights
                self.model, self.optimizer = accelerator.prepare(self.model, self.optimizer)
            else:
                self.model = accelerator.prepare(self.model)
                self.optimizer = accelerator.prepare(self._new_optimizer())
        self._prepared = True

    @contextmanager
    def _own_scaler(self) -> Iterator[None]:
        """Context in which accelerate has the critic's optimiser and, for fp16, its gradient scaler.

        With one scaler, accelerate would unscale the gradients of the policy whenever those of the critic are
        clipped, and again when they are clipped themselves.
        """
        accelerator = self._accelerator
        if accelerator.scaler is None:
            yield
            return
        kept = accelerator.scaler, accelerator._optimizers
        self._scaler = self._scaler or copy.deepcopy(accelerator.scaler)
        accelerator.scaler, accelerator._optimizers = self._scaler, self._optimizers
        try:
            yield
        finally:
            accelerator.scaler, accelerator._optimizers = kept

    def _new_optimizer(self) -> torch.optim.AdamW:
        rate, decay = self.settings.learning_rate, self.settings.weight_decay
        trainable = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        return torch.optim.AdamW(trainable, lr=rate, weight_decay=decay)

    def _forward(self, inputs: Mapping[str, Tensor], rows: slice) -> Tensor:
        with self._accelerator.autocast():
            return self.model(
                torch.cat([inputs["prompt_ids"][rows], inputs["completion_ids"][rows]], dim=1),
                torch.cat([inputs["prompt_mask"][rows], inputs["completion_mask"][rows]], dim=1),
                inputs["completion_ids"].shape[1],
            )

    @torch.no_grad()
    def values(self, inputs: Mapping[str, Tensor], mask: Tensor) -> Tensor:
        """Values [B, T] at the response tokens, 0 elsewhere; raises `NotFinite` if one is not finite."""
        self.model.eval()
        length = inputs["prompt_ids"].shape[1] + inputs["completion_ids"].shape[1]
        chunk = self._chunk
        if self._budget is not None:
            chunk = max(1, self._budget // widest(length, self._accelerator))
        parts = [self._forward(inputs, slice(start, start + chunk)) for start in range(0, len(mask), chunk)]
        # Values at padded positions, even NaN, do not matter because the mask is 0 there.
        values = torch.where(mask.bool(), torch.cat(parts), 0.0) * mask
        if not torch.isfinite(values).all():
            raise NotFinite(
                "the critic's values are not finite; training stopped, the last checkpoint is intact. A "
                "smaller critic.learning_rate may help"
            )
        return values

    def update(self, inputs: Mapping[str, Tensor], mask: Tensor, *, last: bool = True) -> dict[str, float]:
        """Trains on a micro-batch; takes an optimiser step after the ``last`` one of a mini-batch.

        Inputs are those of `values`, with ``values`` and ``returns`` [B, T] and the step's ``step_tokens``.
        After the last micro-batch, returns mean loss, fraction of clipped tokens and gradient norm, else
        nothing. Raises `NotFinite`.
        """
        accelerator, mask = self._accelerator, mask.float()
        self.model.train()
        with nullcontext() if last else accelerator.no_sync(self.model):
            values = self._forward(inputs, slice(None))
            losses, clipped = value_loss(
                values, inputs["values"], inputs["returns"], self.settings.value_clip
            )
            loss = aggregate(losses, mask, "token-mean", tokens=inputs["step_tokens"])
            if not torch.isfinite(loss):
                raise NotFinite(
                    f"the critic's loss is {loss.item()}; training stopped, the last checkpoint is intact. A "
                    "smaller critic.learning_rate may help"
                )
            # DDP averages gradients over processes, but the token count already includes all processes.
            with self._own_scaler():
                accelerator.backward(loss * accelerator.num_processes)
        self._loss = self._loss.to(loss.device) + loss.detach()
        share = (clipped * mask).sum() / inputs["step_tokens"].clamp(min=1)
        self._clipped = self._clipped.to(loss.device) + share
        if not last:
            return {}
        with self._own_scaler():
            norm = accelerator.clip_grad_norm_(self.model.parameters(), self.settings.gradient_clipping)
            self.optimizer.step()
        self.optimizer.zero_grad()
        sums = accelerator.reduce(torch.stack([self._loss.double(), self._clipped.double()]), "sum")
        self._loss, self._clipped = torch.zeros_like(self._loss), torch.zeros_like(self._clipped)
        total, outside = sums.tolist()
        return {"critic/loss": total, "critic/clipped": outside, "critic/grad_norm": float(norm)}

    def begin_run(self) -> None:
        """Drops the part of an optimiser step that an earlier run was interrupted in."""
        self.model.zero_grad()  # accelerate's optimiser would ignore it inside a step
        self._loss, self._clipped = torch.zeros_like(self._loss), torch.zeros_like(self._clipped)

    def _bare_optimizer(self) -> Any:
        return getattr(self.optimizer, "optimizer", self.optimizer)

    def save(self, directory: Path) -> None:
        """Writes weights, optimiser state and the scale of fp16 to ``critic.pt``; called by all processes."""
        model, optimizer = get_state_dict(self.model, self._bare_optimizer(), options=_WHOLE)
        if self._accelerator.is_main_process:
            with atomic_path(directory / FILE) as temporary:
                scaler = {} if self._scaler is None else {"scaler": self._scaler.state_dict()}
                torch.save({"model": model, "optimizer": optimizer, **scaler}, temporary)
        self._accelerator.wait_for_everyone()

    def load(self, directory: Path) -> None:
        """Restores what `save` wrote; rejects a checkpoint without a critic."""
        path = directory / FILE
        if not path.exists():
            raise UserError(f"{path}: no such file; the checkpoint is not from a run with a critic")
        state = torch.load(path, map_location="cpu", weights_only=True)
        set_state_dict(
            self.model,
            self._bare_optimizer(),
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=_WHOLE,
        )
        if self._scaler is not None and "scaler" in state:
            self._scaler.load_state_dict(state["scaler"])
