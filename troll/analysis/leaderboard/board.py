"""The leaderboard: every rule with its best settings, compared with the tuned baseline on fresh seeds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from troll.analysis.data.results import Results
from troll.analysis.data.settings import settings_by
from troll.analysis.data.summaries import (
    COLLAPSED,
    Cell,
    cells,
    collapsed_runs,
    curve,
    difference,
    per_run,
    scores,
    seed_differences,
    spread,
)
from troll.analysis.leaderboard.inputs import expected_best
from troll.analysis.leaderboard.protocol import Protocol, Trial, rate
from troll.analysis.render.formats import Style, counted, listed, percent
from troll.analysis.statistics import (
    holm,
    interval_columns,
    paired_p_value,
    probability_of_improvement,
    seed_interval,
    steps_to,
)
from troll.common.errors import UserError

TARGET = 0.9
"""Target of the column ``rollouts``, as a share of the best rule's final success."""
FEW_TRIALS = 4
"""Number of trials for the column ``few``: the expected result of a smaller tuning budget."""
AT_EDGES = "Best at the least or largest value that was tried"
"""Begins the note on rules whose best trial is at the edge of its search space."""
RECONSTRUCTED = "-recon-"
"""Part of the names of rules that are reconstructions of a paper's method."""


def board_table(
    final: Sequence[Results], trials: pd.DataFrame, best: Mapping[tuple[str, str], Trial], protocol: Protocol
) -> pd.DataFrame:
    """Returns one row per task and rule, best first.

    Returns:
        Columns: ``task``, ``model``, ``trust_region``, ``rule``, ``learning_rate``, ``settings``, ``seeds``;
        test ``pass@1`` with its 95 % interval, and that of the ``worst`` and ``best`` seed; ``difference``
        from the baseline, paired by seed, with its interval and ``p_holm``, corrected over the whole board;
        ``improvement`` (chance that a seed of the rule ends above one of the baseline); ``auc`` (mean height
        of the training success curve); ``rollouts`` (batches until training success reaches `TARGET` of the
        best rule's final success, median over seeds, infinite if at least half never reach it); ``late_kl``;
        ``collapsed`` (share of runs); ``few`` and ``all`` (validation success of the expected best of
        `FEW_TRIALS` trials, and of the best of all).
    """
    rows: list[dict[str, Any]] = []
    for results in final:
        summary = per_run(results.runs)
        present = [cell for cell in cells(results.items) if cell.trust_region in protocol.rules]
        for model, task in sorted({(cell.model, cell.task) for cell in present}):
            members = [cell for cell in present if (cell.model, cell.task) == (model, task)]
            lines = {cell: cell.rows(summary) for cell in members}
            target = TARGET * max(float(line["final"].mean()) for line in lines.values())
            for cell in members:
                if (task, cell.trust_region) not in best:
                    raise UserError(
                        f"{cell.trust_region}: {task}: has fresh seeds, but no tuning trials in the protocol"
                    )
                rows.append(
                    _row(results, cell, lines[cell], target, protocol, best[task, cell.trust_region], trials)
                )
    _check_baseline(rows, final, protocol)
    frame = pd.DataFrame(rows)
    frame["p_holm"] = np.nan
    tested = frame["p"].notna()
    frame.loc[tested, "p_holm"] = holm(frame.loc[tested, "p"].to_numpy())
    frame = frame.sort_values(["task", "model", "pass@1"], ascending=[True, True, False], ignore_index=True)
    frame.attrs["styles"] = _STYLES
    ranked = set(frame["trust_region"])
    edges = _at_edges({key: trial for key, trial in best.items() if key[1] in ranked}, protocol)
    frame.attrs["notes"] = _notes(protocol, frame["task"].nunique(), edges)
    if names := [*frame.loc[frame["rule"].str.contains(RECONSTRUCTED), "trust_region"].unique()]:
        frame.attrs["notes"].append(
            f"Reconstructed from secondary sources, without the paper's exact objective: {listed(names)}."
        )
    return frame.drop(columns="p")


