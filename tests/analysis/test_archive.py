"""Archived runs: the same bytes for the same run, all that tables need, and nothing damaged comes back."""

import zipfile
from pathlib import Path

import pytest
import synthetic
import yaml

from troll.analysis.data.archive import RESTORED, archive_run, archived, restore_run
from troll.analysis.data.runs import read_directories
from troll.common.errors import UserError

EVALUATION = {"samples": 8, "temperature": 1.0}
SOURCE = synthetic.DIGESTS["source"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = synthetic.write_run(tmp_path / "testbed", "chains", "clip", "grpo", "stale", 0)
    (directory / "checkpoint").mkdir()
    (directory / "checkpoint/model.safetensors").write_text("weights")
    return directory


def test_a_restored_run_gives_the_same_rows_and_is_known_as_restored(run, tmp_path):
    archive_run(run, tmp_path / "run.zip", EVALUATION)
    restored = tmp_path / "there" / "testbed" / run.relative_to(tmp_path / "testbed")
    restore_run(tmp_path / "run.zip", restored)
    mine, theirs = read_directories([run]), read_directories([restored])
    assert theirs.runs.astype(str).equals(mine.runs.astype(str))
    assert theirs.items.astype(str).equals(mine.items.astype(str))
    assert (restored / RESTORED).exists() and not (restored / "checkpoint").exists()


def test_the_same_run_gives_the_same_bytes(run, tmp_path):
    archive_run(run, tmp_path / "one.zip", EVALUATION)
    for path in run.iterdir():
        path.touch()
    archive_run(run, tmp_path / "two.zip", EVALUATION)
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()


def test_only_a_run_of_the_same_configuration_evaluation_and_source_is_taken(run, tmp_path):
    config, path = yaml.safe_load((run / "run.yaml").read_text()), tmp_path / "run.zip"
    assert not archived(path, config, EVALUATION, SOURCE)
    archive_run(run, path, EVALUATION)
    assert archived(path, config, EVALUATION, SOURCE)
    assert not archived(path, config | {"seed": 1}, EVALUATION, SOURCE)
    assert not archived(path, config, EVALUATION | {"samples": 16}, SOURCE)
    assert not archived(path, config, EVALUATION, "another source")


def test_base_models_are_archived_by_their_configuration(tmp_path):
    base = synthetic.write_base(tmp_path, "chains")
    manifest = base / "manifest.json"
    manifest.write_text('{"config": {"layers": 2}, "digests": {"source": "s"}}')
    archive_run(base, tmp_path / "base.zip", None)
    assert archived(tmp_path / "base.zip", {"layers": 2}, None, "s")
    assert not archived(tmp_path / "base.zip", {"layers": 3}, None, "s")


def test_a_run_that_is_not_graded_is_not_archived(run, tmp_path):
    (run / "grades.json").unlink()
    with pytest.raises(UserError, match=r"grades\.json: missing; only finished runs that are graded"):
        archive_run(run, tmp_path / "run.zip", EVALUATION)
    assert not (tmp_path / "run.zip").exists()


def test_a_damaged_archive_restores_nothing(run, tmp_path):
    path = tmp_path / "run.zip"
    archive_run(run, path, EVALUATION)
    whole = path.read_bytes()
    for place in range(40, len(whole) - 200, len(whole) // 40):
        damaged = bytearray(whole)
        damaged[place] ^= 8
        path.write_bytes(damaged)
        directory = tmp_path / str(place)
        try:
            restore_run(path, directory)
        except UserError as error:
            assert str(error).startswith(f"{path}: ")
            assert not directory.exists()
        else:  # a byte that says nothing of the contents
            assert (directory / "grades.json").read_bytes() == (run / "grades.json").read_bytes()
    path.write_bytes(b"no archive")
    with pytest.raises(UserError, match="not an archived run"):
        archived(path, {}, EVALUATION, SOURCE)


@pytest.mark.parametrize(
    "name", ["../../outside/suites/evil.json", "suites/../../evil.json", "/nowhere/suites/e.json"]
)
def test_an_archive_writes_nothing_outside_of_its_run(run, tmp_path, name):
    path, directory = tmp_path / "run.zip", tmp_path / "a/b/run"
    archive_run(run, path, EVALUATION)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr(name, "{}")
    with pytest.raises(UserError, match=r"not a file of a run; remove the archive"):
        restore_run(path, directory, suites=True)
    assert not directory.exists() and not list(tmp_path.rglob("e*.json"))


def test_base_models_of_other_machines_are_admitted_from_the_archive_only(run, tmp_path):
    other = synthetic.write_run(
        tmp_path / "testbed", "chains", "troll", "grpo", "stale", 0, digests={"base_model": "5" * 64}
    )
    with pytest.raises(UserError, match=r"digests\.base_model"):
        read_directories([run, other])
    (other / RESTORED).write_text("{}")
    assert len(read_directories([run, other]).runs)
