"""Files are whole or absent."""

import os
from pathlib import Path

import pytest

from troll.errors import UserError
from troll.files import atomic_path, read_json, read_jsonl, sha256_of_files, unwritable, write_jsonl
from troll.training.outputs import fresh_directory


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
    with pytest.raises(UserError, match=r"x\.jsonl:2: not JSON"):
        read_jsonl(path)
    path.write_text("[1]\n")
    with pytest.raises(UserError, match=r"x\.jsonl:1: expected a JSON object"):
        read_jsonl(path)
    with pytest.raises(UserError, match="no such file"):
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
