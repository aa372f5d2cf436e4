"""Checkpoints are what they were when they were written, or they are not used."""

import errno
import json
from types import SimpleNamespace

import pytest
from safetensors import SafetensorError

from troll.common.errors import UserError
from troll.common.machine_errors import explained
from troll.training.checkpoints import COMPLETE, CheckpointCallback


class Holder:
    """A trainer's own state."""

    def __init__(self):
        self.state = {"moments": [0.5, 0.25]}

    def method_state(self):
        return self.state

    def load_method_state(self, state):
        self.loaded = state


def save(directory, step, config="a"):
    path = directory / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "weights").write_bytes(b"weights" * step)
    callback = CheckpointCallback(config, Holder(), keep=5)
    arguments = SimpleNamespace(output_dir=str(directory))
    callback.on_save(arguments, SimpleNamespace(global_step=step, is_world_process_zero=True), None)
    return path


def newest(directory, config="a"):
    holder = Holder()
    return CheckpointCallback(config, holder).newest(directory), holder


def test_the_newest_whole_checkpoint_is_taken_and_its_state_restored(tmp_path):
    save(tmp_path, 2)
    path = save(tmp_path, 11)
    found, holder = newest(tmp_path)
    assert found == path and holder.loaded == {"moments": [0.5, 0.25]}


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: (path / COMPLETE).write_text("{"),
        lambda path: (path / COMPLETE).write_text("[]"),
        lambda path: (path / COMPLETE).write_text("{}"),
        lambda path: (path / COMPLETE).write_text("[" * 100_000),
        lambda path: (path / COMPLETE).write_bytes(b"\xff"),
        lambda path: (path / COMPLETE).write_text(json.dumps({"config": "a", "files": {}})),
        lambda path: (path / COMPLETE).write_text((path / COMPLETE).read_text().replace("0.25", "0.75")),
        lambda path: (path / COMPLETE).write_text((path / COMPLETE).read_text().replace("bytes", "bites")),
        lambda path: (path / "weights").write_bytes(b"w"),
        lambda path: (path / "weights").write_bytes(b"weightz" * 11),
        lambda path: (path / "weights").unlink(),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path, damage, capsys):
    older, path = save(tmp_path, 2), save(tmp_path, 11)
    damage(path)
    assert newest(tmp_path)[0] == older
    warned = capsys.readouterr().err
    assert "checkpoint-11 is damaged (" in warned and warned.count("\n") == 1


def test_other_directories_are_left_alone(tmp_path):
    path = save(tmp_path, 3)
    for name in ("checkpoint-abc", "checkpoint-", "checkpoint-4x", "checkpoint--1"):
        (tmp_path / name).mkdir()
    assert newest(tmp_path)[0] == path
    save(tmp_path, 5)
    assert (tmp_path / "checkpoint-abc").is_dir()


def test_a_checkpoint_of_another_configuration_is_named_and_not_used(tmp_path, capsys):
    save(tmp_path, 3, config="b")
    assert newest(tmp_path)[0] is None
    assert "of another configuration; not used" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"),
        RuntimeError("basic_ios::clear: iostream error"),
        RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"),
    ],
)
def test_what_libraries_say_of_a_disk_that_fills_is_understood(error, tmp_path):
    with pytest.raises(UserError, match="no space left on the disk"), explained(tmp_path):
        raise error
