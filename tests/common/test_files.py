"""Files are whole or absent."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from refusals import refused

from troll.common.digests import sha256_of_files
from troll.common.errors import Stopped
from troll.common.files import (
    atomic_path,
    fresh_directory,
    read_json,
    read_jsonl,
    read_yaml,
    unwritable,
    write_json,
    write_jsonl,
)
from troll.common.signals import SIGNAL_NOTE, held_signal, stop_if_asked


def test_an_error_while_writing_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError), atomic_path(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_while_making_a_directory_leaves_the_old_one(tmp_path):
    with fresh_directory(tmp_path / "d") as temporary:
        (temporary / "a").write_text("old")
    with pytest.raises(RuntimeError), fresh_directory(tmp_path / "d") as temporary:
        (temporary / "a").write_text("half")
        raise RuntimeError
    assert (tmp_path / "d" / "a").read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["d"]


def test_broken_files_are_named_with_their_line(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\nnot json\n')
    with refused(f"{path}:2", "JSON"):
        read_jsonl(path)
    path.write_text("[1]\n")
    with refused(f"{path}:1", "JSON object"):
        read_jsonl(path)
    with refused(tmp_path / "none.json"):
        read_json(tmp_path / "none.json")


def test_lines_survive_unicode(tmp_path):
    rows = [{"text": "Ω \u2028 \n ß"}]
    write_jsonl(tmp_path / "u.jsonl", rows)
    assert read_jsonl(tmp_path / "u.jsonl") == rows


def test_a_digest_depends_on_names_and_contents_and_not_on_order(tmp_path):
    one, two = tmp_path / "1", tmp_path / "2"
    one.write_text("a")
    two.write_text("b")
    first = sha256_of_files([one, two], tmp_path)
    assert sha256_of_files([two, one], tmp_path) == first
    one.write_text("b")
    two.write_text("a")
    assert sha256_of_files([one, two], tmp_path) != first


def test_the_first_place_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    # As it is for ordinary users: root may write everywhere.
    monkeypatch.setattr(os, "access", lambda path, _: bool(Path(path).stat().st_mode & 0o200))
    results = tmp_path / "results/testbed"
    assert unwritable(results) is None and not results.parent.exists()
    (results / "figures").mkdir(parents=True)
    figure = results / "figures/main.png"
    figure.touch()
    assert unwritable(results) is None
    for place in (figure, figure.parent, results):
        place.chmod(place.stat().st_mode & ~0o222)
        assert unwritable(results) == place
        place.chmod(place.stat().st_mode | 0o200)
    tmp_path.chmod(0o500)
    assert unwritable(tmp_path / "elsewhere/testbed") == tmp_path
    tmp_path.chmod(0o700)


@pytest.mark.parametrize("kind", ["directory", "pipe", "socket", "device"])
def test_only_regular_files_are_replaced(tmp_path, kind):
    path = tmp_path / "there"
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        socket.socket(socket.AF_UNIX).bind(str(path))
    else:
        path.symlink_to("/dev/null")
    before = path.stat()
    with refused(path, kind):
        write_json(path, {})
    assert path.stat().st_ino == before.st_ino and path.stat().st_mode == before.st_mode
    assert [item.name for item in tmp_path.iterdir()] == ["there"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_is_followed_to_its_target(tmp_path, exists):
    (tmp_path / "far").mkdir()
    target = tmp_path / "far" / "target"
    if exists:
        target.write_text("old")
    link = tmp_path / "link"
    link.symlink_to(Path("far/target"))
    write_json(link, [1])
    assert link.is_symlink() and not target.is_symlink() and read_json(target) == [1]
    assert [item.name for item in target.parent.iterdir()] == ["target"]


def test_a_link_to_itself_is_one_line(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with refused(tmp_path / "loop", "Too many levels of symbolic links"):
        write_json(tmp_path / "loop", [])


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("[" * 100_000, "nested"),
        ("9" * 5000, "4,300 digits"),
        ("{", "Expecting property name"),
        (b"\xff", "codec can't decode"),
    ],
)
def test_hostile_json_is_one_line(tmp_path, text, fact):
    path = tmp_path / "x"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with refused(path, "JSON", fact):
        read_json(path)
    path.write_bytes(b'{"a": 1}\n' + path.read_bytes())
    with refused(f"{path}:2", "JSON", fact):
        read_jsonl(path)


@pytest.mark.parametrize("read", [read_json, read_jsonl, read_yaml])
def test_a_directory_is_one_line(tmp_path, read):
    with refused(tmp_path, "Is a directory"):
        read(tmp_path)


_BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("a: 1\nb: 2\na: 3", ("line 3, column 1", "'a'")),
        ("x:\n  - {a: 1, a: 1}", ("line 2, column 12", "'a'")),
        ("[" * 100_000, ("nested",)),
        ("a: " + "9" * 5000, ("line 1, column 4",)),
        ("a: 0x" + "f" * 5000, ("line 1, column 4",)),
        ("? [1]\n: 2", ("line 1, column 3",)),
        ("a: &x [*x]", ("alias",)),
        (_BOMB, ("1,000,000 values",)),
        ("a: 2024-13-41", ("month must be in 1..12",)),
        ("a: [1", ("line 1, column 6",)),
        ("a: !!python/object/apply:os.system [echo]", ("could not determine a constructor",)),
        ("a: \x00", ("special characters are not allowed",)),
    ],
)
def test_hostile_yaml_is_one_line(tmp_path, text, facts):
    path = tmp_path / "x"
    path.write_text(text)
    with refused(path, "YAML", *facts):
        read_yaml(path)


def test_yaml_may_repeat_blocks_by_merge_keys_and_aliases(tmp_path):
    path = tmp_path / "x"
    path.write_text("a: &a {b: 1, c: 2}\nd: {<<: *a, c: 3}\ne: *a\n")
    assert read_yaml(path) == {"a": {"b": 1, "c": 2}, "d": {"b": 1, "c": 3}, "e": {"b": 1, "c": 2}}


HOLD = """
import os, signal, subprocess, sys
from troll.common.signals import held_signal, hold_signals
hold_signals()
assert held_signal() is None
# A child inherits the mask: what is sent to the whole job leaves it alone.
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.3)"])
for number in (signal.SIGTERM, signal.SIGUSR1):
    os.kill(child.pid, number)
    os.kill(os.getpid(), number)
assert child.wait() == 0
print(held_signal().name)
"""


def test_signals_wait_for_a_good_moment_and_spare_children():
    found = subprocess.run([sys.executable, "-c", HOLD], capture_output=True, text=True)
    assert found.stdout.strip() == "SIGUSR1", found.stderr


def test_a_launcher_tells_its_processes_in_a_file(tmp_path, monkeypatch):
    note = tmp_path / "signal"
    monkeypatch.setenv(SIGNAL_NOTE, str(note))
    assert held_signal() is None
    note.write_text(str(int(signal.SIGTERM)))
    assert held_signal() == signal.SIGTERM
    with refused("a run", "SIGTERM", error=Stopped) as stopped:
        stop_if_asked("a run")
    assert stopped.value.signal == signal.SIGTERM and os.environ[SIGNAL_NOTE]
