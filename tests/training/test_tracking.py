"""TensorBoard and its like repeat metrics.jsonl, and change nothing of it."""

import json
import subprocess
import sys
from types import SimpleNamespace

import accelerate.tracking
import pytest
from refusals import refused
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import TrainerControl, TrainerState

from troll.training.callbacks import MetricsCallback
from troll.training.tracking import TrackingCallback, check_tracking
from troll.training.trainer import TrustRegionTrainer

MAIN = SimpleNamespace(is_world_process_zero=True)
RUN = SimpleNamespace(run_id="m/t/a/b/c/seed0", experiment="e")


def events(out):
    """What TensorBoard shows: steps and values by metric."""
    shown = EventAccumulator(str(out / "tensorboard")).Reload()
    return {
        tag: [(event.step, event.value) for event in shown.Scalars(tag)] for tag in shown.Tags()["scalars"]
    }


def expected(out):
    """The same, from metrics.jsonl."""
    found = {}
    for line in (out / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        row |= {f"time/{key}": value for key, value in row.pop("time").items()}
        step = row.pop("step")
        for key, value in row.items():
            found.setdefault(key, []).append((step, pytest.approx(value, rel=1e-5)))
    return found


def test_a_run_is_the_same_with_tensorboard_which_shows_every_metric(make, tmp_path):
    rows = []
    for tracking in (False, True):
        out = tmp_path / str(tracking)
        trainer = make(TrustRegionTrainer, trust_region="troll")
        trainer.add_callback(MetricsCallback(out / "metrics.jsonl", 4))
        if tracking:
            trainer.add_callback(TrackingCallback("tensorboard", out / "metrics.jsonl", RUN))
        trainer.train()
        rows.append([json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()])
    assert [row | {"time": 0} for row in rows[0]] == [row | {"time": 0} for row in rows[1]]
    assert not (tmp_path / "False" / "tensorboard").exists()
    shown = events(tmp_path / "True")
    assert {"loss", "success", "kl_to_old", "time/wall_s"} <= set(shown)
    assert shown == expected(tmp_path / "True")
    command = [sys.executable, "-m", "tensorboard.main", "--inspect", "--logdir", tmp_path / "True"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert told.returncode == 0 and "kl_to_old" in told.stdout, told.stderr


def test_an_interrupted_run_shows_every_step_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    line = '{{"step": {}, "loss": {}, "time": {{"wall_s": 1.0}}}}\n'

    def train(kept, new):
        path.write_text("".join(line.format(*step) for step in kept))
        callback = TrackingCallback("tensorboard", path, RUN)
        callback.on_train_begin(None, MAIN, None)
        for step in new:
            with path.open("a") as lines:
                lines.write(line.format(*step))
            callback.on_log(None, MAIN, None)
        callback.on_train_end(None, MAIN, None)

    train([], [(1, 0.5), (2, 0.25), (3, 0.125)])
    train([(1, 0.5), (2, 0.25)], [(3, 1.0), (4, 2.0)])  # step 3 came after the last checkpoint
    assert events(tmp_path)["loss"] == [(1, 0.5), (2, 0.25), (3, 1.0), (4, 2.0)]


@pytest.mark.parametrize("resumed", [False, True])
def test_the_validation_after_the_last_step_is_shown_once_with_it(tmp_path, monkeypatch, resumed):
    """It joins the last line, which was repeated before; a tracker that goes on has what came before."""
    logged = []
    tracker = SimpleNamespace(log=lambda row, step: logged.append((step, row)), finish=lambda: None)
    monkeypatch.setattr("troll.training.tracking._new_tracker", lambda *_: tracker)
    monkeypatch.setattr("troll.training.tracking.check_tracking", lambda _: None)
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsCallback(path, 1)
    tracking = TrackingCallback("wandb", path, RUN)
    first = '{"step": 1, "loss": 0.5, "time": {"wall_s": 1.0}}\n' if resumed else ""
    path.write_text(first)
    metrics._lines = first
    for callback in (metrics, tracking):
        callback.on_train_begin(None, SimpleNamespace(is_world_process_zero=True, max_steps=2), None)
    for step in (2,) if resumed else (1, 2):
        state = SimpleNamespace(is_world_process_zero=True, global_step=step, max_steps=2)
        for logs in ({"loss": 0.25 * step}, {"eval_reward": 0.1 * step}):
            for callback in (metrics, tracking):
                callback.on_log(None, state, None, logs=logs)
    found = [
        (step, {k: v for k, v in row.items() if k in ("loss", "validation_success")}) for step, row in logged
    ]
    second = {"loss": 0.5} if resumed else {"loss": 0.5, "validation_success": 0.1}
    expected = [(1, {"loss": 0.25})] * (not resumed) + [(2, second), (2, {"validation_success": 0.2})]
    assert found == expected


def test_the_identity_of_a_run_does_not_know_its_tracker(repository):
    import yaml

    from troll.experiment.experiment import resolve
    from troll.experiment.files import parse_experiment

    data = yaml.safe_load((repository / "tests/workflow/reduced.yaml").read_text())
    plain, tracked = (parse_experiment(data | extra, "x") for extra in ({}, {"tracking": "wandb"}))
    run = plain.runs()[0]
    assert resolve(plain, run) == resolve(tracked, run)


def test_a_tracker_that_is_not_there_is_one_line(monkeypatch):
    with refused("'tensorbord'", "none, tensorboard, wandb"):
        check_tracking("tensorbord")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refused("pip install wandb", "tracking: none"):
        check_tracking("wandb")


def test_a_tracker_that_does_not_start_is_one_line(monkeypatch, tmp_path):
    class Refusing:
        def __init__(self, *_, **__):
            pass

        def start(self):
            raise RuntimeError("No API key configured.\nMore.")

    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setitem(accelerate.tracking.LOGGER_TYPE_TO_CLASS, "wandb", Refusing)
    callback = TrackingCallback("wandb", tmp_path / "metrics.jsonl", RUN)
    with refused("wandb", "No API key configured.", "wandb login"):
        callback.on_train_begin(None, MAIN, None)


STEPS = 4


@pytest.fixture
def log(tmp_path):
    """Logs as transformers does: a step's line first, the validation after it."""
    callback, control = MetricsCallback(tmp_path / "metrics.jsonl", steps_per_batch=2), TrainerControl()
    state = TrainerState(max_steps=STEPS)
    callback.on_train_begin(None, state, control)

    def at(step, **values):
        state.global_step = step
        callback.on_log(None, state, control, logs=values)
        return [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]

    return at


def test_a_validation_joins_the_next_step_and_the_last_one_the_last_step(log):
    log(0, eval_reward=0.1)
    for step in range(1, STEPS + 1):
        log(step, loss=float(step))
        if step == 2:
            log(step, eval_reward=0.2)
    log(STEPS, eval_reward=0.9)
    rows = log(STEPS, train_runtime=1.0)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row["loss"] for row in rows] == [1.0, 2.0, 3.0, 4.0]
    assert {row["step"]: row["validation_success"] for row in rows if "validation_success" in row} == {
        1: 0.1,
        3: 0.2,
        4: 0.9,
    }
    assert all(list(row)[-1] == "time" for row in rows)


def test_a_run_without_validation_has_none(log):
    for step in range(1, STEPS + 1):
        rows = log(step, loss=0.0)
    assert not any("validation_success" in row for row in rows)
