"""Sources that count as one: the runs that show it are compared number for number; others are not mixed."""

import json
import zipfile
from pathlib import Path

import pytest
import synthetic
import yaml

from troll.analysis.data import equal_sources
from troll.analysis.data.archive import archive_run, archived
from troll.analysis.data.equal_sources import EqualSources, entries, first_difference, oldest_equal, source_of
from troll.analysis.data.runs import read_directories
from troll.common.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
EVALUATION = {"samples": 8}
OLD, NEW = synthetic.DIGESTS["source"], "9" * 64


@pytest.fixture
def equal(monkeypatch):
    """The synthetic runs' source, and a newer one that changed the numbers of `cispo` alone."""
    entry = EqualSources(
        sources=(OLD, NEW), changed="a comment", other_rules=("cispo",), evidence=(("a", "b"),)
    )
    monkeypatch.setattr(equal_sources, "entries", lambda: [entry])


def _pairs():
    return [(entry, ROOT / old, ROOT / new) for entry in entries() for old, new in entry.evidence]


@pytest.mark.parametrize(("entry", "old", "new"), _pairs(), ids=lambda value: getattr(value, "stem", ""))
def test_the_evidence_is_the_same_run_from_both_sources(entry, old, new):
    sources = list(entry.sources)
    assert sources.index(source_of(old)) < sources.index(source_of(new))
    assert first_difference(old, new) is None


def test_every_source_has_evidence_and_stands_in_one_entry():
    for entry in entries():
        shown = {source_of(ROOT / path) for pair in entry.evidence for path in pair}
        assert shown == set(entry.sources)
    every = [source for entry in entries() for source in entry.sources]
    assert len(every) == len(set(every))


def _archive(
    path: Path, *, loss: float = 0.5, more: dict | None = None, config: str = "c", right: int = 3, steps=2
):
    lines = [
        {"step": step, "loss": loss, "time": 1.0 if more else 2.0, **(more or {})} for step in range(steps)
    ]
    with zipfile.ZipFile(path, "w") as file:
        file.comment = json.dumps({"config": config, "source": path.stem}).encode()
        file.writestr("grades.json", json.dumps({"right": right}))
        file.writestr("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_newer_run_may_record_more_and_must_not_differ_in_anything_else(tmp_path):
    old = _archive(tmp_path / "old.zip")
    more = _archive(tmp_path / "more.zip", more={"validation_success": 0.5})
    assert first_difference(old, more) is None
    assert "validation_success" in first_difference(more, old)
    others = {"loss": {"loss": 0.5000000001}, "configurations": {"config": "d"}, "grades": {"right": 4}}
    for word, changed in ({**others, "steps": {"steps": 3}}).items():
        assert word in first_difference(old, _archive(tmp_path / f"{word}.zip", **changed))


def test_a_run_from_an_equal_source_is_restored(tmp_path, equal):
    run = synthetic.write_run(tmp_path / "testbed", "chains", "clip", "grpo", "stale", 0)
    config = yaml.safe_load((run / "run.yaml").read_text())
    archive_run(run, tmp_path / "run.zip", EVALUATION)
    assert archived(tmp_path / "run.zip", config, EVALUATION, NEW)
    assert not archived(tmp_path / "run.zip", config, EVALUATION, "8" * 64)
    assert not archived(tmp_path / "run.zip", config | {"seed": 1}, EVALUATION, NEW)


def test_a_rule_whose_numbers_changed_is_not(tmp_path, equal):
    run = synthetic.write_run(tmp_path / "testbed", "chains", "clip", "grpo", "stale", 0)
    config = yaml.safe_load((run / "run.yaml").read_text())
    config["trust_region"] = {"name": "clip", "rule": "cispo"}
    synthetic.configure(run, config)
    archive_run(run, tmp_path / "run.zip", EVALUATION)
    assert archived(tmp_path / "run.zip", config, EVALUATION, OLD)
    assert not archived(tmp_path / "run.zip", config, EVALUATION, NEW)
    assert oldest_equal(NEW, "clip") == OLD and oldest_equal(NEW, "cispo") == NEW


def _made_from(run: Path, source: str) -> None:
    path = run / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["digests"]["source"] = source
    path.write_text(json.dumps(manifest))


def test_runs_of_equal_sources_stand_in_one_table_and_others_do_not(tmp_path, equal):
    runs = [
        synthetic.write_run(tmp_path / "testbed", "chains", "clip", "grpo", "stale", seed) for seed in (0, 1)
    ]
    _made_from(runs[1], NEW)
    table = read_directories(runs).runs
    assert set(table["digest_source"]) == {OLD, NEW}  # what each was made from is still said
    assert not table["mixed"].any()
    _made_from(runs[1], "8" * 64)
    with pytest.raises(UserError, match=r"digests\.source"):
        read_directories(runs)


@pytest.mark.parametrize("source", [OLD, NEW])
@pytest.mark.parametrize("others", [OLD, NEW])
def test_a_rule_whose_numbers_changed_stands_beside_others_and_from_one_source_alone(
    tmp_path, equal, source, others
):
    clip = synthetic.write_run(tmp_path / "testbed", "chains", "clip", "grpo", "stale", 0)
    cispo = [
        synthetic.write_run(tmp_path / "testbed", "chains", "cispo", "grpo", "stale", seed) for seed in (0, 1)
    ]
    for run in cispo:
        _made_from(run, source)
    _made_from(clip, others)
    assert not read_directories([clip, *cispo]).runs["mixed"].any()
    _made_from(cispo[1], OLD if source == NEW else NEW)
    with pytest.raises(UserError, match="source of rules whose numbers changed"):
        read_directories([clip, *cispo])
