"""What a board is made from: directories of results hold the trials and fresh seeds they are taken for."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from troll.analysis.data.results import Results
from troll.analysis.data.summaries import Cell, cells
from troll.analysis.leaderboard.protocol import TRIALS, Protocol, tried
from troll.common.errors import UserError


def tried_in(runs: pd.DataFrame, protocol: Protocol, directory: Path) -> list[str]:
    """The rules of which there are trials.

    Args:
        runs: tidy table of the experiment of trials.
        protocol: of the leaderboard.
        directory: the table's, for messages.

    Raises:
        UserError: there are no trials, or none of the baseline.
    """
    there = tried(runs, protocol)
    if not there:
        first = next(iter(protocol.trials_by_variant))
        raise UserError(
            f"{directory}: has no trials of {protocol.name}: none of its trust regions has the name of a "
            f"trial, such as {first}; expected results/{protocol.name}-{TRIALS}"
        )
    if protocol.baseline not in there:
        raise UserError(
            f"{directory}: has no trials of {protocol.baseline}, which all rules are compared with; run them "
            "first"
        )
    return there


def trial_runs(runs: pd.DataFrame, protocol: Protocol) -> dict[str, int]:
    """How many runs of trials each rule has, be they on the board or not.

    Args:
        runs: tidy table of the experiment of trials, with runs that no plan of it names.
        protocol: of the leaderboard.
    """
    names = runs.drop_duplicates("run_id")["trust_region"].astype(str)
    rules = names.map({variant: trial.name for variant, trial in protocol.trials_by_variant.items()})
    return {str(name): int(count) for name, count in rules.value_counts().items()}


def check_named_once(directories: Sequence[Path]) -> None:
    """Runs that are read twice would count twice in what is corrected for the number of comparisons.

    Raises:
        UserError: a directory is named twice, be it by another spelling.
    """
    known: dict[Path, Path] = {}
    for path in directories:
        place = path.resolve()
        if place in known:
            spelt = "" if known[place] == path else f", first as {known[place]}"
            raise UserError(f"--final: {path} is given twice{spelt}; name it once")
        known[place] = path


def check_fresh(finals: Mapping[Path, Results], protocol: Protocol) -> None:
    """Makes sure that results hold fresh seeds of the protocol's rules, those of each task once.

    Args:
        finals: by directory.
        protocol: of the leaderboard.

    Raises:
        UserError: results have no run of a rule, another task, or several conditions or estimators; or two
            have the same task.
    """
    tasks: dict[str, Path] = {}
    expected = [f"results/{protocol.name}-{task}" for task in protocol.experiment["tasks"]]
    for directory, results in finals.items():
        present = cells(results.items)
        fresh = [cell for cell in present if cell.trust_region in protocol.rules]
        if not fresh:
            raise UserError(
                f"{directory}: has no fresh seeds of {protocol.name}: none of its trust regions is a rule of "
                f"the protocol; expected {' or '.join(expected)}"
            )
        for task in sorted({cell.task for cell in present}):
            if task not in protocol.experiment["tasks"]:
                raise UserError(
                    f"{directory}: has runs on {task}, which is no task of the protocol; expected "
                    f"{' or '.join(expected)}"
                )
            if (other := tasks.setdefault(task, directory)) != directory:
                raise UserError(f"--final: {other} and {directory} both have runs on {task}; leave one out")
        _check_one_setting(directory, fresh)


def _check_one_setting(directory: Path, fresh: Sequence[Cell]) -> None:
    """A rule has one row for each model and task."""
    for key in ("condition", "estimator"):
        names = sorted({getattr(cell, key) for cell in fresh})
        if len(names) > 1:
            raise UserError(
                f"{directory}: has runs with {key} {names[0]} and with {key} {names[1]}; a board compares "
                "rules under one"
            )
