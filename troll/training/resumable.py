"""Saving and restoring the state of a trust region's trainer in checkpoints.

In addition to TRL's files a checkpoint contains `STATE`: adaptive coefficients, running moments, the
constraint check, and pending log values. A checkpoint inside a rollout batch also contains the batch, in one
file per process. Critic, policy lag and a synchronised reference model have separate files.
"""

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, has_length

from troll.algorithms.advantages import Estimator
from troll.algorithms.trust_regions import ConstraintCheck
from troll.common.errors import UserError
from troll.common.files import atomic_path, read_json, write_json
from troll.common.progress import say
from troll.training.critic import Critic
from troll.training.dynamic_sampling import BatchNotFilledError
from troll.training.reference_kl import ReferenceKL
from troll.training.rewards import RewardedTrainer

STATE = "method_state.json"
ROLLOUTS = "rollouts_{process}.pt"
REFERENCE = "reference.pt"
_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


class ResumableTrainer(RewardedTrainer):
    """TRL's trainer with checkpoints of the method's state; `TrustRegionTrainer` sets the components."""

    control: Any  # transformers'
    estimator: Estimator | None
    constraint_check: ConstraintCheck
    reference_kl: ReferenceKL | None
    critic: Critic | None

    def _stateful(self) -> dict[str, Any]:
        parts = {
            "trust_region": self.trust_region,
            "estimator": self.estimator,
            "constraint_check": self.constraint_check,
            "controller": self.reference_kl,
        }
        return {name: part for name, part in parts.items() if part is not None}

    def _names(self) -> dict[str, str]:
        return {name: part.name for name, part in self._stateful().items() if hasattr(part, "name")}

    def method_state(self) -> dict[str, Any]:
        """State needed to resume besides model, optimiser and scheduler, as plain data."""
        states = {name: part.state_dict() for name, part in self._stateful().items()}
        return states | {"names": self._names(), "generated_samples": self.generated_samples}

    def load_method_state(self, state: Mapping[str, Any]) -> list[str]:
        """Restores a state of `method_state`.

        Returns the stateful components that are missing in it, or that it has for another rule; they are
        unchanged.
        """
        names, missing = state.get("names", {}), []
        for part, holder in self._stateful().items():
            name = getattr(holder, "name", None)
            if part in state and names.get(part, name) == name:
                holder.load_state_dict(state[part])
            elif holder.state_dict():
                missing.append(part.replace("_", " ") + (f" {name!r}" if name else ""))
        if "generated_samples" in state:
            self.generated_samples = int(state["generated_samples"])
        else:
            missing.append("count of generated samples")
        return missing

    def begin_run(self) -> None:
        """Resets what belongs to one call of `train`.

        A second call counts steps from 0 again, but continues with the weights and, as in transformers, with
        the optimiser; what adapts to the training (coefficients, running moments) continues with them.
        """
        self.policy_lag.begin_run()
        self.constraint_check = ConstraintCheck(self.constraint_check.thresholds)
        self.generated_samples = 0

    # Saving

    def _begin_step(self, generation_batches: list[Any]) -> None:
        """If dynamic sampling fails, saves the state from before the step, unless it is the first step."""
        buffered, state = self._buffered_inputs, self.method_state()
        try:
            super()._begin_step(generation_batches)
        except BatchNotFilledError:
            self._buffered_inputs = buffered
            self.load_method_state(state | {"generated_samples": self.generated_samples})
            if self.state.global_step:
                self._save_checkpoint(self.model, trial=None)
                self.control = self.callback_handler.on_save(self.args, self.state, self.control)
            raise

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        directory = Path(self._get_output_dir(trial=trial)) / name
        try:
            super()._save_checkpoint(model, trial)
        except Exception:
            if self.accelerator.is_main_process:
                shutil.rmtree(directory, ignore_errors=True)  # frees disk space, which may have run out
            raise
        self.accelerator.wait_for_everyone()  # before the checkpoint is marked as complete

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Also saves the method's state: before uploads, and not with ``save_only_model``."""
        super()._save_optimizer_and_scheduler(output_dir)
        directory = Path(output_dir)
        directory.mkdir(parents=True, exist_ok=True)  # the main process may not have created it yet
        self.policy_lag.save(directory)
        if self.critic is not None:
            self.critic.save(directory)
        if self.args.sync_ref_model:
            reference = get_model_state_dict(self.ref_model, options=_WHOLE)
            if self.accelerator.is_main_process:
                _save(reference, directory / REFERENCE)
        if self._step % self._generate_every:
            rest = {"cut": self._cut(), "inputs": self._buffered_inputs}
            _save(rest, directory / ROLLOUTS.format(process=self.accelerator.process_index))
        if self.args.should_save:
            pending = {
                name: [v for v in values if math.isfinite(v)]
                for name, values in self._metrics["train"].items()
            }
            write_json(directory / STATE, self.method_state() | {"metrics": pending})

    def _cut(self) -> dict[str, int]:
        """The options that split a rollout batch; saved rollouts only fit a run with the same values."""
        args = self.args
        return {
            "processes": self.accelerator.num_processes,
            "per_device_train_batch_size": args.per_device_train_batch_size,
            "gradient_accumulation_steps": args.gradient_accumulation_steps,
            "steps_per_generation": args.steps_per_generation,
            "num_iterations": self.num_iterations,
        }

    # Loading

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, checkpoint: Any) -> Any:
        prepared = super()._prepare_for_training(max_steps, train_dataloader, checkpoint)
        if self.critic is not None:
            self.critic.prepare()
        self.begin_run()
        self._step, self._buffered_inputs = self._micro_batches_done(train_dataloader), None
        if checkpoint is not None:
            self._load(Path(checkpoint))
        return prepared

    def _micro_batches_done(self, dataloader: Any) -> int:
        """Number of micro-batches before the next step; the last step of an epoch may have fewer."""
        step, parts = self.state.global_step, self.args.gradient_accumulation_steps
        if not has_length(dataloader):
            return int(step * parts)
        of_epoch = len(dataloader)
        epochs, steps = divmod(step, -(-of_epoch // parts))
        return int(epochs * of_epoch + steps * parts)

    def _load(self, directory: Path) -> None:
        self.policy_lag.load(directory)
        if self.critic is not None:
            self.critic.load(directory)
        missing = self._load_state(directory)
        if self.args.sync_ref_model and not self._load_reference(directory):
            missing.append("reference model")
        if self._step % self._generate_every and not self._load_rollouts(directory):
            missing.append("rollout batch at hand")
        if missing and self.accelerator.is_main_process:
            say(
                f"warning: {directory}: a checkpoint of another trainer, configuration or version; it "
                f"lacks the following, which begins anew: {', '.join(missing)}"
            )

    def _load_state(self, directory: Path) -> list[str]:
        """Restores the state that the main process reads in all processes; returns what is missing."""
        read = [_read_state(directory) if self.accelerator.is_main_process else None]
        state = broadcast_object_list(read)[0]
        if isinstance(state, UserError):
            raise state
        try:
            for name, values in state.get("metrics", {}).items():
                self._metrics["train"][name] = list(values)
            return self.load_method_state(state)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{directory / STATE}: invalid state ({error!r}); resume an older checkpoint"
            ) from None

    def _load_reference(self, directory: Path) -> bool:
        if not (directory / REFERENCE).exists():
            return False
        weights = torch.load(directory / REFERENCE, map_location="cpu", weights_only=True)
        set_model_state_dict(self.ref_model, weights, options=_WHOLE)
        return True

    def _load_rollouts(self, directory: Path) -> bool:
        """Restores the rollout batch; returns whether every process has its part of it."""
        path, device = directory / ROLLOUTS.format(process=self.accelerator.process_index), self.args.device
        rest = None
        if path.exists():
            # Tensors from main memory stay there; others go to this device, whose index may have changed.
            def place(storage: Any, location: str) -> Any:
                return storage if location == "cpu" else storage.to(device=device)

            rest = torch.load(path, map_location=place, weights_only=True)
        usable = rest is not None and rest["cut"] == self._cut()
        if not int(self.accelerator.gather(torch.tensor([int(usable)], device=device)).min()):
            return False
        assert rest is not None
        self._buffered_inputs = rest["inputs"]
        return True


def _read_state(directory: Path) -> Any:
    """The state in a checkpoint, empty if it has none; or the error, to be raised in all processes."""
    try:
        return read_json(directory / STATE) if (directory / STATE).exists() else {}
    except UserError as error:
        return error


def _save(value: Any, path: Path) -> None:
    with atomic_path(path) as temporary:
        torch.save(value, temporary)
