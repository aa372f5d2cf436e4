"""Tests of README, pages and releases see what git tracks, whatever somebody has run in the same checkout."""

import os
import shutil
import subprocess
import sys

import pytest

FAST = (
    "tests/test_readme.py",
    "tests/test_docs.py",
    "tests/test_releases.py",
    "tests/analysis/test_forest.py",
    "tests/analysis/test_page.py",
    "tests/analysis/test_protocol_checks.py",
    "tests/analysis/test_provenance.py",
    "tests/analysis/test_reproduction.py",
    "tests/common/test_checkout.py",
    "tests/operations/test_check_measurements.py",
)
"""The files whose fast tests read released results or the pages made from them."""


@pytest.fixture
def checkout(repository, tracked, tmp_path):
    """A clone of what git tracks, in which every released experiment and one more has been run."""
    root = tmp_path / "troll"
    for name in tracked:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(repository / name, root / name)
    git = ["git", "-C", str(root), "-c", "user.name=n", "-c", "user.email=e"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "clone"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    released = [path.name for path in (root / "results/released").iterdir() if path.is_dir()]
    for name in (*released, "mine", "first-look", "rehearsal-paper"):
        local = root / "results" / name
        for file in ("README.md", "claims.md", "claims.json", "board.md", "contrasts.csv", "audit.json"):
            local.mkdir(parents=True, exist_ok=True)
            (local / file).write_text("made up\n")
        for file in ("plan.json", "tidy/all.parquet", "tables/main.csv", "figures/forest.png"):
            (local / file).parent.mkdir(parents=True, exist_ok=True)
            (local / file).write_text("made up\n")
        (local / "public").mkdir()
        (local / "public/benchmarks.md").write_text("made up\n")
        (local / "page.html").write_text("made up\n")
    return root


@pytest.mark.slow
@pytest.mark.nightly  # .ci/run has results of a released experiment beside all tests
def test_results_of_ones_own_change_no_verdict_of_the_tests(checkout):
    status = subprocess.run(["git", "status", "--porcelain"], cwd=checkout, capture_output=True, text=True)
    assert status.stdout == "", "git ignores what runs here make"
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *FAST]
    result = subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=500
    )
    assert result.returncode == 0, result.stdout[-4000:]
