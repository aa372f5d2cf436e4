"""The steps that running jobs write count before any job is done."""

import json
import os
import time
from types import SimpleNamespace

import pytest
from transformers import TrainerState

from troll.experiment.files import read_experiment
from troll.operations.progress_line.handler import LogHandler
from troll.operations.progress_line.state import State
from troll.operations.progress_line.steps import Steps, read_steps, steps_in_log
from troll.operations.progress_line.words import line_of
from troll.training.callbacks import ProgressCallback

RUN = "tiny/chains/troll/grpo/stale/seed0"


def write(root, *walls):
    directory = root / "runs" / RUN
    directory.mkdir(parents=True, exist_ok=True)
    rows = [{"step": n, "time": {"wall_s": wall}} for n, wall in enumerate(walls, 1)]
    (directory / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return directory


def test_steps_tell_the_time_left_before_any_run_is_done():
    now = [100.0]
    state = State(clock=lambda: now[0])
    state.plan({"train": 3})
    state.start(0, "train", "train it")
    assert state.left() is None and state.seconds("train") is None
    now[0] += 50
    state.running[0].steps = Steps(20, 100, 2.0)
    # 50 s so far, of which 10 s before the first step; 80 steps of 2 s are left of this run.
    assert state.running[0].seconds(now[0]) == pytest.approx(210)
    assert state.left() == pytest.approx((160 + 2 * 210) / 1)
    assert state.share() == pytest.approx(0.99 * 0.2 / 3)
    assert "train it (step 20 of 100)" in line_of(state)


def test_a_run_that_takes_longer_than_usual_is_not_nearly_done():
    now = [0.0]
    state = State(clock=lambda: now[0], expected={"train": 60.0})
    state.plan({"train": 1})
    state.start(0, "train", "")
    now[0] += 600
    state.running[0].steps = Steps(10, 100, 60.0)
    assert state.left() == pytest.approx(90 * 60) and state.share() < 0.11


def test_a_resumed_run_tells_what_a_whole_one_takes():
    state = State(clock=lambda: 0.0)
    state.plan({"train": 2})
    state.start(0, "train", "")
    state.running[0].steps = Steps(90, 100, 3.0)
    assert state.seconds("train") == pytest.approx(300)
    assert state.left() == pytest.approx(30 + 300)


def test_steps_are_read_from_what_the_run_writes(tmp_path):
    assert read_steps(tmp_path / "runs" / RUN, 8, 60) is None
    assert read_steps(write(tmp_path), 8, 60) is None, "no step yet"
    assert read_steps(write(tmp_path, 12.0), 8, 60) == Steps(1, 8, 12.0), "one step has its own time"
    directory = write(tmp_path, 12.0, 14.0, 16.0)
    assert read_steps(directory, 8, 60) == Steps(3, 8, 2.0)
    before = time.time() - 3600
    os.utime(directory / "metrics.jsonl", (before, before))
    assert read_steps(directory, 8, 60) is None, "steps of an earlier attempt"


def test_a_base_model_tells_its_steps_in_its_log(tmp_path, capfd):
    callback = ProgressCallback("large/chains/base", measure="loss", label="loss", seconds=0)
    state, nothing = TrainerState(max_steps=150), SimpleNamespace()
    callback.on_train_begin(nothing, state, nothing)
    callback._begun -= 100.0
    state.global_step = 4
    callback.on_log(nothing, state, nothing, {"loss": 1.25})
    log = tmp_path / "base.log"
    assert steps_in_log(log, 60) is None
    log.write_text("Loading weights\n")
    assert steps_in_log(log, 60) is None, "no step yet"
    log.write_text(f"Loading weights\n{capfd.readouterr().err}{{'loss': '1.25'}}\n")
    steps = steps_in_log(log, 60)
    assert (steps.done, steps.total) == (4, 150) and steps.pace_s == pytest.approx(25, abs=0.1)
    # Nothing is known of the runs after it, but it takes an hour by itself.
    state = State(clock=lambda: 0.0)
    state.plan({"base_model": 1, "train": 2})
    state.start(0, "base_model", "base model large")
    assert "time left not known yet" in line_of(state)
    state.running[0].steps = steps
    line = line_of(state)
    assert "more than 1 h 1 min left" in line and "base model large (step 4 of 150)" in line
    before = time.time() - 3600
    os.utime(log, (before, before))
    assert steps_in_log(log, 60) is None, "of an earlier attempt"


def test_a_job_is_known_by_its_output_and_its_steps_are_those_of_its_training(repository, tmp_path):
    experiment = read_experiment(repository / "tests/workflow/reduced.yaml")
    handler = SimpleNamespace(settings=SimpleNamespace(root=tmp_path, experiment=experiment))

    def reader(rule, output):
        return LogHandler._reader(handler, SimpleNamespace(rule_name=rule, output=output, log=None))

    write(tmp_path, 12.0, 14.0)
    read = reader("train", [f"{tmp_path}/runs/{RUN}/manifest.json"])
    assert read(60.0) == Steps(2, experiment.training_of(experiment.run(RUN)).steps, 2.0)
    assert reader("train", None) is reader("train", ["elsewhere/manifest.json"]) is None
    assert reader("grade", [f"{tmp_path}/runs/{RUN}/grades.json"]) is None
