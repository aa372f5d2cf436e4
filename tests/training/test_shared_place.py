"""The shared place: an entry is made once, whole or not there, and nothing else is taken for it."""

import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from troll.common.errors import UserError
from troll.common.files import only_writer
from troll.training import shared_place
from troll.training.shared_place import VARIABLE, take_or_make

IDENTITY = {"seed": 1, "operations": (2, 3)}
CONTENTS = {"a.txt": "one", "below/b.txt": "two" * 1000}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "place"))
    return tmp_path / "place"


@pytest.fixture
def said(monkeypatch):
    lines = []
    monkeypatch.setattr(shared_place, "say", lines.append)
    return lines


@pytest.fixture
def want(tmp_path):
    """Asks for the files, in a directory that is new each time."""
    done = SimpleNamespace(made=0, files=None)

    def ask(identity=IDENTITY):
        done.files = tmp_path / f"files {time.monotonic_ns()}"

        def make():
            done.made += 1
            for name, text in CONTENTS.items():
                (done.files / name).parent.mkdir(parents=True, exist_ok=True)
                (done.files / name).write_text(text)
            return {"wall_s": 1.5, "config": {"operations": (2, 3)}}

        taken = take_or_make("things", identity, done.files, make)
        assert contents(done.files) == CONTENTS
        return taken

    ask.done = done
    return ask


def contents(directory):
    paths = [path for path in directory.rglob("*") if path.is_file()]
    return {path.relative_to(directory).as_posix(): path.read_text() for path in paths}


def entry_in(place):
    (entry,) = place.iterdir()
    return entry


def test_what_is_there_is_taken_and_something_else_is_made(place, want):
    assert want() is None and want.done.made == 1
    taken = want()
    assert want.done.made == 1
    assert taken.entry == entry_in(place) and taken.entry.name.startswith("things-")
    assert taken.made == {"wall_s": 1.5, "config": {"operations": [2, 3]}}
    assert want(IDENTITY | {"seed": 2}) is None and want.done.made == 2


def test_the_copies_are_the_takers_own(place, want):
    want()
    want()
    (want.done.files / "a.txt").write_text("mine")
    assert want() is not None and want.done.made == 1


def test_without_a_place_everything_is_made_and_nothing_kept(tmp_path, monkeypatch, want):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "0")
    assert want() is want() is None and want.done.made == 2
    assert {path.name.split()[0] for path in tmp_path.iterdir()} == {"files"}
    monkeypatch.delenv(VARIABLE)
    want()
    assert want().entry.parent.as_posix() == "resources/base-models"


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("break_it", "problem"),
    [
        (lambda entry: (entry / "files/a.txt").write_text("oNe"), "the contents of a.txt have changed"),
        (lambda entry: (entry / "files/a.txt").write_text(""), "a.txt has 0 bytes instead of 3"),
        (lambda entry: (entry / "files/below/b.txt").unlink(), "below/b.txt is missing"),
        (
            lambda entry: change(entry / "record.json", '"wall_s": 1.5', '"wall_s": 2.5'),
            "the contents of record.json have changed",
        ),
        (lambda entry: (entry / "record.json").write_text("[]"), "the contents of record.json have changed"),
        (lambda entry: (entry / "record.json").write_text("{"), "record.json: not JSON"),
    ],
)
def test_damage_is_a_line_and_the_entry_is_made_again(place, said, want, break_it, problem):
    want()
    break_it(entry_in(place))
    assert want() is None and want.done.made == 2
    (line,) = said
    assert line.startswith(f"{entry_in(place)}: {problem}") and line.endswith("; it is made again")
    assert want() is not None and want.done.made == 2


def test_an_entry_of_another_name_is_not_taken(place, said, want):
    want()
    other = entry_in(place)
    want(IDENTITY | {"seed": 2})
    entry = next(path for path in place.iterdir() if path != other)
    (entry / "record.json").write_text((other / "record.json").read_text())
    want(IDENTITY | {"seed": 2})
    assert want.done.made == 3 and "record.json is that of something else" in said[0]


