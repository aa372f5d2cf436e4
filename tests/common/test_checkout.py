"""The commit that runs name: marked where their source was changed, and by nothing else."""

import subprocess

import pytest

from troll.common.checkout import commit_of, is_committed


@pytest.fixture
def checkout(tmp_path):
    for path in ("troll/a.py", "results/testbed/tidy/all.parquet"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text("released")
    user = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    for command in (["init", "-q"], ["add", "-A"], [*user, "commit", "-qm", "m"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    return tmp_path


def test_results_and_untracked_files_are_no_changes_of_the_source(checkout):
    head = subprocess.run(["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True)
    assert len(head.stdout.strip()) == 40
    (checkout / "results/testbed/tidy/all.parquet").write_text("mine")
    (checkout / "results/testbed/new.csv").write_text("mine")
    (checkout / "my_rules.py").write_text("mine")
    assert commit_of(checkout) == head.stdout.strip()
    (checkout / "troll/a.py").write_text("changed")
    assert commit_of(checkout) == head.stdout.strip() + "-dirty"
    (checkout / "troll/a.py").unlink()
    assert commit_of(checkout) == head.stdout.strip() + "-dirty"


def test_what_is_committed_has_no_changes_and_no_new_files(checkout):
    paths = [checkout / "troll", checkout / "not there"]
    assert is_committed(paths, checkout)
    (checkout / "my_rules.py").write_text("mine")
    (checkout / "results/testbed/tidy/all.parquet").write_text("mine")
    assert is_committed(paths, checkout), "elsewhere"
    (checkout / "troll/new.py").write_text("mine")
    assert not is_committed(paths, checkout)
    (checkout / "troll/new.py").unlink()
    (checkout / "troll/a.py").write_text("changed")
    assert not is_committed(paths, checkout)
    assert not is_committed([checkout / "troll"], checkout / "troll"), "no checkout"


def test_the_commit_of_somebody_elses_checkout_is_not_taken(checkout):
    installed = checkout / "site-packages"
    (installed / "troll").mkdir(parents=True)
    assert commit_of(installed) is None


def test_without_git_there_is_no_commit(checkout, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert commit_of(checkout) is None and not is_committed([checkout / "troll"], checkout)
