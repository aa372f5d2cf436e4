"""A user's rule beside the rules of a protocol: its runs here, with theirs from here or the release."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from troll.analysis.data.results import Results, read_results
from troll.analysis.data.tidy import BASE, TIDY
from troll.analysis.leaderboard.inputs import outdated_rules
from troll.analysis.leaderboard.protocol import TRIALS, Candidate, Contrast, Protocol, round_name
from troll.analysis.render.formats import listed, percent
from troll.common.errors import UserError
from troll.common.explain import validated
from troll.experiment.directories import results_directory


def with_rule(protocol: Protocol, name: str, rule: str, space: Mapping[str, Sequence[Any]]) -> Protocol:
    """Returns the protocol with an additional rule, with as many trials, and its contrast alone.

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
    contrasts = [Contrast(method=name, baseline=protocol.baseline)]
    comparison = protocol.comparison.model_copy(update={"contrasts": contrasts})
    contents = protocol.model_dump() | {
        "rules": {**protocol.rules, name: candidate},
        "comparison": comparison,
    }
    return validated(Protocol, contents)


def tuning_directories(root: Path, protocol: Protocol) -> list[Path]:
    """Returns the results of the protocol's tuning rounds, from here or released."""
    return [results_directory(name, TIDY, root) for name in protocol.tuning_experiments]


def final_directories(root: Path, protocol: Protocol) -> list[Path]:
    """Returns the results of the protocol's fresh seeds by task, from here or released."""
    return [results_directory(f"{protocol.name}-{task}", TIDY, root) for task in protocol.experiment["tasks"]]


def check_release(root: Path, protocol: Protocol) -> None:
    """Raises `UserError` unless every round and task has runs of the baseline, from here or released."""
    trials = {trial.variant for trial in protocol.trials_of(protocol.baseline)}
    for directory in (*tuning_directories(root, protocol), *final_directories(root, protocol)):
        if not {protocol.baseline, *trials} & set(read_results(directory).runs["trust_region"]):
            raise UserError(
                f"{directory}: has no runs of {protocol.baseline}, the baseline of the protocol; run "
                f"`troll rank PROTOCOL.yaml` first"
            )


def together(finals: Mapping[str, tuple[Results, Results]], name: str) -> list[Results]:
    """Returns all rules' fresh seeds by task: the released runs with base models, and the added rule's.

    Raises `UserError` unless both were tested on the same problems.
    """
    every = []
    for task, (released, added) in finals.items():
        _check_problems(task, released, added)
        runs, items = (
            pd.concat([theirs, mine[mine["trust_region"] == name]], ignore_index=True)
            for theirs, mine in ((released.runs, added.runs), (released.items, added.items))
        )
        every.append(replace(released, runs=runs, items=items))
    return every


def notes(finals: Mapping[str, tuple[Results, Results]]) -> list[str]:
    """What readers must know of runs from two places: base models, and changed numerics."""
    return [*_base_notes(finals), *_source_notes(finals)]


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
    """Returns a note that names the tasks whose released runs have outdated numerics."""
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
