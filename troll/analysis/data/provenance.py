"""The gate before every comparison: rows of one comparison must come from one program and one set of data."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from troll.common.checkout import DIRTY
from troll.common.errors import UserError
from troll.common.numerics import changed_since

DIGESTS = ("environment", "data", "base_model", "test_data")
"""Digests that travel with every row; the last is of the graded test split, the others of the manifest."""
_SCOPE: Mapping[str, tuple[str, ...]] = {
    "environment": ("experiment", "place"),
    "data": ("experiment", "task"),
    "base_model": ("experiment", "model", "task", "place"),
    "test_data": ("experiment", "task"),
}
"""Within which coordinates a digest has to be the same: each task has its own data and base model.

``place`` is where a run was made, in experiments whose tables grow run by run: on another processor, or with
other libraries, the same base model has other bits. In others it is empty: their runs were made together.
"""
_NAMED_RUNS = 3


@dataclass(frozen=True)
class Made:
    """What a run was made from."""

    coordinates: Mapping[str, Any]  # of the run, ``run_id`` among them, and ``place``
    rule: str  # of its trust region; empty for a base model
    numerics: int  # the version of the numbers that it recorded
    digests: Mapping[str, str]  # by the names of `DIGESTS`; one that it does not have is not compared


def check_digests(runs: Sequence[Made], *, allow_mixed: bool = False) -> list[bool]:
    """Checks that runs which will be compared were made alike; returns for each whether it differs.

    With ``allow_mixed`` runs that differ from the most frequent digest, and those from an older version of
    the numbers, are marked instead of refused. Equally frequent digests are ordered by their text, so that
    the marks do not depend on the order of the runs.
    """
    mixed = _outdated(runs, allow_mixed=allow_mixed)
    for name in DIGESTS:
        scopes: dict[tuple[Any, ...], list[int]] = {}
        for index, run in enumerate(runs):
            if run.digests.get(name):
                scope = tuple(run.coordinates.get(key, "") for key in _SCOPE[name])
                scopes.setdefault(scope, []).append(index)
        for scope, indices in scopes.items():
            counts = Counter(runs[index].digests[name] for index in indices)
            if len(counts) == 1:
                continue
            if not allow_mixed:
                raise UserError(_message(name, scope, runs, indices, counts))
            majority = min(counts, key=lambda digest: (-counts[digest], digest))
            for index in indices:
                mixed[index] |= runs[index].digests[name] != majority
    return mixed


def _outdated(runs: Sequence[Made], *, allow_mixed: bool) -> list[bool]:
    """Which runs would come out differently at the newest version of the numbers in their experiment."""
    newest: dict[str, int] = {}
    for run in runs:
        experiment = str(run.coordinates.get("experiment", ""))
        newest[experiment] = max(run.numerics, newest.get(experiment, 0))
    ends = [newest[str(run.coordinates.get("experiment", ""))] for run in runs]
    outdated = [changed_since(run.numerics, run.rule, until=end) for run, end in zip(runs, ends, strict=True)]
    if any(outdated) and not allow_mixed:
        first = outdated.index(True)
        older = [run for run, old in zip(runs, outdated, strict=True) if old]
        names = _named([str(run.coordinates["run_id"]) for run in older])
        raise UserError(
            f"numerics of experiment {runs[first].coordinates.get('experiment', '')} disagree: "
            f"{runs[first].numerics} in {names}, and {ends[first]} in others, which changed these. "
            "Run the older ones again, or allow mixed rows (they are then marked)"
        )
    return outdated


def _named(run_ids: Sequence[str]) -> str:
    names = sorted(run_ids)
    more = f" and {len(names) - _NAMED_RUNS} more" if len(names) > _NAMED_RUNS else ""
    return f"{', '.join(names[:_NAMED_RUNS])}{more}"


def _message(
    name: str, scope: tuple[Any, ...], runs: Sequence[Made], indices: Sequence[int], counts: Counter[str]
) -> str:
    having = {
        digest: [str(runs[i].coordinates["run_id"]) for i in indices if runs[i].digests[name] == digest]
        for digest in sorted(counts, key=lambda text: (-counts[text], text))
    }
    # That of further data sets stands behind that of a run's own test problems.
    said = [
        f"{'+'.join(digest[start : start + 12] for start in range(0, len(digest), 64))} in {_named(names)}"
        for digest, names in having.items()
    ]
    told = zip(_SCOPE[name], scope, strict=True)
    where = ", ".join(f"{key} {value}" for key, value in told if value and key != "place")
    return (
        f"digests.{name} of {where} disagree: {'; '.join(said)}. "
        "Run the odd ones again, or allow mixed rows (they are then marked)"
    )


def made_from_commits(runs: pd.DataFrame) -> pd.DataFrame:
    """A row per run: ``run_id``, ``git_commit`` and ``changed`` (not all of it was committed)."""
    table = runs.drop_duplicates(["experiment", "run_id"])
    table = table[["run_id", "git_commit"]].astype(str).reset_index(drop=True)
    return table.assign(changed=table["git_commit"].str.endswith(DIRTY))


def check_clean(runs: pd.DataFrame, place: Path) -> None:
    """Refuses a release with source that nobody can look up."""
    made = made_from_commits(runs)
    unknown = made[made["changed"] | (made["git_commit"] == "")]
    if len(unknown):
        raise UserError(
            f"{place}: {len(unknown)} of {len(made)} runs, {unknown['run_id'].iloc[0]} among them, were made "
            "from source that is in no commit, and cannot be released; commit it, and make them again"
        )
