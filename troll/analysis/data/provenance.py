"""The gate before every comparison: rows of one comparison must come from one program and one set of data."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

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


def check_digests(runs: pd.DataFrame, *, allow_mixed: bool = False) -> "pd.Series[bool]":
    """Checks that runs which will be compared were made alike; returns for each whether it differs.

    Runs are rows with their coordinates, ``place``, ``rule``, ``numerics`` and the columns of `DIGESTS`, of
    which empty ones are not compared. With ``allow_mixed`` runs that differ from the most frequent digest,
    and those from an older version of the numbers, are marked instead of refused. Equally frequent digests
    are ordered by their text, so that the marks do not depend on the order of the runs.
    """
    mixed = _outdated(runs, allow_mixed=allow_mixed)
    for name in DIGESTS:
        digests = runs[f"digest_{name}"]
        for scope, of_scope in digests[digests != ""].groupby(
            [runs[key] for key in _SCOPE[name]], sort=False
        ):
            counts = Counter(of_scope)
            ordered = sorted(counts, key=lambda digest: (-counts[digest], digest))
            if len(ordered) > 1 and not allow_mixed:
                having = {digest: runs["run_id"][of_scope[of_scope == digest].index] for digest in ordered}
                raise UserError(_message(name, dict(zip(_SCOPE[name], map(str, scope), strict=True)), having))
            mixed[of_scope.index] |= of_scope != ordered[0]
    return mixed


def _outdated(runs: pd.DataFrame, *, allow_mixed: bool) -> "pd.Series[bool]":
    """Which runs would come out differently at the newest version of the numbers in their experiment."""
    newest = runs.groupby("experiment")["numerics"].transform("max")
    versions = zip(runs["numerics"], runs["rule"], newest, strict=True)
    outdated = pd.Series([changed_since(old, rule, until=new) for old, rule, new in versions], runs.index)
    if outdated.any() and not allow_mixed:
        first = runs.assign(newest=newest)[outdated].iloc[0]
        raise UserError(
            f"numerics of experiment {first['experiment']} disagree: {first['numerics']} in "
            f"{_named(runs['run_id'][outdated])}, and {first['newest']} in others, which changed these. "
            "Run the older ones again, or allow mixed rows (they are then marked)"
        )
    return outdated


def _named(run_ids: Iterable[str]) -> str:
    names = sorted(run_ids)
    more = f" and {len(names) - _NAMED_RUNS} more" if len(names) > _NAMED_RUNS else ""
    return f"{', '.join(names[:_NAMED_RUNS])}{more}"


def _message(name: str, scope: Mapping[str, str], having: Mapping[str, Iterable[str]]) -> str:
    # That of further data sets stands behind that of a run's own test problems.
    said = [
        f"{'+'.join(digest[start : start + 12] for start in range(0, len(digest), 64))} in {_named(names)}"
        for digest, names in having.items()
    ]
    where = ", ".join(f"{key} {value}" for key, value in scope.items() if value and key != "place")
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
