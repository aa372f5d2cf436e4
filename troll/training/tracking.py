"""Logs metrics to a tracker: TensorBoard, Weights & Biases or trackio.

A tracker only repeats the lines of metrics.jsonl, under the same names. It does not affect a run's identity,
and nothing is read back from it.
"""

import importlib.util
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from troll.common.errors import UserError
from troll.experiment.run_config import RunConfig

TRACKERS = ("none", "tensorboard", "wandb", "trackio")
DIRECTORY = "tensorboard"


def check_tracking(name: str) -> None:
    """Rejects an unknown tracker, or one whose package is not installed."""
    if name not in TRACKERS:
        raise UserError(f"tracking: unknown name {name!r}; valid: {', '.join(TRACKERS)}")
    if name != "none" and importlib.util.find_spec(name) is None:
        raise UserError(f"tracking: {name} is not installed; pip install {name}, or set tracking: none")


def _new_tracker(name: str, config: RunConfig, out: Path) -> Any:
    """Creates and starts Accelerate's tracker of that name."""
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    if name == "tensorboard":
        tracker = LOGGER_TYPE_TO_CLASS[name](DIRECTORY, logging_dir=str(out))
    else:
        # One project per experiment; an interrupted run continues under its name.
        run_id = config.run_id.replace("/", "-")
        same = {"id": run_id} if name == "wandb" else {}
        tracker = LOGGER_TYPE_TO_CLASS[name](config.experiment, name=run_id, resume="allow", **same)
    try:
        tracker.start()
    except Exception as error:  # library-specific: no key, no network, no permission
        reason = str(error).strip().partition("\n")[0]
        advice = "; `wandb login`, or WANDB_MODE=offline" if name == "wandb" else ""
        raise UserError(f"tracking: {name} does not start ({reason}){advice}, or tracking: none") from None
    return tracker


class TrackingCallback(TrainerCallback):
    """Logs new lines of metrics.jsonl to a tracker; must be added after the callback that writes them."""

    def __init__(self, name: str, metrics: Path, config: RunConfig) -> None:
        check_tracking(name)
        self._name, self._metrics, self._config = name, metrics, config
        self._last = 0  # offset of the last logged line in the file
        self._repeated: Mapping[str, Any] = {}  # that line; validation may be added to a run's last line
        self._tracker: Any = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Starts the tracker; after an interruption, rewrites TensorBoard's files from the metrics."""
        if not state.is_world_process_zero:
            return
        if self._name == "tensorboard":
            shutil.rmtree(self._metrics.parent / DIRECTORY, ignore_errors=True)
        else:
            self._repeat(to_tracker=False)
        self._tracker = _new_tracker(self._name, self._config, self._metrics.parent)
        self._repeat()

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Logs new lines."""
        if self._tracker is not None:
            self._repeat()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Closes the tracker."""
        if self._tracker is not None:
            self._tracker.finish()

    def _repeat(self, to_tracker: bool = True) -> None:
        if not self._metrics.exists():
            return
        with self._metrics.open("rb") as lines:
            begin = lines.seek(self._last)
            for line in lines:
                row = json.loads(line)
                row |= {f"time/{key}": value for key, value in row.pop("time", {}).items()}
                repeated = self._repeated if row["step"] == self._repeated.get("step") else {}
                new = {key: value for key, value in row.items() if repeated.get(key) != value}
                if new and to_tracker:
                    new.pop("step", None)
                    self._tracker.log(new, step=row["step"])
                self._repeated, self._last, begin = row, begin, begin + len(line)
