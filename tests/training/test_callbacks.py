"""What is written while a run goes on: every step once, and every validation."""

import json

import pytest
from transformers import TrainerControl, TrainerState

from troll.training.callbacks import MetricsCallback

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
