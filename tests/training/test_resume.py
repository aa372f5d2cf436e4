"""Runs that are killed, stopped or fail go on, and end as if nothing had been."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import run_cases

from troll.tasks.sandbox.pool import sandbox_available

HERE = Path(__file__).parent
# Twenty kills on a machine that has the time; a run takes about two seconds more for each.
KILLS = int(os.environ.get("TROLL_TEST_KILLS", "4"))


def script(name, *arguments, prefix=()):
    """Runs a script of this directory; what it says on its line RESULT."""
    environment = os.environ | {"PYTHONPATH": f"{HERE}:{HERE.parents[1]}", "HF_HUB_OFFLINE": "1"}
    command = [*prefix, sys.executable, str(HERE / name), *map(str, arguments)]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=580)
    assert finished.returncode == 0, finished.stderr[-3000:]
    line = next(line for line in finished.stdout.splitlines() if line.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT "))


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_as_an_uninterrupted_one(
    guessing_base, run_data, configure, tmp_path
):
    # Validations and checkpoints do not fall together: a result may wait for the line after a checkpoint.
    batches = 8 + 3 * KILLS
    settings = {"rollout_batches": batches, "checkpoint_every": 2, "validate_every": 3, "checkpoints_kept": 3}
    whole, killed = (configure(tmp_path / name, **settings) for name in ("whole", "killed"))
    kills = script("killed_runs.py", whole, killed, guessing_base, run_data, KILLS, 5)
    # A machine that is slow to kill may find the run complete before the last one.
    assert 2 * len(kills) >= KILLS, f"the run was complete after {len(kills)} kills"
    assert max(kill["checkpoints"] - kill["unfinished"] for kill in kills) <= 3 + 1
    rows = run_cases.metrics(killed)
    assert rows == run_cases.metrics(whole) and len(rows) == batches * 4
    assert batches % 3 and "validation_success" in rows[-1], "transformers validates after the last step, too"
    assert sum("validation_success" in row for row in rows) == batches // 3 + 2
    assert run_cases.weights(killed) == run_cases.weights(whole)


@pytest.fixture(scope="module")
def failures(guessing_base, run_data, repository, tmp_path_factory):
    """What runs did that were stopped or failed, and what they did then; see failing_runs.py."""
    if not sandbox_available()[0]:
        pytest.skip(f"no bubblewrap, which gives this test a small file system: {sandbox_available()[1]}")
    directory = tmp_path_factory.mktemp("failing")
    names = ("whole", "damaged", "warned", "ended", "early", "full", "memory", "gpu", "nan")
    small = ["bwrap", "--dev-bind", "/", "/", "--size", "12000000", "--tmpfs", str(directory / "full")]
    for name in names:
        settings = {"rollout_batches": 6, "checkpoints_kept": 3, "validate_every": 2}
        run_cases.write_run(repository, directory / name, **settings)
    # The small file system hides what is there: the run file goes in through a name of its own.
    small += ["--ro-bind", str(directory / "whole/run.yaml"), str(directory / "full/run.yaml")]
    return script("failing_runs.py", directory, guessing_base, run_data, prefix=small)


def error_lines(found):
    return [line for line in found["terminal"].splitlines() if line.startswith("error: ")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["damaged", "warned", "ended", "early", "full", "memory", "gpu", "nan"])
def test_a_run_goes_on_after_anything_as_if_nothing_had_been(failures, name):
    assert failures[name]["again"] == 0, failures[name]["said_again"][-2000:]
    assert failures[name]["equal"]


@pytest.mark.slow
def test_damaged_checkpoints_are_named_and_an_older_one_is_taken(failures):
    found = failures["damaged"]
    assert len(found["checkpoints"]) == 3
    warnings = [line for line in found["said_again"].splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 2
    assert f"checkpoint-{found['checkpoints'][2]} is damaged (the contents of optimizer.pt" in warnings[0]
    assert f"checkpoint-{found['checkpoints'][1]} is damaged (model.safetensors has 1000 bytes" in warnings[1]
    first = int(found["said_again"].split(": step ")[1].split("/")[0])
    assert first > found["checkpoints"][0]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "before"), [("warned", 6), ("ended", 10), ("early", 0)])
def test_a_signal_stops_a_run_where_a_rollout_batch_ends(failures, name, before):
    found = failures[name]
    assert found["status"] == 75
    assert found["lines"] % 4 == 0 and before <= found["lines"] < 24
    assert found["checkpoints"][-1:] == ([found["lines"]] if before else [])
    assert "stopped by" in found["said"] and "Traceback" not in found["said"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("full", "no space left on the disk; free some"),
        ("memory", "memory ran out; more training.micro_batches, or fewer training.micro_batch_tokens"),
        ("gpu", "memory ran out (CUDA out of memory); more training.micro_batches, or fewer"),
        ("nan", "; training stopped, the last checkpoint is intact. A smaller learning_rate may help"),
    ],
)
def test_a_failure_is_one_line_and_leaves_good_checkpoints(failures, name, message):
    found = failures[name]
    assert found["status"] == 1
    (line,) = error_lines(found)
    assert message in line and "Traceback" not in found["said"]
    assert found["checkpoints"] and found["unfinished"] == 0


def test_a_directory_that_cannot_be_written_is_one_line(configure, tmp_path):
    if not sandbox_available()[0]:
        pytest.skip(f"no bubblewrap, which makes a directory read-only for root: {sandbox_available()[1]}")
    out = configure(tmp_path / "run")
    command = run_cases.command(out, tmp_path, tmp_path)
    prefix = ["bwrap", "--dev-bind", "/", "/", "--ro-bind", str(out), str(out)]
    arguments = [part for part in command if part not in ("--log", str(out / "log"))]
    result = subprocess.run([*prefix, *arguments], capture_output=True, text=True)
    assert result.returncode == 1
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith(f"error: {out}/") and "cannot be written (Read-only file system)" in line
