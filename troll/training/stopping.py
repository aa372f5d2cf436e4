"""Stopping on a signal, at the next rollout batch's end, with the state saved."""

from typing import Any

import torch
from accelerate import Accelerator
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from troll.common.errors import Stopped
from troll.common.signals import held_signal


class StopOnSignal(TrainerCallback):
    """Saves and stops where a rollout batch ends, once SIGUSR1 or SIGTERM waits; see `troll.common.signals`.

    A checkpoint inside of a rollout batch would have to hold its rollouts. Whoever sends the signal has to
    leave the time for the rest of the batch; a process that is killed earlier goes on from its last
    checkpoint.
    """

    def __init__(self, name: str, steps_per_batch: int, accelerator: Accelerator) -> None:
        self._name, self._steps_per_batch, self._accelerator = name, steps_per_batch, accelerator
        self._signal = 0
        self._step = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Stops before anything is sampled, if a signal came early."""
        self._step = state.global_step
        if self._asked():
            self.stop_if_asked()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Asks the trainer to save and to stop; not after the last step, which ends the run anyway."""
        if (
            state.global_step % self._steps_per_batch == 0
            and state.global_step < state.max_steps
            and self._asked()
        ):
            self._step = state.global_step
            control.should_save = control.should_training_stop = True

    def _asked(self) -> bool:
        number = torch.tensor(int(held_signal() or 0), device=self._accelerator.device)
        self._signal = int(self._accelerator.gather(number.unsqueeze(0)).max())
        return self._signal > 0

    def stop_if_asked(self) -> None:
        """Ends the run by `Stopped`, after `on_step_end` has stopped training."""
        if self._signal:
            raise Stopped(
                f"{self._name}: stopped by a signal after step {self._step}, whose state is saved; the same "
                "command goes on",
                self._signal,
            )
