"""Checkpoints for resuming a run: complete, verified, and limited in number.

A checkpoint is a directory written by the trainer; ``complete.json``, written last, lists its files with
sizes and SHA-256. A checkpoint without it is incomplete; one whose files differ from it is damaged.
"""

import re
import shutil
from pathlib import Path
from typing import Any, NotRequired

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from pydantic import TypeAdapter, ValidationError
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from typing_extensions import TypedDict

from troll.common.digests import Facts, damage, digest_of_json, facts_of
from troll.common.errors import UserError
from troll.common.files import read_json, write_json
from troll.common.models import text_config
from troll.common.progress import say
from troll.training.callbacks import MetricsCallback

COMPLETE = "complete.json"
_NAME = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-[0-9]+")


class _Mark(TypedDict):
    """Contents of `COMPLETE`."""

    config: str
    method: NotRequired[dict[str, Any]]  # until 0.2; read by `troll.training.resumable`
    files: Facts
    itself: str


_MARK = TypeAdapter(_Mark)


class CheckpointCallback(TrainerCallback):
    """Adds the metrics so far to a checkpoint, marks it as complete, and keeps the ``keep`` newest.

    Checkpoints with another ``config_digest`` are not resumed. The ``metrics`` callback must be added first.
    """

    def __init__(
        self,
        config_digest: str,
        metrics: MetricsCallback | None = None,
        keep: int = 2,
    ) -> None:
        self._config_digest, self._metrics, self._keep = config_digest, metrics, keep
        self._damaged: set[Path] = set()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Skips the last step: on resuming from it, transformers would take one step too many."""
        if state.global_step >= state.max_steps:
            control.should_save = False

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Writes the mark after everything is on disk, and then removes old checkpoints."""
        if not state.is_world_process_zero:
            return
        directory = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        if self._metrics is not None:
            self._metrics.save(directory)
        mark = {"config": self._config_digest, "files": facts_of(directory, [COMPLETE])}
        write_json(directory / COMPLETE, mark | {"itself": digest_of_json(mark)})
        self._damaged.discard(directory)
        kept = 0
        for path in _checkpoints(directory.parent):
            other = self._mark(path)
            ours = other is not None and other["config"] == self._config_digest
            good = ours and path not in self._damaged and step_of(path) <= state.global_step
            kept += good
            if not good or kept > self._keep:
                _remove(path)

    def newest(self, directory: Path) -> Path | None:
        """Returns the newest complete and undamaged checkpoint of this configuration.

        Restores the metrics from it; the trainer restores all other state. The main process reads the files
        and broadcasts the result. Incomplete checkpoints are removed.
        """
        chosen = [self._find(directory) if PartialState().is_main_process else None]
        broadcast_object_list(chosen)
        path = chosen[0]
        if path is not None and self._metrics is not None:
            self._metrics.resume(path)
        return path

    def _find(self, directory: Path) -> Path | None:
        for path in _checkpoints(directory):
            if not (path / COMPLETE).exists():
                _remove(path)
                continue
            mark = self._mark(path)
            if mark is not None and mark["config"] != self._config_digest:
                say(f"{path}: checkpoint of another configuration; not used")
                continue
            changed = f"the contents of {COMPLETE} have changed"
            problem = changed if mark is None else damage(path, mark["files"])
            if problem is None:
                return path
            self._damaged.add(path)
            say(f"warning: {path} is damaged ({problem}); looking for an older checkpoint")
        return None

    def _mark(self, path: Path) -> _Mark | None:
        """The checkpoint's mark; None if it is missing or has been changed."""
        try:
            mark = _MARK.validate_python(read_json(path / COMPLETE))
        except (UserError, ValidationError):
            return None
        itself = digest_of_json({key: value for key, value in mark.items() if key != "itself"})
        return mark if itself == mark["itself"] else None


def expect_tied_weights(model: Any) -> None:
    """Makes transformers expect that checkpoints of a model with tied weights lack the copies.

    It warns about every missing weight except those that the model never saves; tied weights are tied again
    after loading.
    """
    if getattr(text_config(model.config), "tie_word_embeddings", False):
        model._keys_to_ignore_on_save = set(getattr(model, "all_tied_weights_keys", ()))


def step_of(path: Path) -> int:
    """The optimiser step that a checkpoint was taken after."""
    return int(path.name.rpartition("-")[2])


def _checkpoints(directory: Path) -> list[Path]:
    """All checkpoints of a run, complete or not, newest first."""
    places = directory.glob(f"{PREFIX_CHECKPOINT_DIR}-*")
    return sorted((path for path in places if _NAME.fullmatch(path.name)), key=step_of, reverse=True)


def _remove(path: Path) -> None:
    (path / COMPLETE).unlink(missing_ok=True)  # first: a partly removed checkpoint must not look complete
    shutil.rmtree(path)
