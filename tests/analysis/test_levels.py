"""Success by level: the test problems are generated again, and are those that the runs were tested on."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from synthetic_board import compared

from troll.analysis.data.results import Results
from troll.analysis.leaderboard.levels import levels_table
from troll.analysis.leaderboard.protocol import Protocol
from troll.analysis.render.formats import to_markdown
from troll.common.digests import sha256_of_file
from troll.common.files import read_jsonl
from troll.tasks.registry import write_problems

SETTINGS = {"levels": [1, 2], "base_inputs": 2}
PROTOCOL: dict[str, Any] = {
    "name": "board",
    "trials": 1,
    "tuning_seeds": [100],
    "seeds": [0, 1],
    "learning_rates": [1e-4],
    "baseline": "clip",
    "rules": {"clip": {"rule": "clip"}, "troll": {"rule": "troll"}},
    "experiment": {
        "tasks": {"functions": {"train": 8, "test": 12, "settings": SETTINGS}},
        "models": {"tiny": {"vocabulary": 512}},
        "estimators": {"grpo": {"rule": "grpo"}},
        "conditions": {"tuned": {}},
    },
} | compared(contrasts=[{"method": "troll", "baseline": "clip"}])
RIGHT = {  # samples of four that are right, by run and level
    ("base", np.nan): {1: 1, 2: 0},
    ("clip", 0): {1: 4, 2: 0},
    ("clip", 1): {1: 4, 2: 1},
    ("troll", 0): {1: 2, 2: 4},
    ("troll", 1): {1: 4, 2: 0},
}


@pytest.fixture
def results(tmp_path):
    write_problems({"name": "functions", "test": 12, "settings": SETTINGS}, tmp_path)
    path = tmp_path / "test.jsonl"
    levels = {row["task_id"]: row["level"] for row in read_jsonl(path)}
    assert set(levels.values()) == {1, 2}, "a case of two levels"
    setting: dict[str, Any] = {"model": "tiny", "task": "functions"}
    runs = [
        setting
        | {
            "trust_region": name,
            "estimator": "" if name == "base" else "grpo",
            "condition": "" if name == "base" else "tuned",
            "seed": seed,
        }
        for name, seed in RIGHT
    ]
    items = [
        run | {"task_id": task_id, "n": 4, "c": right[level]}
        for run, right in zip(runs, RIGHT.values(), strict=True)
        for task_id, level in levels.items()
    ]
    table = pd.DataFrame(runs).assign(digest_test_data=sha256_of_file(path))
    return Results(table, pd.DataFrame(items))


def test_success_is_told_by_level_best_rule_first(results):
    table = levels_table([results], Protocol.model_validate(PROTOCOL))
    assert list(table["trust_region"]) == ["base", "troll", "clip"]
    assert list(table["level_1"]) == [0.25, 0.75, 1.0]
    assert list(table["level_2"]) == [0.0, 0.5, 0.125]
    assert list(table["solved"]) == [0.0, 1.5, 1.0]
    assert list(table["every"]) == [0.0, 0.5, 0.0]
    assert "| functions | troll | 2 | 75.0 | 50.0 | 1.5 ± 0.7 | 50.0 |" in to_markdown(table)
    assert "| functions | base | – | 25.0 | 0.0 | 0.0 | 0.0 |" in to_markdown(table)


def test_another_task_in_the_same_table_changes_no_level(results):
    alone = levels_table([results], Protocol.model_validate(PROTOCOL))
    names = sorted({*results.items["task_id"], "chains/test/0"})  # as read_items gives it
    categorical = results.items.assign(task_id=pd.Categorical(results.items["task_id"], categories=names))
    table = levels_table([replace(results, items=categorical)], Protocol.model_validate(PROTOCOL))
    pd.testing.assert_frame_equal(table, alone)


def test_runs_on_other_problems_have_no_levels(results):
    fewer = PROTOCOL["experiment"] | {"tasks": {"functions": {"train": 8, "test": 11, "settings": SETTINGS}}}
    assert levels_table([results], Protocol.model_validate(PROTOCOL | {"experiment": fewer})).empty


def test_public_data_are_not_loaded_for_their_levels(results, monkeypatch):
    monkeypatch.setattr("troll.analysis.leaderboard.levels.write_problems", None)
    public = PROTOCOL["experiment"] | {"tasks": {"math": {"train": 8, "test": 12}}}
    for frame in (results.runs, results.items):
        frame["task"] = "math"
    assert levels_table([results], Protocol.model_validate(PROTOCOL | {"experiment": public})).empty
