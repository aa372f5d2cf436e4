"""Compares the run.yaml of a run with what the experiment file says now, without torch."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from troll.common.errors import UserError
from troll.common.user_files import file_digest
from troll.experiment.experiment import Experiment, Run, resolve_model

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # fast, as an experiment may have hundreds of runs


def changed_setting(experiment: Experiment, run: Run, path: Path) -> str:
    """Names the first setting of a run.yaml that differs from the experiment file, with both values.

    Settings of a rule or a task are compared where the experiment file gives them, as their defaults need
    torch. Returns "" if nothing differs or there is no readable run.yaml.
    """
    try:
        recorded = yaml.load(path.read_bytes(), Loader=_LOADER)
    except (OSError, ValueError, yaml.YAMLError):
        return ""
    if not isinstance(recorded, dict):
        return ""
    planned = _planned(experiment, run, recorded)
    for name, was, now in _differences("", {key: recorded.get(key) for key in planned}, planned):
        return f"{name} was {json.dumps(was, default=str)}, is now {json.dumps(now)}"
    return ""


def _planned(experiment: Experiment, run: Run, recorded: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what run.yaml would have, of what is known without torch; None for what it leaves out."""
    task = experiment.tasks[run.task]
    rules = {
        "trust_region": experiment.trust_regions[run.trust_region],
        "estimator": experiment.estimators[run.estimator],
    }
    planned: dict[str, Any] = {
        "model": resolve_model(experiment, run.model, run.task).model_dump(),
        "task": {
            "name": run.task,
            **{size: getattr(task, size) for size in ("train", "validation", "test")},
            "settings": _over(recorded.get("task"), task.settings),
        },
        "training": experiment.training_of(run).model_dump(),
        "validate_on": dict(task.validate_on) or None,
        "thinking": None if experiment.thinking == "off" else experiment.thinking,
    }
    for part, rule in rules.items():
        planned[part] = {
            "name": getattr(run, part),
            "rule": rule.rule,
            "file_sha256": _digest(rule.rule),
            "settings": _over(recorded.get(part), rule.settings),
        }
    as_in_files: dict[str, Any] = json.loads(json.dumps(planned))  # with lists for tuples
    return as_in_files


def _digest(rule: str) -> str | None:
    try:
        return file_digest(rule)
    except UserError:  # no longer there; `troll check` says so
        return None


def _over(recorded: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the recorded settings of a rule or a task, with those of the experiment file in their place."""
    settings = recorded.get("settings") if isinstance(recorded, dict) else None
    return {**(settings if isinstance(settings, dict) else {}), **given}


def _differences(place: str, was: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields the settings that differ, by dotted name; a setting that is left out is None."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*now, *was]):
            name = f"{place}.{key}" if place else str(key)
            yield from _differences(name, was.get(key), now.get(key))
    elif was != now:
        yield place, was, now
