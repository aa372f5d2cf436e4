"""Success by difficulty level: which levels of a task each rule learns to solve, and how often."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from troll.analysis.data.results import Results
from troll.analysis.data.summaries import Cell, cells, scores, spread
from troll.analysis.data.tidy import BASE
from troll.analysis.leaderboard.protocol import Protocol
from troll.analysis.render.formats import Style, percent
from troll.common.digests import sha256_of_file
from troll.common.files import read_jsonl
from troll.experiment.settings import TaskSettings
from troll.tasks import testbed
from troll.tasks.registry import write_problems

SOLVED = 0.5
"""A run solves a level if at least this share of its samples is correct."""


def levels_table(final: Sequence[Results], protocol: Protocol) -> pd.DataFrame:
    """Returns one row per task and rule, best first, followed by the base model.

    Only for tasks of the testbed: their test problems, which record the levels, are generated again and must
    have the digest of those that the runs were tested on.

    Returns:
        Columns: ``task``, ``model``, ``trust_region``, ``seeds``; ``level_1`` and so on (test pass@1, mean
        over seeds); ``solved`` and ``solved_sd`` (levels solved by a seed, mean and standard deviation);
        ``every`` (share of seeds that solve all levels). Empty if no task has levels.
    """
    rows: list[dict[str, Any]] = []
    for results in final:
        present = [cell for cell in cells(results.items) if cell.trust_region in (BASE, *protocol.rules)]
        levels_of = {
            task: problem_levels(results, task, protocol) for task in {cell.task for cell in present}
        }
        rows += [_row(results.items, cell, levels_of[cell.task]) for cell in present if levels_of[cell.task]]
    frame = pd.DataFrame(rows)
    if frame.empty:
        return frame
    frame = frame.assign(base=frame["trust_region"] == BASE).sort_values(
        ["task", "model", "base", "mean"], ascending=[True, True, False, False], ignore_index=True
    )
    levels = [name for name in map(str, frame) if name.startswith("level_")]
    levels.sort(key=lambda name: int(name.removeprefix("level_")))
    frame = frame[["task", "model", "trust_region", "seeds", *levels, "solved", "solved_sd", "every"]]
    frame.attrs["styles"] = {name: Style(f"Level {name[6:]} (%)", percent) for name in levels} | {
        "solved": Style("Levels solved", lambda value: f"{value:.1f}"),
        "every": Style("All solved (% of seeds)", percent),
    }
    frame.attrs["notes"] = [
        "Test pass@1 by level of difficulty, mean over seeds. A seed solves a level where at least "
        f"{100 * SOLVED:.0f} % of its samples are right: mean ± standard deviation over seeds. This explains "
        "the board; no claim rests on it."
    ]
    return frame


def problem_levels(results: Results, task: str, protocol: Protocol) -> Mapping[str, int]:
    """Returns the level of each test problem by id; empty for public data, or if the data differ."""
    if task not in testbed.NAMES:
        return {}
    settings = TaskSettings.model_validate(protocol.experiment["tasks"][task])
    runs = results.runs
    digests = set(runs.loc[runs["task"] == task, "digest_test_data"].dropna())
    with tempfile.TemporaryDirectory() as name:
        write_problems({"name": task, "test": settings.test, "settings": settings.settings}, Path(name))
        path = Path(name) / "test.jsonl"
        if digests != {sha256_of_file(path)}:
            return {}
        return {str(row["task_id"]): int(row["level"]) for row in read_jsonl(path)}


def _row(items: pd.DataFrame, cell: Cell, levels: Mapping[str, int]) -> dict[str, Any]:
    table = scores(items, cell)
    # An array, because a function would be called for all categories, which include problems of other tasks.
    by_level = table.T.groupby(np.array([levels[str(name)] for name in table])).mean().T
    solved = (by_level >= SOLVED).sum(axis=1)
    mean, deviation = spread(solved)
    return {
        "task": cell.task,
        "model": cell.model,
        "trust_region": cell.trust_region,
        "seeds": len(table) if cell.trust_region != BASE else pd.NA,
        "mean": float(table.mean(axis=1).mean()),
        **{f"level_{level}": float(rates.mean()) for level, rates in by_level.items()},
        "solved": mean,
        "solved_sd": deviation,
        "every": float((solved == by_level.shape[1]).mean()),
    }
