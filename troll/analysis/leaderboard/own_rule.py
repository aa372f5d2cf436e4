"""Ranking of a user's rule on the board: local runs of the rule with the released runs of all others."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import ValidationError

from troll.analysis.data.results import Results, read_results
from troll.analysis.data.tidy import BASE, TIDY
from troll.analysis.leaderboard.board import board_table, place_ranges
from troll.analysis.leaderboard.inputs import ROUND_STYLES, TRIAL_STYLES, choose, outdated_rules
from troll.analysis.leaderboard.protocol import (
    TRIALS,
    Candidate,
    Protocol,
    explained,
    read_protocol,
    round_name,
)
from troll.analysis.leaderboard.ranking import ranking_table
from troll.analysis.render.formats import bracketed, listed, percent, points, probability
from troll.common.errors import UserError
from troll.experiment.directories import results_directory

HERE, RELEASED = "here", "released"


def with_rule(protocol: Protocol, name: str, rule: str, space: Mapping[str, Sequence[Any]]) -> Protocol:
    """The protocol with an additional rule, which gets the same number of trials.

    Without a ``space`` of settings, trials vary the learning rate, evenly spaced on a logarithmic scale
    between the protocol's smallest and largest.
    """
    if name in protocol.rules:
        raise UserError(f"{rule}: the leaderboard has a rule {name} already; give the function another name")
    rounds = [round_name(number) for number, _ in enumerate(protocol.rounds, start=1)]
    if name == BASE or name in (TRIALS, *rounds, *protocol.experiment["tasks"]):
        raise UserError(f"{rule}: the name {name} is reserved; give the function another name")
    rates = np.geomspace(min(protocol.learning_rates), max(protocol.learning_rates), protocol.trials)
    candidate = Candidate(
        rule=rule,
        space={key: list(values) for key, values in space.items()},
        learning_rates=[] if space else [float(f"{rate:.3g}") for rate in rates],
    )
    contents = protocol.model_dump() | {"rules": {**protocol.rules, name: candidate}}
    try:
        return Protocol.model_validate(contents)
    except ValidationError as error:
        raise UserError(explained(error)) from None


def released_trials(path: Path, protocol: Protocol) -> pd.DataFrame:
    """The released validation scores of all rules' trials."""
    try:
        scores = pd.read_csv(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; a rule is ranked beside the released board") from None
    except ValueError as error:
        raise UserError(f"{path}: not a table of trials ({str(error).strip()})") from None
    columns = (*TRIAL_STYLES, "task", *(ROUND_STYLES if protocol.rounds else ()))
    absent = [column for column in columns if column not in scores]
    if absent:
        raise UserError(f"{path}: not a table of trials; it has no column {absent[0]}")
    if not set(scores["rule"]) <= set(protocol.rules):
        raise UserError(f"{path}: has rules that are not in the protocol; it belongs to another board")
    for task in protocol.experiment["tasks"]:
        at_baseline = scores[(scores["task"] == task) & (scores["rule"] == protocol.baseline)]
        if len(at_baseline) != protocol.trials:
            raise UserError(
                f"{path}: has {len(at_baseline)} trials of {protocol.baseline} on {task}, but the protocol "
                f"has {protocol.trials}; it belongs to another board"
            )
    return scores


def check_same_protocol(board: Path, protocol: Path, expected: Protocol) -> None:
    """Raises `UserError` if the board was made by another protocol than the expected one."""
    path = board / "protocol.yaml"
    if not path.exists():
        return
    of_board = read_protocol(path)
    for key in ("trials", "tuning_seeds", "rounds", "seeds", "ranking", "baseline"):
        if getattr(of_board, key) != getattr(expected, key):
            raise UserError(
                f"{board}: its rules were tuned and compared by another protocol ({key} differs from "
                f"{protocol}); rules of both cannot share a table: leave --board out, or name the "
                f"protocol of that board (--protocol)"
            )


def readings(final: Sequence[Results], protocol: Protocol, name: str) -> list[str]:
    """The result of a rule as a line; empty unless the protocol ranks each rule separately."""
    if protocol.ranking is None:
        return []
    table = ranking_table(final, protocol)
    row = table[table["trust_region"] == name].iloc[0]
    interval, p_value = f" {bracketed(row, 'difference')}", f" (p = {probability(row['p'])})"
    if np.isnan(row["p"]):
        interval = p_value = ""
    return [
        f"{name} against {protocol.baseline}, mean of the tasks: {points(row['difference'])} points"
        f"{interval} over {row['seeds']} seeds, {row['reading']}{p_value}"
    ]


def check_release(root: Path, protocol: Protocol) -> None:
    """Raises `UserError` unless every task has runs of the baseline, from here or released."""
    for task in protocol.experiment["tasks"]:
        directory = results_directory(f"{protocol.name}-{task}", TIDY, root)
        if protocol.baseline not in set(read_results(directory).runs["trust_region"]):
            raise UserError(f"{directory}: has no runs of {protocol.baseline}, the baseline of the protocol")


def beside(released: Results, added: Results, name: str) -> Results:
    """The released runs of a task, including the base model, and those of the added rule."""

    def together(theirs: pd.DataFrame, mine: pd.DataFrame) -> pd.DataFrame:
        return pd.concat([theirs, mine[mine["trust_region"] == name]], ignore_index=True)

    runs, items = together(released.runs, added.runs), together(released.items, added.items)
    return replace(released, runs=runs, items=items)


def own_board(
    protocol: Protocol,
    name: str,
    scores: pd.DataFrame,
    finals: Mapping[str, tuple[Results, Results]],
) -> pd.DataFrame:
    """`board_table` with the added rule; the column ``runs`` is "here" or "released"."""
    for task, (released, added) in finals.items():
        _check_problems(task, released, added)
    results = [beside(released, added, name) for released, added in finals.values()]
    table = board_table(results, scores, choose(scores, protocol), protocol)
    table["runs"] = np.where(table["trust_region"] == name, HERE, RELEASED)
    table.attrs["notes"] = [*table.attrs["notes"], *_base_notes(finals), *_source_notes(finals)]
    return table


def _check_problems(task: str, released: Results, added: Results) -> None:
    theirs, mine = (_digests(part.runs, "test_data") for part in (released, added))
    if theirs and mine and theirs != mine:
        here, there = (", ".join(sorted(digest[:12] for digest in digests)) for digests in (mine, theirs))
        raise UserError(
            f"{task}: the test problems of the runs here ({here}) differ from those of the release "
            f"({there}); rank the rule from the commit of the release"
        )


def _digests(runs: pd.DataFrame, name: str) -> set[str]:
    return set(runs[f"digest_{name}"].astype(str)) - {"", "nan"}


def _source_notes(finals: Mapping[str, tuple[Results, Results]]) -> list[str]:
    """A note that names the tasks whose released runs have outdated numerics."""
    other = [
        task
        for task, (released, added) in finals.items()
        if outdated_rules(released.runs, int(added.runs["numerics"].max()))
    ]
    if not other:
        return []
    return [
        f"The released runs of {listed(other)} were made with other numerics than those here: part of a "
        "difference may come from what has changed."
    ]


def _base_notes(finals: Mapping[str, tuple[Results, Results]]) -> list[str]:
    """Notes that compare the local base models with the released ones, on which paired differences rest."""
    lines = []
    for task, (released, added) in finals.items():
        theirs, mine = (_base_rate(results) for results in (released, added))
        equal = _digests(released.runs, "base_model") == _digests(added.runs, "base_model")
        same = "the same model" if equal else "not the same model: trained again with other rounding"
        lines.append(
            f"Base models of {task}: {percent(mine)} % here, {percent(theirs)} % in the release, {same}."
        )
    return lines


def _base_rate(results: Results) -> float:
    base = results.items[results.items["trust_region"] == BASE]
    return float((base["c"] / base["n"]).mean())


def places(table: pd.DataFrame, name: str, finals: Sequence[Results]) -> list[str]:
    """The rank of the added rule on each task with its range, as lines."""
    ranges = place_ranges(finals, [str(rule) for rule in table["trust_region"].unique()])
    lines = []
    for (task, model), group in table.groupby(["task", "model"], sort=False, observed=True):
        order = list(group["trust_region"])
        row = group[group["trust_region"] == name].iloc[0]
        place = order.index(name)
        low, high = ranges.get((str(task), name), (0, 0))
        range_ = f" ({low} to {high} in 95 % of draws of the seeds)" if high > low else ""
        lines.append(
            f"{task} ({model}): {name} is number {place + 1} of {len(order)}{range_}, "
            f"test pass@1 {percent(row['pass@1'])} %{f', below {order[place - 1]}' if place else ''}"
        )
    return lines


def read_finals(
    root: Path, protocol: Protocol, name: str, tasks: Sequence[str]
) -> dict[str, tuple[Results, Results]]:
    """Released and added results of fresh seeds by task."""
    return {
        task: (
            read_results(results_directory(f"{protocol.name}-{task}", TIDY, root)),
            read_results(root / f"{protocol.name}-{name}-{task}"),
        )
        for task in tasks
    }