def test_what_could_not_be_made_is_not_there(place, want, tmp_path):
    def fail():
        raise UserError("no")

    with pytest.raises(UserError, match=r"^no$"):
        take_or_make("things", IDENTITY, tmp_path / "x", fail)
    assert want() is None and want() is not None


@pytest.mark.parametrize("where", ["a file", "a file/place"])
def test_a_place_that_is_none_is_a_line(tmp_path, monkeypatch, said, want, where):
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv(VARIABLE, str(tmp_path / where))
    if where == "a file":
        with pytest.raises(UserError, match=rf"^{VARIABLE}=.*/a file: is no directory; name one in"):
            want()
        assert not want.done.made
    else:
        assert want() is None
        assert said == [
            f"{tmp_path}/a file/place: cannot be written (Not a directory), so that nothing is kept there"
        ]


def test_a_full_disk_costs_the_entry_and_not_what_was_made(place, said, want, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shared_place.shutil, "copytree", full)
    assert want() is None
    entry, why = entry_in(place), "No space left on device"
    assert said == [f"{entry}: cannot be written ({why}), so that it is not kept there"]


def test_an_entry_can_be_taken_where_nothing_can_be_written(place, want, monkeypatch):
    want()

    def refused(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(shared_place, "only_writer", refused)
    assert want() is not None


PROGRAM = """
import os, shutil, signal, sys, time
from pathlib import Path
from troll.training import shared_place

how, out, log = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def half(source, target, **_):
    Path(target).write_bytes(Path(source).read_bytes()[:1])
    if Path(source).name == "b.txt":
        die()

if how == "in a file":
    shutil.copyfile = half
if how == "before the record":
    shared_place.write_json = die
if how == "in the record":
    Path.replace = die

def make():
    with log.open("a") as file:
        file.write("made\\n")
    time.sleep(float(sys.argv[4]))
    for name, text in {"a.txt": "one", "below/b.txt": "two" * 1000}.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text)
    return {}

shared_place.take_or_make("things", {"seed": 1, "operations": [2, 3]}, out, make)
"""


def start(how, out, log, seconds=0.0):
    command = [sys.executable, "-c", PROGRAM, how, str(out), str(log), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("how", ["in a file", "before the record", "in the record"])
def test_a_maker_that_is_killed_while_it_keeps_leaves_nothing_that_is_taken(place, said, want, tmp_path, how):
    process = start(how, tmp_path / "killed", tmp_path / "log")
    assert process.wait(60) == -signal.SIGKILL, process.stderr.read()
    assert not (entry_in(place) / "record.json").exists()
    assert len(list(entry_in(place).iterdir())) > 1, "it was killed too early"
    assert want() is None and want.done.made == 1 and not said
    assert want() is not None
    assert sorted(path.name for path in entry_in(place).iterdir()) == [".lock", "files", "record.json"]


def test_of_several_at_a_time_one_makes_it(place, want, tmp_path):
    log = tmp_path / "log"
    processes = [start("", tmp_path / f"{number}", log, seconds=1.0) for number in range(4)]
    said = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, said
    assert log.read_text() == "made\n"
    assert all(contents(tmp_path / f"{number}") == CONTENTS for number in range(4))
    assert want() is not None


def test_who_waited_for_a_maker_that_was_killed_makes_it(place, tmp_path):
    log = tmp_path / "log"
    first = start("", tmp_path / "1", log, seconds=60)
    deadline = time.monotonic() + 60
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    second = start("", tmp_path / "2", log)
    assert "waiting for it to end" in second.stderr.readline()
    os.kill(first.pid, signal.SIGKILL)
    assert second.wait(60) == 0 and first.wait() == -signal.SIGKILL
    assert log.read_text() == "made\n" * 2 and contents(tmp_path / "2") == CONTENTS


def test_the_record_is_read_by_people_too(place, want):
    want()
    record = json.loads((entry_in(place) / "record.json").read_text())
    assert record["identity"] == {"seed": 1, "operations": [2, 3]}
    with only_writer(entry_in(place)):
        assert want() is not None, "taking waits for nobody"
