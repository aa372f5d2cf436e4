"""Experiments of which something is killed, typed again, end as if nothing had been."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from troll import warm

# Twenty and more on a machine that has the time; four take as long as one more experiment.
KILLS = int(os.environ.get("TROLL_TEST_WORKFLOW_KILLS", "4"))


@pytest.mark.slow
@pytest.mark.snakemake
@pytest.mark.timeout(max(1500, 300 * KILLS))
@pytest.mark.skipif(not warm.usable(), reason="no warm server is started on this machine")
def test_an_experiment_goes_on_whatever_was_killed(tmp_path, repository):
    command = [
        sys.executable,
        str(Path(__file__).parent / "killed_workflows.py"),
        str(tmp_path),
        str(KILLS),
        "1",
    ]
    environment = os.environ | {"PYTHONPATH": str(repository)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    line = next(line for line in result.stdout.splitlines() if line.startswith("RESULT "))
    kills = json.loads(line.removeprefix("RESULT "))
    assert len(kills) == KILLS and 2 * sum(kill["hit"] for kill in kills) >= KILLS
    for kill in kills:
        # A killed server costs nothing but time; the rest ends the workflow.
        assert kill["left"] == [] and (kill["status"] == 0) == (
            kill["kind"] == "server" or not kill["hit"]
        ), kill
        assert kill.get("again", 0) == 0 and kill.get("differ", []) == [], kill
