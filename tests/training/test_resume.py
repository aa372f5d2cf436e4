"""Runs that are killed, stopped or fail go on, and end as if nothing had been."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import run_cases

HERE = Path(__file__).parent
# Twenty kills on a machine that has the time; a run takes about two seconds more for each.
KILLS = int(os.environ.get("TROLL_TEST_KILLS", "8"))


def script(name, *arguments, prefix=()):
    """Runs a script of this directory; what it says on its line RESULT."""
    environment = os.environ | {"PYTHONPATH": f"{HERE}:{HERE.parents[1]}", "HF_HUB_OFFLINE": "1"}
    command = [*prefix, sys.executable, str(HERE / name), *map(str, arguments)]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert finished.returncode == 0, finished.stderr[-3000:]
    line = next(line for line in finished.stdout.splitlines() if line.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT "))


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_as_an_uninterrupted_one(
    guessing_base, run_data, configure, tmp_path
):
    # Validations and checkpoints do not fall together: a result may wait for the line after a checkpoint.
    settings = {"rollout_batches": 26, "checkpoint_every": 2, "validate_every": 3, "checkpoints_kept": 3}
    whole, killed = (configure(tmp_path / name, **settings) for name in ("whole", "killed"))
    kills = script("killed_runs.py", whole, killed, guessing_base, run_data, KILLS, 5)
    assert len(kills) == KILLS, f"the run was complete after {len(kills)} kills"
    assert max(kill["checkpoints"] - kill["unfinished"] for kill in kills) <= 3 + 1
    rows = run_cases.metrics(killed)
    assert rows == run_cases.metrics(whole) and len(rows) == 26 * 4
    assert sum("validation_success" in row for row in rows) == 9
    assert run_cases.weights(killed) == run_cases.weights(whole)
