"""The command line: mistakes are one line, help is short, nothing is half-written."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from troll import __version__
from troll.cli import app


def troll(*arguments, **settings):
    command = [sys.executable, "-m", "troll.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **settings)


def test_version_and_help():
    runner = CliRunner()
    assert runner.invoke(app, ["--version"]).stdout.strip() == f"troll {__version__}"
    text = runner.invoke(app, ["--help"]).stdout
    assert len(text.splitlines()) < 45
    for command in ("train", "sample", "grade", "collect", "table", "figure"):
        assert command in text
        assert runner.invoke(app, [command, "--help"]).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "none.yaml"], "none.yaml: no such experiment file"),
        (["problems", "--config", "{", "--out", "o"], "--config: not JSON"),
        (["problems", "--config", '{"name": "chain"}', "--out", "o"], "unknown task 'chain'; valid: chains"),
        (["table", "main", "--results", "no", "--out", "o/t"], "no/runs.parquet"),
        (
            ["grade", "--task", "chains", "--samples", "no.jsonl", "--problems", "no.jsonl", "--out", "o"],
            "no.jsonl: no such file",
        ),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(arguments, message, tmp_path):
    result = troll(*arguments, cwd=tmp_path)
    assert result.returncode == 1
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert not list(tmp_path.iterdir())


def test_a_bug_goes_to_the_log_and_its_name_to_the_terminal(tmp_path):
    config = json.dumps({"name": "chains"})  # the workflow always gives sizes: leaving them out is a bug
    result = troll(
        "--log", str(tmp_path / "log"), "problems", "--config", config, "--out", str(tmp_path / "o")
    )
    assert result.returncode == 2
    assert result.stderr.strip().splitlines() == [f"error: KeyError: 'train' (log: {tmp_path / 'log'})"]
    assert "Traceback" in (tmp_path / "log").read_text()


def test_check_lists_the_runs_of_an_experiment(repository):
    result = troll("check", str(repository / "workflow/config/testbed.yaml"))
    assert result.returncode == 0
    runs = result.stdout.splitlines()
    assert len(runs) == len(set(runs)) == 32
    assert "tiny/chains/troll/grpo/stale/seed0" in runs
