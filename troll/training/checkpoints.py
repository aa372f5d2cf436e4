"""Checkpoints that a run can go on from: complete, verified, and only as many as are wanted.

A checkpoint is a directory that the trainer fills; ``complete.json``, written last, lists its files with
sizes and SHA-256. What has no such mark was interrupted while it was written; what differs from its mark is
damaged.
"""

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from troll.errors import UserError
from troll.files import read_json, write_json
from troll.progress import say
from troll.training.callbacks import MetricsCallback

COMPLETE = "complete.json"


class HasMethodState(Protocol):
    """A trainer with a state of its own beside model, optimiser and scheduler."""

    def method_state(self) -> dict[str, Any]:
        """Adaptive coefficients, running moments, certificate."""
        ...

    def load_method_state(self, state: Mapping[str, Any]) -> None:
        """Takes up what `method_state` gave."""
        ...


class CheckpointCallback(TrainerCallback):
    """Marks a checkpoint as complete, with what is needed to go on from it, and removes older ones.

    Args:
        config_digest: of the run's configuration; a checkpoint of another configuration is not resumed.
        holder: the trainer, whose ``method_state`` is saved and restored.
        metrics: the log to save and restore, if there is one; its callback must come first.
        keep: newest checkpoints that stay.
    """

    def __init__(
        self,
        config_digest: str,
        holder: HasMethodState,
        metrics: MetricsCallback | None = None,
        keep: int = 2,
    ) -> None:
        self._config_digest, self._holder = config_digest, holder
        self._metrics, self._keep = metrics, keep
        self._damaged: set[Path] = set()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Leaves the last step out: going on from there, transformers would take one step too many."""
        if state.global_step >= state.max_steps:
            control.should_save = False

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Writes the mark last, after everything is on disk, and only then removes what is too old."""
        if not state.is_world_process_zero:
            return
        directory = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        if self._metrics is not None:
            self._metrics.save(directory)
        mark = {
            "config": self._config_digest,
            "method": self._holder.method_state(),
            "files": _files(directory),
        }
        write_json(directory / COMPLETE, mark)
        self._damaged.discard(directory)
        kept = 0
        for path in _checkpoints(directory.parent):
            whole = self._mark(path) is not None and path not in self._damaged
            good = whole and step_of(path) <= state.global_step
            kept += good
            if not good or kept > self._keep:
                _remove(path)

    def newest(self, directory: Path) -> Path | None:
        """The newest complete and undamaged checkpoint of this configuration.

        Method and metrics are restored as they were then. Every process gets the same answer: the main one
        reads the files. What was interrupted while it was written is removed.
        """
        chosen = [self._find(directory) if PartialState().is_main_process else None]
        broadcast_object_list(chosen)
        path = chosen[0]
        if path is not None:
            self._holder.load_method_state(read_json(path / COMPLETE)["method"])
            if self._metrics is not None:
                self._metrics.resume(path)
        return path

    def _find(self, directory: Path) -> Path | None:
        for path in _checkpoints(directory):
            if not (path / COMPLETE).exists():
                _remove(path)
                continue
            mark = self._mark(path)
            if mark is None:
                say(f"{path}: of another configuration; not used")
                continue
            damage = _damage(path, mark["files"])
            if damage is None:
                return path
            self._damaged.add(path)
            say(f"warning: {path} is damaged ({damage}); looking for an older checkpoint")
        return None

    def _mark(self, path: Path) -> Any:
        """The checkpoint's mark; none if there is none, or it is of another configuration or version."""
        try:
            mark = read_json(path / COMPLETE)
        except UserError:
            return None
        return mark if mark.get("config") == self._config_digest and "files" in mark else None


def step_of(path: Path) -> int:
    """The optimiser step that a checkpoint was taken after."""
    return int(path.name.rpartition("-")[2])


def _checkpoints(directory: Path) -> list[Path]:
    """All checkpoints of a run, whole or not, newest first."""
    return sorted(directory.glob(f"{PREFIX_CHECKPOINT_DIR}-*"), key=step_of, reverse=True)


def _remove(path: Path) -> None:
    (path / COMPLETE).unlink(missing_ok=True)  # first: what is half removed must not look whole
    shutil.rmtree(path)


def _files(directory: Path) -> dict[str, dict[str, Any]]:
    """Size in bytes and SHA-256 of every file, by its path inside of the directory."""
    found = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path.name != COMPLETE:
            found[path.relative_to(directory).as_posix()] = {
                "bytes": path.stat().st_size,
                "sha256": _sha256(path),
            }
    return found


def _sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _damage(directory: Path, files: Mapping[str, Mapping[str, Any]]) -> str | None:
    """What is wrong with the files of a checkpoint, if anything is; sizes are looked at first."""
    for name, told in files.items():
        path = directory / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != told["bytes"]:
            return f"{name} has {path.stat().st_size} bytes instead of {told['bytes']}"
    changed = (name for name, told in files.items() if _sha256(directory / name) != told["sha256"])
    return next((f"the contents of {name} have changed" for name in changed), None)
