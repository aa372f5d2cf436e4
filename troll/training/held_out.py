"""Validation on named data sets during training: one greedy response to each test problem."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from troll.training.callbacks import MetricsCallback
from troll.training.rewards import RewardedTrainer

SUCCESS, REWARD = "validation_success/{name}", "validation_reward/{name}"
"""The metrics of a data set; the second only with partial credit."""


@dataclass(frozen=True)
class HeldOutSet:
    """The problems of a data set, as rows with ``prompt`` and ``task_id``, and their reward function."""

    rows: Sequence[Mapping[str, Any]]
    reward: Any  # as for `trl.GRPOTrainer`
    partial: bool = False  # whether the reward gives partial credit


class HeldOutCallback(TrainerCallback):
    """Measures the success on data sets before the first step, every ``steps`` steps and after the last step.

    Must be added after ``metrics``, which writes the results: those of a step into the line of the next one,
    or at the end into the last, as for the validation split.
    """

    def __init__(
        self, trainer: RewardedTrainer, metrics: MetricsCallback, sets: Mapping[str, HeldOutSet], steps: int
    ) -> None:
        self._trainer, self._metrics, self._sets, self._steps = trainer, metrics, sets, steps

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Validates the base model, unless the run is resumed."""
        if state.global_step == 0 and not control.should_training_stop:
            self._validate(state)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Validates after the log of a step, when the step's checkpoint has not been saved yet."""
        if not logs or "train_runtime" in logs or any(key.startswith("eval_") for key in logs):
            return
        if state.global_step % self._steps == 0 or state.global_step >= state.max_steps:
            self._validate(state)

    def _validate(self, state: TrainerState) -> None:
        found: dict[str, float] = {}
        for name, item in self._sets.items():
            success, reward = self._trainer.greedy_success(item.rows, item.reward)
            found[SUCCESS.format(name=name)] = success
            if item.partial:
                found[REWARD.format(name=name)] = reward
        if state.is_world_process_zero:
            self._metrics.add_validation(found, over=state.global_step >= state.max_steps)
