"""The settings that a run recorded: a column of the tidy table that holds JSON."""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import pandas as pd


@lru_cache(maxsize=4096)
def flat_settings(text: str) -> Mapping[str, Any]:
    """Settings by their path, as in ``training/learning_rate``; lists as their JSON, which can be hashed."""
    return dict(_flat(json.loads(text), "")) if text else {}


def _flat(value: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from _flat(inner, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", json.dumps(inner) if isinstance(inner, list) else inner


def settings_by(runs: pd.DataFrame, names: list[str]) -> Iterator[tuple[tuple[Any, ...], Mapping[str, Any]]]:
    """The settings of the first run of each kind."""
    table = runs.loc[runs["settings"] != "", [*names, "settings"]].drop_duplicates(names)
    for *key, text in table.itertuples(index=False):
        yield tuple(key), flat_settings(str(text))


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """The settings that both record and that differ, sorted; a version that records more is no difference."""
    return sorted(name for name in first.keys() & second.keys() if first[name] != second[name])
