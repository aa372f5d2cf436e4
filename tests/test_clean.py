"""`make clean` removes what git ignores, save public tables, pins and locks, and nothing that is tracked."""

import subprocess

import pytest


@pytest.fixture
def checkout(repository, tmp_path):
    """Empty files by the names of all that is tracked, in a repository of their own."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=repository, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in filter(None, names):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for name in ("Makefile", ".gitignore"):
        (tmp_path / name).write_text((repository / name).read_text())
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def files(directory, *options):
    listed = ["git", "ls-files", "-z", "--others", *options]
    result = subprocess.run(listed, cwd=directory, capture_output=True, text=True, check=True)
    return set(filter(None, result.stdout.split("\0")))


def test_clean_removes_what_it_says_and_nothing_else(checkout):
    kept = files(checkout)
    mine = ["results/mine/tables/main.csv", "results/mine/claims.md", "results/mine/tidy/clip.parquet"]
    gone = [
        ".venv/bin/python",
        "build/site/index.html",
        "resources/base-models/chains-0123/record.json",
        *(
            f"results/{name}"
            for name in (
                "mine/runs/tiny/manifest.json",
                "testbed/logs/collect.log",
                "mine/page.html",
                "mine/report.html",
                "mine/looks.json",
                "leaderboard/experiments/leaderboard-trials.yaml",
                "mine/public/math500/oracle/samples.jsonl",
                "reduced/claims.md",
                "rehearsal-paper/rehearsal.json",
            )
        ),
    ]
    stays = ["results/mine/public/benchmarks.csv", "resources/data.lock.json", "results/mine/tidy/.lock"]
    for name in (*mine, *gone, *stays):
        path = checkout / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    ignored = files(checkout, "--ignored", "--exclude-standard")
    assert {*gone, *stays} <= ignored and not {*mine} & ignored
    subprocess.run(["make", "clean"], cwd=checkout, check=True, capture_output=True)
    assert files(checkout) == {*kept, *mine, *stays}
