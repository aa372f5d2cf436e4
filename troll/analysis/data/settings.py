"""The settings that a run recorded, a column of the tidy table that holds JSON, and which runs are the same.

A run that is in two experiments is one piece of evidence, not two: the testbed's own stand in the sweep over
estimators, too. A run is what it was made from, so two runs are the same when they have the same coordinates
(but the experiment), the same settings and the same data, base model and test problems. Settings that only
say how often a run is looked at do not count, nor do source and environment: the same seeds on the same data
are no new draw because a comment changed. Nor do the weights of a base model that was trained from settings:
another processor rounds them otherwise.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import pandas as pd

WATCHING = ("validate_every", "checkpoint_every", "checkpoints_kept")
"""Settings of training that change no number of it."""
_DIGESTS = ("digest_data", "digest_base_model", "digest_test_data")


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


def first_experiments(runs: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Where each run is first."""
    watching = {f"training/{name}" for name in WATCHING}
    settings = dict(settings_by(runs, ["experiment", "run_id"]))
    digests = runs.drop_duplicates(["experiment", "run_id"])[["experiment", "run_id", *_DIGESTS]]
    owners: dict[tuple[str, str], str] = {}
    seen: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for experiment, run_id, *values in digests.astype(str).itertuples(index=False):
        recorded = settings.get((experiment, run_id), {})
        made_of = {name: value for name, value in recorded.items() if name not in watching}
        made_of |= {name: value for name, value in zip(_DIGESTS, values, strict=True) if value}
        if _trained_here(recorded):
            made_of.pop("digest_base_model", None)
        earlier = seen.setdefault(run_id, [])
        first = next((name for name, before in earlier if not differing(made_of, before)), None)
        if first is None:
            earlier.append((experiment, made_of))
        owners[experiment, run_id] = first or experiment
    return owners


def made_first(experiment: str, run_ids: Iterable[str], first: Mapping[tuple[str, str], str]) -> str:
    """The first experiment that holds one of several runs of a configuration."""
    names = {first[experiment, str(run_id)] for run_id in run_ids}
    return next(name for name in first.values() if name in names)


def _trained_here(settings: Mapping[str, Any]) -> bool:
    """Whether a run's base model was trained from settings that it records, and comes from no hub."""
    return any(name.startswith("model/supervised") for name in settings) and not settings.get("model/hub")
