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


DIGITS = "1" * 5000  # more than Python makes a number of
NO_MANIFEST = (
    "[]",
    "{}",
    "null",
    "3",
    '{"digests": 3}',
    '{"digests": {}}',
    "[" * 100_000,
    f"[{DIGITS}]",
    "{",
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("manifest.json", text) for text in NO_MANIFEST),
        *(("run.yaml", text) for text in ("3", "[]", "{}", "a: [")),
        *(("grades.json", text) for text in ("[]", "{}", "3", '{"metrics": {}, "problems": {}}', "{")),
        *(("metrics.jsonl", text) for text in ("{x", "", "[]", '{"step": 1}', '{"step": 1, "loss": "x"}')),
    ],
)
def test_a_run_with_a_broken_file_is_not_archived(run, tmp_path, name, text, troll):
    (run / name).write_text(text)
    result = troll("archive", run, "--out", tmp_path / "run.zip")
    assert result.returncode == 1 and result.stderr.count("\n") == 1
    assert result.stderr.startswith(f"error: {run}/") and name in result.stderr
    assert not (tmp_path / "run.zip").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "manifest.json: ") for text in NO_MANIFEST),
        ('{"digests": {"source": "s"}}', "manifest.json: config: expected the settings of a base model"),
        ('{"config": {"layers": 2}}', "manifest.json: digests.source: is missing"),
        (
            '{"config": {"trust_region": {}}, "digests": {"source": "s"}}',
            "run.yaml: missing, although .* is the manifest of a run",
        ),
    ],
)
def test_a_base_model_with_a_broken_manifest_is_not_archived(tmp_path, text, said):
    base = synthetic.write_base(tmp_path, "chains")
    (base / "manifest.json").write_text(text)
    with pytest.raises(UserError, match=rf"^{base}/{said}"):
        archive_run(base, tmp_path / "base.zip", None)
    assert not (tmp_path / "base.zip").exists()


def repacked(path, leave_out=(), **texts):
    """The archive without some members, and with other contents of some."""
    with zipfile.ZipFile(path) as file:
        contents, comment = {name: file.read(name) for name in file.namelist()}, file.comment
    with zipfile.ZipFile(path, "w") as file:
        file.comment = comment
        for name, content in (contents | texts).items():
            if name not in leave_out:
                file.writestr(name, content)


RUN_FILES = ("run.yaml", "metrics.jsonl", "manifest.json", "grades.json")


@pytest.mark.parametrize(
    ("leave_out", "missing"),
    [
        (RUN_FILES, "grades.json"),
        *((tuple({*RUN_FILES} - {name}), "grades.json") for name in RUN_FILES[:3]),
        *(((name,), name) for name in RUN_FILES),
    ],
)
def test_an_archive_without_all_files_of_a_run_restores_nothing(run, tmp_path, leave_out, missing, troll):
    path = tmp_path / "run.zip"
    archive_run(run, path, EVALUATION)
    repacked(path, leave_out)
    result = troll("restore", path, "--out", tmp_path / "there")
    said = f"error: {path}: damaged ({missing} is missing); remove it, and the run is made again\n"
    assert (result.returncode, result.stderr) == (1, said)
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("manifest.json", text) for text in NO_MANIFEST),
        ("run.yaml", "3"),
        ("grades.json", "[]"),
        ("metrics.jsonl", "{x"),
        ("suites/graded.json", "[]"),
    ],
)
@pytest.mark.parametrize("suites", [False, True])
def test_an_archive_with_a_broken_file_restores_nothing(run, tmp_path, name, text, suites):
    path = tmp_path / "run.zip"
    archive_run(run, path, EVALUATION)
    repacked(path, **({"suites/graded.json": "{}"} | {name: text}))
    with pytest.raises(UserError) as error:
        restore_run(path, tmp_path / "there", suites=suites)
    said = str(error.value)
    assert said.startswith(f"{path}: damaged ({name}:") and said.endswith(
        "; remove it, and the run is made again"
    )
    assert "\n" not in said and not (tmp_path / "there").exists()


def test_base_models_and_further_data_sets_come_back(run, tmp_path):
    base = synthetic.write_base(tmp_path, "chains")
    (base / "manifest.json").write_text('{"config": {"layers": 2}, "digests": {"source": "s"}}')
    archive_run(base, tmp_path / "base.zip", None)
    restore_run(tmp_path / "base.zip", tmp_path / "there")
    assert {path.name for path in (tmp_path / "there").iterdir()} == {*RUN_FILES[2:], RESTORED}

    archive_run(run, tmp_path / "run.zip", EVALUATION)
    with pytest.raises(UserError, match=r"run\.zip: damaged \(suites/graded\.json is missing\)"):
        restore_run(tmp_path / "run.zip", tmp_path / "sets", suites=True)
    repacked(tmp_path / "run.zip", **{"suites/graded.json": "{}"})
    restore_run(tmp_path / "run.zip", tmp_path / "sets", suites=True)
    assert (tmp_path / "sets/suites/graded.json").read_text() == "{}"
    assert not (tmp_path / "sets/grades.json").exists()


def test_an_archive_whose_comment_is_no_object_is_named(run, tmp_path):
    path = tmp_path / "run.zip"
    for comment in ("3", "[" * 50_000, f'{{"config": {DIGITS}}}', "{}"):
        archive_run(run, path, EVALUATION)
        with zipfile.ZipFile(path, "a") as file:
            file.comment = comment.encode()
        with pytest.raises(UserError, match=r"run\.zip: not an archived run .*; remove it"):
            archived(path, {}, EVALUATION, SOURCE)
