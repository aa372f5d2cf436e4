"""Callbacks of the trainers: progress lines, metrics.jsonl, and stopping on a signal."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from troll.common.errors import NOT_FINITE, Stopped
from troll.common.files import read_json, write_json, write_text
from troll.common.progress import clock, say
from troll.common.signals import held_signal

METRICS = "metrics.json"

_RENAMED: Mapping[str, str] = {  # from TRL's log; its other metrics of completions are dropped
    "reward": "success",
    "trained_reward": "trained_success",
    "completions/mean_length": "response_length",
    "completions/clipped_ratio": "truncated",
    "frac_reward_zero_std": "groups_without_signal",
}
_DROPPED = ("cispo_clip_ratio", "epoch", "num_tokens", "reward_std", "step_time", "total_flos")
_DROPPED_PREFIXES = ("clip_ratio/", "profiling/", "rewards/")


class ProgressCallback(TrainerCallback):
    """Prints a progress line every ``seconds``: name, step, a metric, and the time left."""

    def __init__(self, name: str, measure: str, label: str, seconds: float = 5.0) -> None:
        self._name, self._measure, self._label, self._seconds = name, measure, label, seconds
        self._last = self._begun = 0.0
        self._first_step = 0
        self._shown = ""
        self._over = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Starts the clock."""
        self._begun = self._last = time.monotonic()
        self._first_step = state.global_step

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Prints a line if ``seconds`` have passed."""
        if logs and "train_runtime" in logs:
            return
        if logs and self._measure in logs and logs[self._measure] is not None:
            self._shown = f"{self._label} {float(logs[self._measure]):.3f}"
        now = time.monotonic()
        if not state.is_world_process_zero or not self._shown or self._over:
            return  # validation before the first or after the last step
        self._over = state.global_step >= state.max_steps
        if now - self._last < self._seconds and state.global_step < state.max_steps:
            return
        self._last = now
        done = state.global_step - self._first_step
        left = (now - self._begun) / max(done, 1) * (state.max_steps - state.global_step)
        where = f"step {state.global_step}/{state.max_steps}"
        say(f"[train] {self._name}: {where}, {self._shown}, {clock(left)} left")


class MetricsCallback(TrainerCallback):
    """Writes metrics.jsonl: one line per optimiser step.

    A resumed run restores the lines and the clock from the checkpoint.
    """

    def __init__(self, path: Path, steps_per_batch: int) -> None:
        self._path, self._steps_per_batch = path, steps_per_batch
        self.started_at = 0.0
        """When the run first began, in seconds since the epoch; an interruption does not change it."""
        self._begun = self._before = 0.0
        self._cpu_begun = self._cpu_before = 0.0
        self._lines = ""
        self._pending: dict[str, float] = {}

    @property
    def wall_s(self) -> float:
        """Seconds of training so far, including those before an interruption."""
        return self._before + time.monotonic() - self._begun

    @property
    def cpu_s(self) -> float:
        """CPU seconds of this process in training so far; independent of other load on the machine.

        Child processes count once they have ended; the sandbox of a code task does not count.
        """
        return self._cpu_before + _processor_seconds() - self._cpu_begun

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Creates the file, with the lines of the checkpoint if the run is resumed."""
        self._begun, self._cpu_begun = time.monotonic(), _processor_seconds()
        self.started_at = self.started_at or time.time()
        if state.is_world_process_zero:
            write_text(self._path, self._lines)

    def save(self, checkpoint: Path) -> None:
        """Saves the lines so far, and values pending for the next line, to a checkpoint's directory."""
        lines = self._path.read_text(encoding="utf-8")
        saved = {"lines": lines.splitlines(), "pending": self._pending, "started_at": self.started_at}
        write_json(checkpoint / METRICS, saved)

    def resume(self, checkpoint: Path) -> None:
        """Restores what `save` wrote; to be called before training."""
        saved = read_json(checkpoint / METRICS)
        self._lines, self._pending = "".join(f"{line}\n" for line in saved["lines"]), saved["pending"]
        self.started_at = float(saved.get("started_at", 0.0))
        times = json.loads(saved["lines"][-1])["time"]
        self._before, self._cpu_before = float(times["wall_s"]), float(times["cpu_s"])

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Appends the step's line; validation results go into the next line, or at the end into the last."""
        if not logs or "train_runtime" in logs or not state.is_world_process_zero:
            return
        if any(key.startswith("eval_") for key in logs):
            validation = {"validation_success": float(logs.get("eval_success", logs["eval_reward"]))}
            if "eval_success" in logs:
                validation["validation_reward"] = float(logs["eval_reward"])
            self.add_validation(validation, over=state.global_step >= state.max_steps)
            return
        row: dict[str, Any] = {}
        # A task with partial credit logs its success beside the mean reward; else they are the same.
        partial = "success" in logs
        renamed = {key: name for key, name in _RENAMED.items() if not (partial and key.endswith("reward"))}
        for key, value in logs.items():
            if value is None or key.startswith(_DROPPED_PREFIXES) or key in _DROPPED:
                continue
            if key in renamed or not key.startswith("completions/"):
                row[renamed.get(key, key)] = value
        self._append(state.global_step, row, {key: logs[key] for key in ("step_time",) if key in logs})
        self._pending = {}

    def add_validation(self, values: Mapping[str, float], *, over: bool) -> None:
        """Adds results of validation to the next line, or to the last one if training is ``over``."""
        if over:
            self._add_to_last(values)
        else:
            self._pending |= values

    def stopped_at(self, step: int) -> None:
        """Appends the line of a step whose loss was not finite, for which there is no log."""
        self._append(step, {NOT_FINITE: 1.0}, {})

    def _append(self, step: int, row: Mapping[str, Any], timings: Mapping[str, float]) -> None:
        line: dict[str, Any] = {"step": step, "rollout_batch": (step - 1) // self._steps_per_batch}
        line |= {**row, **self._pending}
        line["time"] = {"wall_s": round(self.wall_s, 3), "cpu_s": round(self.cpu_s, 3), **timings}
        with self._path.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(line) + "\n")

    def _add_to_last(self, values: Mapping[str, float]) -> None:
        *before, last = self._path.read_text(encoding="utf-8").splitlines()
        row = json.loads(last)
        row = {name: value for name, value in row.items() if name != "time"} | dict(values)
        row["time"] = json.loads(last)["time"]
        write_text(self._path, "".join(f"{line}\n" for line in [*before, json.dumps(row)]))


