"""Checkpoints are what they were when they were written, or they are not used."""

import errno
import json
from types import SimpleNamespace

import pytest
from refusals import refused
from safetensors import SafetensorError

from troll.common.digests import digest_of_json
from troll.common.machine_errors import as_user_error
from troll.training.checkpoints import COMPLETE, CheckpointCallback


def save(directory, step, config="a"):
    path = directory / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "weights").write_bytes(b"weights" * step)
    callback = CheckpointCallback(config, keep=5)
    arguments = SimpleNamespace(output_dir=str(directory))
    callback.on_save(arguments, SimpleNamespace(global_step=step, is_world_process_zero=True), None)
    return path


def newest(directory, config="a"):
    return CheckpointCallback(config).newest(directory)


def test_the_newest_whole_checkpoint_is_taken(tmp_path):
    save(tmp_path, 2)
    path = save(tmp_path, 11)
    assert newest(tmp_path) == path


def test_a_checkpoint_of_an_older_version_is_whole(tmp_path):
    path = save(tmp_path, 2)
    mark = json.loads((path / COMPLETE).read_text())
    del mark["itself"]
    mark["method"] = {"generated_samples": 7}
    (path / COMPLETE).write_text(json.dumps(mark | {"itself": digest_of_json(mark)}))
    assert newest(tmp_path) == path


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: (path / COMPLETE).write_text("{"),
        lambda path: (path / COMPLETE).write_text("[]"),
        lambda path: (path / COMPLETE).write_text("{}"),
        lambda path: (path / COMPLETE).write_text("[" * 100_000),
        lambda path: (path / COMPLETE).write_bytes(b"\xff"),
        lambda path: (path / COMPLETE).write_text(json.dumps({"config": "a", "files": {}})),
        lambda path: (path / COMPLETE).write_text((path / COMPLETE).read_text().replace("77", "78")),
        lambda path: (path / COMPLETE).write_text((path / COMPLETE).read_text().replace("bytes", "bites")),
        lambda path: (path / "weights").write_bytes(b"w"),
        lambda path: (path / "weights").write_bytes(b"weightz" * 11),
        lambda path: (path / "weights").unlink(),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path, damage, capsys):
    older, path = save(tmp_path, 2), save(tmp_path, 11)
    damage(path)
    assert newest(tmp_path) == older
    warned = capsys.readouterr().err
    assert "checkpoint-11 is damaged (" in warned and warned.count("\n") == 1


def test_other_directories_are_left_alone(tmp_path):
    path = save(tmp_path, 3)
    for name in ("checkpoint-abc", "checkpoint-", "checkpoint-4x", "checkpoint--1"):
        (tmp_path / name).mkdir()
    assert newest(tmp_path) == path
    save(tmp_path, 5)
    assert (tmp_path / "checkpoint-abc").is_dir()


def test_a_checkpoint_of_another_configuration_is_named_and_not_used(tmp_path, capsys):
    save(tmp_path, 3, config="b")
    assert newest(tmp_path) is None
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
    with refused(tmp_path, "disk"), as_user_error(tmp_path):
        raise error