def _check_baseline(rows: Sequence[Mapping[str, Any]], final: Sequence[Results], protocol: Protocol) -> None:
    """Raises `UserError` unless the baseline has runs on every task of the board."""
    with_baseline = {row["task"] for row in rows if row["trust_region"] == protocol.baseline}
    without = [task for task in dict.fromkeys(row["task"] for row in rows) if task not in with_baseline]
    if without or not rows:
        experiments = dict.fromkeys(
            name for results in final for name in results.runs["experiment"].astype(str)
        )
        on = f" on {', '.join(without)}" if without else ""
        raise UserError(
            f"leaderboard: {', '.join(experiments) or 'the finals'}: no run of the baseline "
            f"{protocol.baseline}{on}; run it first"
        )


def _check_settings(runs: pd.DataFrame, task: str, trial: Trial) -> None:
    """Raises `UserError` unless the fresh runs have the settings of the best trial."""
    expected = {"training/learning_rate": trial.learning_rate} | {
        f"trust_region/settings/{name}": float(value)
        for name, value in trial.settings.items()
        if isinstance(value, int | float)
    }
    for (run_id,), settings in settings_by(runs, ["run_id"]):
        for name, meant in expected.items():
            value = float(settings.get(name, meant))
            if not np.isclose(value, meant, rtol=1e-9, atol=0):
                raise UserError(
                    f"{trial.name}: {task}: {name.rpartition('/')[2]} is {value:g} in the fresh run "
                    f"{run_id}, but {meant:g} in the best trial; run the fresh seeds of the best trial first"
                )


def _check_seeds(table: pd.DataFrame, cell: Cell, protocol: Protocol) -> None:
    """Raises `UserError` unless a rule has all fresh seeds."""
    if missing := sorted(set(protocol.seeds) - set(table.index.astype(int))):
        raise UserError(
            f"{cell.trust_region}: {cell.task}: no fresh run with seed {', '.join(map(str, missing))}; "
            "finish the fresh seeds first"
        )


def _row(
    results: Results,
    cell: Cell,
    line: pd.DataFrame,
    target: float,
    protocol: Protocol,
    trial: Trial,
    trials: pd.DataFrame,
) -> dict[str, Any]:
    _check_settings(cell.rows(results.runs), cell.task, trial)
    items, baseline = results.items, cell.with_trust_region(protocol.baseline)
    table = scores(items, cell)
    _check_seeds(table, cell, protocol)
    test = seed_interval(table.to_numpy())
    low, high = np.clip([test.low, test.high], 0, 1)
    row: dict[str, Any] = {
        "task": cell.task,
        "model": cell.model,
        "trust_region": cell.trust_region,
        "rule": protocol.rules[cell.trust_region].rule,
        "learning_rate": trial.learning_rate,
        "settings": trial.described,
        "seeds": len(table),
        "pass@1": test.estimate,
        "pass@1_low": float(low),
        "pass@1_high": float(high),
        "worst": float(table.mean(axis=1).min()),
        "best": float(table.mean(axis=1).max()),
    }
    against = None if cell == baseline else difference(items, cell, baseline)
    row |= interval_columns("difference", against) | {"p": np.nan, "improvement": np.nan}
    if against is not None:
        first, second = (scores(items, part).mean(axis=1).to_numpy() for part in (cell, baseline))
        row["p"] = paired_p_value(seed_differences(items, cell, baseline))
        row["improvement"] = float(probability_of_improvement(first, second))
    row["auc"], row["late_kl"] = spread(line["auc"])[0], spread(line["late_kl"])[0]
    row["rollouts"] = _rollouts_to(cell.rows(results.runs), target)
    row["collapsed"] = float(collapsed_runs(results.items, cell).mean())
    of_rule = trials[(trials["task"] == cell.task) & (trials["rule"] == cell.trust_region)]
    trial_scores = of_rule["first"].to_list()
    row["few"] = expected_best(trial_scores, min(FEW_TRIALS, len(trial_scores)))
    row["all"] = max(trial_scores)
    return row