class StopOnSignal(TrainerCallback):
    """On SIGUSR1 or SIGTERM, saves and stops at the end of the rollout batch; see `troll.common.signals`.

    A checkpoint inside a rollout batch would have to contain its rollouts. The sender must allow enough time
    for the rest of the batch; a process that is killed earlier resumes from its last checkpoint.
    """

    def __init__(self, name: str, steps_per_batch: int, accelerator: Accelerator) -> None:
        self._name, self._steps_per_batch, self._accelerator = name, steps_per_batch, accelerator
        self._signal = 0
        self._step = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Stops before any sampling if a signal has already arrived."""
        self._step = state.global_step
        if self._signalled():
            self.stop_if_asked()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Requests saving and stopping, except after the last step."""
        if (
            state.global_step % self._steps_per_batch == 0
            and state.global_step < state.max_steps
            and self._signalled()
        ):
            self._step = state.global_step
            control.should_save = control.should_training_stop = True

    def _signalled(self) -> bool:
        number = torch.tensor(int(held_signal() or 0), device=self._accelerator.device)
        self._signal = int(self._accelerator.gather(number.unsqueeze(0)).max())
        return self._signal > 0

    def stop_if_asked(self) -> None:
        """Raises `Stopped` if `on_step_end` has stopped training."""
        if self._signal:
            raise Stopped(
                f"{self._name}: stopped by a signal after step {self._step}; the state is saved, and the "
                "same command resumes",
                self._signal,
            )


def _processor_seconds() -> float:
    return sum(os.times()[:4])
