"""Settings recorded by runs (a JSON column of the tidy table), and the identity of runs across experiments.

A run that appears in two experiments is one piece of evidence: the sweep over estimators, for example,
contains runs of the testbed. Two runs are the same if they have the same coordinates (except the experiment),
settings, data, base model and test problems. Not compared are settings that only control monitoring; source
and environment, since the same seeds on the same data are not a new sample after a comment was changed; and
the weights of a base model that was trained from settings, which another processor rounds differently.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import pandas as pd

from troll.experiment.run_config import PretrainedOfRun, ScratchModelOfRun
from troll.experiment.settings import Training

WATCHING = ("validate_every", "checkpoint_every", "checkpoints_kept")
"""Training settings that do not affect its numbers."""
BATCH_SIZE = (
    *("prompts_per_batch", "responses_per_prompt", "mini_batches", "micro_batches", "micro_batch_tokens"),
    *("gpus", "mixed_precision"),
)
"""Training settings that make one setting of several: how much is sampled at a time, and on what machine."""
_ROUNDING = ("epochs", "share_prompts", "gradient_checkpointing")
"""Training settings that are left out at their defaults and change nothing but rounding; rollout_batches has
what epochs leave."""
OF_THE_RUN = ("thinking", "files_sha256")
"""Settings outside the blocks; left out if a model does not think and no file of a user takes part."""
_LEFT_OUT = {
    pretrained: OF_THE_RUN
    + tuple(
        f"{block}/{name}"
        for block, model in (("training", Training), ("model", of_model))
        for name, field in model.model_fields.items()
        if field.exclude_if is not None and name not in _ROUNDING
    )
    for pretrained, of_model in ((False, ScratchModelOfRun), (True, PretrainedOfRun))
}
"""By whether the model is pretrained: settings that runs record only if they are not the default, so that a
run that lacks one has its default."""
_DATA = ("digest_data", "digest_test_data")
_DIGESTS = (*_DATA, "digest_base_model")


@lru_cache(maxsize=4096)
def flat_settings(text: str) -> Mapping[str, Any]:
    """Settings by path, such as ``training/learning_rate``; lists as JSON, which is hashable."""
    return dict(_flat(json.loads(text), "")) if text else {}


def _flat(value: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from _flat(inner, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", json.dumps(inner) if isinstance(inner, list) else inner


def settings_by(runs: pd.DataFrame, names: list[str]) -> Iterator[tuple[tuple[Any, ...], Mapping[str, Any]]]:
    """Yields the settings of the first run of each group, by the values of the columns ``names``."""
    table = runs.loc[runs["settings"] != "", [*names, "settings"]].drop_duplicates(names)
    for *key, text in table.itertuples(index=False):
        yield tuple(key), flat_settings(str(text))


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Returns names of the settings that both record with different values, or only one at all, sorted.

    Others that only one records are of a later version, and not compared; null says no more than nothing.
    """
    left_out = _LEFT_OUT[_pretrained(first) or _pretrained(second)]
    alone = {
        name
        for name in first.keys() ^ second.keys()
        if _of(name, left_out) and {**first, **second}[name] is not None
    }
    both = {name for name in first.keys() & second.keys() if first[name] != second[name]}
    return sorted(both | alone)


def _pretrained(settings: Mapping[str, Any]) -> bool:
    """Returns whether a run's model is of the hub or from a wheel; only such a one has an adapter."""
    return any(
        _of(name, ("model/hub", "model/wheel", "model/adapter")) and settings[name] is not None
        for name in settings
    )


def _of(name: str, settings: Iterable[str]) -> bool:
    """Returns whether a name is one of these settings, or in one that is a block."""
    return any(name == setting or name.startswith(f"{setting}/") for setting in settings)


def same_but_for_batches(first: pd.DataFrame, second: pd.DataFrame) -> bool:
    """Returns whether two experiments' runs in a setting differ at most in batches, machine, monitoring."""
    ignored = {f"training/{name}" for name in (*WATCHING, *BATCH_SIZE)}
    recorded = [next(settings_by(runs, ["task"]), ((), {}))[1] for runs in (first, second)]
    data = [{name: set(runs[name].astype(str)) - {""} for name in _DATA} for runs in (first, second)]
    return all(recorded) and data[0] == data[1] and not set(differing(*recorded)) - ignored


def first_experiments(runs: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Returns the first experiment that contains each run, by experiment and run id."""
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


def earliest_experiment(experiment: str, run_ids: Iterable[str], first: Mapping[tuple[str, str], str]) -> str:
    """Returns the first experiment that contains any of several runs of a configuration."""
    names = {first[experiment, str(run_id)] for run_id in run_ids}
    return next(name for name in first.values() if name in names)


def _trained_here(settings: Mapping[str, Any]) -> bool:
    """Returns whether a base model was trained from recorded settings instead of downloaded."""
    return any(name.startswith("model/supervised") for name in settings) and not settings.get("model/hub")