def _rollouts_to(rows: pd.DataFrame, target: float) -> float:
    """Median over seeds of the batches until training success reaches the target; infinite if never."""
    batches = curve(rows, "success")
    numbers = np.arange(1, len(batches) + 1)
    reached = [steps_to(numbers, values.to_numpy(), target) for _, values in batches.items()]
    return float(np.median(np.nan_to_num(reached, nan=np.inf))) if reached else np.nan


_STYLES = {
    "rule": Style("Rule"),
    "learning_rate": Style("Learning rate", rate),
    "settings": Style("Tuned settings"),
    "pass@1": Style("Test pass@1 (%)", percent),
    "worst": Style("Worst seed (%)", percent),
    "best": Style("Best seed (%)", percent),
    "improvement": Style("P(above baseline) (%)", percent),
    "rollouts": Style("Batches to 90 %", lambda value: "never" if np.isinf(value) else f"{value:g}"),
    "collapsed": Style("Collapsed (%)", percent),
    "few": Style(f"Validation, best of {FEW_TRIALS} (%)", percent),
    "all": Style("Validation, best of all (%)", percent),
}


def _at_edges(best: Mapping[tuple[str, str], Trial], protocol: Protocol) -> list[str]:
    """Rules whose best trial has an extreme value of a tuned number, with the settings and tasks in words."""
    edges: dict[str, dict[str, list[str]]] = {}
    for (task, name), trial in best.items():
        trials = [_tuned_numbers(other) for other in protocol.trials_of(name)]
        for setting, value in _tuned_numbers(trial).items():
            values = {numbers[setting] for numbers in trials}
            if len(values) > 1 and value in (min(values), max(values)):
                edges.setdefault(name, {}).setdefault(setting, []).append(task)
    return [f"{name} ({'; '.join(_edges_in_words(tasks))})" for name, tasks in edges.items()]


def _tuned_numbers(trial: Trial) -> dict[str, float]:
    numbers = {name: value for name, value in trial.settings.items() if type(value) in (int, float)}
    return {"learning rate": trial.learning_rate} | numbers


def _edges_in_words(tasks: Mapping[str, Sequence[str]]) -> list[str]:
    """Settings by tasks, in words; settings with the same tasks are joined."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for setting, names_of_tasks in tasks.items():
        groups.setdefault(tuple(names_of_tasks), []).append(setting)
    return [f"{listed(names)} on {listed(names_of_tasks)}" for names_of_tasks, names in groups.items()]


def _notes(protocol: Protocol, tasks: int, edges: Sequence[str]) -> list[str]:
    outside = f"{AT_EDGES}: {', '.join(edges)}."
    rounds = "".join(
        f"the best {further.trials_kept} then got {counted(len(further.seeds), 'more seed')}, "
        for further in protocol.rounds
    )
    return [
        f"Each rule had {protocol.trials} trials on {len(protocol.tuning_seeds)} tuning seeds for each of "
        f"{tasks} tasks, {rounds}the best by validation success went on to "
        f"{len(protocol.seeds)} fresh seeds. "
        f"Δ: test pass@1 minus that of {protocol.baseline}, tuned alike, paired by seed, with Student's 95 % "
        "interval; p of a paired t-test, corrected by Holm over the whole table.",
        f"Batches to 90 %: rollout batches until training success is at {100 * TARGET:.0f} % of the best "
        "rule's final success, median over seeds; never where half of them or more do not get there. "
        f"Collapsed: runs that end below {100 * COLLAPSED:.0f} % of the base model. Best of {FEW_TRIALS}: "
        "validation success of the expected best of so many trials, drawn from those that were made"
        f"{' in the first round' if protocol.rounds else ''}.",
        *([f"{outside} A better one may lie outside."] if edges else []),
    ]
