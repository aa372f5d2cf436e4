"""The gate before every comparison: rows of one comparison must come from one program and one set of data."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from troll.common.checkout import DIRTY
from troll.common.errors import UserError

DIGESTS = ("source", "environment", "data", "base_model", "test_data")
"""Digests that travel with every row; the last is of the graded test split, the others of the manifest."""

CHANGED_SOURCE = "source of rules whose numbers changed"
"""Beside the digests: the source of runs whose rule has other numbers in sources that count as one."""
_SCOPE: Mapping[str, tuple[str, ...]] = {
    "source": ("experiment",),
    CHANGED_SOURCE: ("experiment",),
    "environment": ("experiment", "restored_on"),
    "data": ("experiment", "task"),
    "base_model": ("experiment", "model", "task", "restored_on"),
    "test_data": ("experiment", "task"),
}
"""Within which coordinates a digest has to be the same: each task has its own data and base model.

``restored_on`` is the machine of a run from the archive, empty for runs that were made here: on another
processor the same base model has other bits.
"""
_NAMED_RUNS = 3


def check_digests(
    runs: Sequence[tuple[Mapping[str, Any], Mapping[str, str]]], *, allow_mixed: bool = False
) -> list[bool]:
    """Checks that runs which will be compared were made alike.

    Args:
        runs: coordinates (with ``run_id``) and digests of each run, `CHANGED_SOURCE` among them where it
            applies. A digest that a run does not have is not compared.
        allow_mixed: mark the runs that differ from the most frequent digest instead of refusing.

    Returns:
        One flag per run: whether it differs from the majority. Equally frequent digests are ordered by their
        text, so that the marks do not depend on the order of the runs.

    Raises:
        UserError: two runs disagree; the message names the digest, its values and runs.
    """
    mixed = [False] * len(runs)
    for name in (*DIGESTS, CHANGED_SOURCE):
        scopes: dict[tuple[Any, ...], list[int]] = {}
        for index, (coordinates, digests) in enumerate(runs):
            if digests.get(name):
                scopes.setdefault(tuple(coordinates.get(key, "") for key in _SCOPE[name]), []).append(index)
        for scope, indices in scopes.items():
            counts = Counter(runs[index][1][name] for index in indices)
            if len(counts) == 1:
                continue
            if not allow_mixed:
                raise UserError(_message(name, scope, runs, indices, counts))
            majority = min(counts, key=lambda digest: (-counts[digest], digest))
            for index in indices:
                mixed[index] |= runs[index][1][name] != majority
    return mixed


def _message(
    name: str,
    scope: tuple[Any, ...],
    runs: Sequence[tuple[Mapping[str, Any], Mapping[str, str]]],
    indices: Sequence[int],
    counts: Counter[str],
) -> str:
    parts = []
    for digest in sorted(counts, key=lambda text: (-counts[text], text)):
        names = sorted(str(runs[i][0]["run_id"]) for i in indices if runs[i][1][name] == digest)
        more = f" and {len(names) - _NAMED_RUNS} more" if len(names) > _NAMED_RUNS else ""
        # That of further data sets stands behind that of a run's own test problems.
        short = "+".join(digest[start : start + 12] for start in range(0, len(digest), 64))
        parts.append(f"{short} in {', '.join(names[:_NAMED_RUNS])}{more}")
    where = ", ".join(f"{key} {value}" for key, value in zip(_SCOPE[name], scope, strict=True) if value)
    return (
        f"digests.{name} of {where} disagree: {'; '.join(parts)}. "
        "Run the odd ones again, or allow mixed rows (they are then marked)"
    )


def made_from_commits(runs: pd.DataFrame) -> pd.DataFrame:
    """What each run was made from.

    A checkout has changes, too, where tracked results have been made again. What runs are made from has a
    digest of its own: where it is that of a run from an unchanged checkout, the commit has it.

    Args:
        runs: the tidy table.

    Returns:
        A row per run: ``run_id``, ``git_commit``, ``changed`` (the checkout had changes that were not
        committed) and ``known`` (what it was made from is in a commit).
    """
    table = runs.drop_duplicates(["experiment", "run_id"])
    table = table[["run_id", "git_commit", "digest_source"]].astype(str).reset_index(drop=True)
    table["changed"] = table["git_commit"].str.endswith(DIRTY)
    table["known"] = (table["git_commit"] != "") & ~table["changed"]
    digests = set(table.loc[table["known"], "digest_source"]) - {"", "nan"}
    table["known"] |= table["changed"] & table["digest_source"].isin(digests)
    return table.drop(columns="digest_source")


def check_clean(runs: pd.DataFrame, place: Path) -> None:
    """Refuses a release whose source nobody can look up.

    Args:
        runs: the tidy table.
        place: what to call it in the message.

    Raises:
        UserError: a run's source had changes that are in no commit, or was in no git repository.
    """
    made = made_from_commits(runs)
    unknown = made[~made["known"]]
    if len(unknown):
        raise UserError(
            f"{place}: {len(unknown)} of {len(made)} runs, {unknown['run_id'].iloc[0]} among them, were made "
            "from source that is in no commit, and cannot be released; commit it, and make them again"
        )
