"""What manifests say of the source: the version of its numbers, and a digest of what can change them."""

import shutil
import subprocess

import pytest

from troll.common.numerics import NUMERICS
from troll.experiment.files import read_run_file
from troll.training.manifest import (
    EXPERIMENT_FILE,
    PACKAGE_ROOT,
    experiment_file,
    manifest_of,
    source_digest,
    uncommitted_source,
)


@pytest.fixture
def package(tmp_path):
    copy = tmp_path / "troll"
    shutil.copytree(PACKAGE_ROOT, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def test_a_copy_has_the_same_digest(package):
    assert source_digest(package) == source_digest()


NUMBERS = """
    algorithms/projection.py common/seeding.py evaluation/grading.py experiment/experiment.py
    experiment/recipes.py experiment/run_config.py experiment/settings.py tasks/testbed/chains.py
    training/launch_configs/gpus4.yaml training/trainer.py
"""
NO_NUMBERS = """
    analysis/statistics.py cli/plan.py experiment/budget.py experiment/files.py
    experiment/published/troll_iclr2026.yaml experiment/validation.py
"""


@pytest.mark.parametrize("path", [*NUMBERS.split(), *NO_NUMBERS.split()])
def test_only_what_can_change_numbers_counts(package, path):
    before = source_digest(package)
    with (package / path).open("a") as file:
        file.write("# changed\n")
    assert (source_digest(package) != before) is (path in NUMBERS)


def test_a_new_file_of_the_algorithms_counts_and_bytecode_does_not(package):
    before = source_digest(package)
    (package / "algorithms/__pycache__").mkdir()
    (package / "algorithms/__pycache__/x.cpython-311.pyc").write_bytes(b"x")
    assert source_digest(package) == before
    (package / "algorithms/new.py").write_text("")
    assert source_digest(package) != before


def test_source_that_is_committed_needs_no_digest(package):
    assert uncommitted_source(package) == source_digest(), "outside of git"
    user = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    for command in (["init", "-q"], ["add", "-A"], [*user, "commit", "-qm", "m"]):
        subprocess.run(["git", "-C", str(package.parent), *command], check=True)
    assert uncommitted_source(package) is None
    (package / "cli/plan.py").write_text("")
    assert uncommitted_source(package) is None, "it changes no number"
    (package / "training/trainer.py").write_text("")
    assert uncommitted_source(package) == source_digest(package)


def test_the_experiment_file_is_the_one_that_the_workflow_read(monkeypatch):
    monkeypatch.delenv(EXPERIMENT_FILE, raising=False)
    assert experiment_file() is None, "a run by hand has none"
    monkeypatch.setenv(EXPERIMENT_FILE, f"{'a' * 64} my experiments/testbed.yaml")
    assert experiment_file() == {"path": "my experiments/testbed.yaml", "sha256": "a" * 64}


def test_a_manifest_has_the_version_of_the_numbers(configure, tmp_path):
    config = read_run_file(configure(tmp_path / "run") / "run.yaml")
    assert manifest_of(config, wall_s=1.0, data={})["numerics"] == NUMERICS
