"""Provenance checks: runs that are compared must come from the same program and data."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from troll.common.checkout import DIRTY
from troll.common.errors import UserError
from troll.common.numerics import changed_since

DIGESTS = ("environment", "data", "base_model", "test_data")
"""Digests recorded with every row; the last is of the graded test split, the others are from the manifest."""
_SCOPE: Mapping[str, tuple[str, ...]] = {
    "environment": ("experiment", "place"),
    "data": ("experiment", "task"),
    "base_model": ("experiment", "model", "task", "place"),
    "test_data": ("experiment", "task"),
}
"""The coordinates within which a digest must be the same: each task has its own data and base model.

``place`` identifies the machine of a run, in experiments whose tables grow run by run: another processor or
other libraries round the same base model differently. It is empty in experiments that ran as a whole.
"""
_NAMED_RUNS = 3


def check_digests(runs: pd.DataFrame, *, allow_mixed: bool = False) -> "pd.Series[bool]":
    """Checks that runs to be compared have the same provenance; returns for each run whether it differs.

    ``runs`` has one row per run, with its coordinates, ``place``, ``rule``, ``numerics`` and the columns of
    `DIGESTS`; empty digests are not compared. With ``allow_mixed``, runs that differ from the most frequent
    digest, or have an older version of the numerics, are marked instead of rejected. Ties are broken by the
    digests' text, so the marks do not depend on the order of the runs.

    Raises:
        UserError: runs differ, without ``allow_mixed``.
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
                by_digest = {digest: runs["run_id"][of_scope[of_scope == digest].index] for digest in ordered}
                coordinates = dict(zip(_SCOPE[name], map(str, scope), strict=True))
                raise UserError(_message(name, coordinates, by_digest))
            mixed[of_scope.index] |= of_scope != ordered[0]
    return mixed


def _outdated(runs: pd.DataFrame, *, allow_mixed: bool) -> "pd.Series[bool]":
    """Returns which runs would differ with the newest version of the numerics in their experiment."""
    newest = runs.groupby("experiment")["numerics"].transform("max")
    versions = zip(runs["numerics"], runs["rule"], newest, strict=True)
    outdated = pd.Series([changed_since(old, rule, until=new) for old, rule, new in versions], runs.index)
    if outdated.any() and not allow_mixed:
        first = runs.assign(newest=newest)[outdated].iloc[0]
        raise UserError(
            f"numerics of experiment {first['experiment']} disagree: {first['numerics']} in "
            f"{_named(runs['run_id'][outdated])}, and {first['newest']} in others, which changed these. "
            "Run the older ones again, or set allow_mixed: true, which marks their rows"
        )
    return outdated


def _named(run_ids: Iterable[str]) -> str:
    names = sorted(run_ids)
    more = f" and {len(names) - _NAMED_RUNS} more" if len(names) > _NAMED_RUNS else ""
    return f"{', '.join(names[:_NAMED_RUNS])}{more}"


def _message(name: str, scope: Mapping[str, str], by_digest: Mapping[str, Iterable[str]]) -> str:
    # The digest of further data sets is appended to that of the run's test problems.
    groups = [
        f"{'+'.join(digest[start : start + 12] for start in range(0, len(digest), 64))} in {_named(names)}"
        for digest, names in by_digest.items()
    ]
    where = ", ".join(f"{key} {value}" for key, value in scope.items() if value and key != "place")
    return (
        f"digests.{name} of {where} disagree: {'; '.join(groups)}. "
        "Run the odd ones again, or set allow_mixed: true, which marks their rows"
    )


def commits_of(runs: pd.DataFrame) -> pd.DataFrame:
    """Returns per run ``run_id``, ``git_commit`` and ``changed`` (whether it had uncommitted changes)."""
    table = runs.drop_duplicates(["experiment", "run_id"])
    table = table[["run_id", "git_commit"]].astype(str).reset_index(drop=True)
    return table.assign(changed=table["git_commit"].str.endswith(DIRTY))


def check_clean(runs: pd.DataFrame, place: Path) -> None:
    """Raises `UserError` if runs were made from uncommitted or unknown source."""
    commits = commits_of(runs)
    unknown = commits[commits["changed"] | (commits["git_commit"] == "")]
    if len(unknown):
        raise UserError(
            f"{place}: {len(unknown)} of {len(commits)} runs, such as {unknown['run_id'].iloc[0]}, were made "
            "from uncommitted source and cannot be released; commit the source and run them again"
        )


def machine_name(hardware: str) -> str:
    """Returns what a run was computed on, from the tidy column ``hardware``: its GPUs, else the processor.

    A processor's name alone says little, so its instruction set follows.
    """
    recorded = json.loads(hardware) if hardware else {}
    if gpus := dict.fromkeys(recorded.get("gpus") or ()):
        return " and ".join(gpus)
    names = (recorded.get("processor"), recorded.get("capability"))
    return " ".join(filter(None, names)) or "an unknown processor"
