"""Finds the sources of an experiment's data, models and chat templates, without downloading anything.

What is not on this machine is looked up on the hub; if that cannot be reached, in known_models.yaml.
"""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from http.client import HTTPException
from pathlib import Path
from typing import Literal
from urllib.error import HTTPError
from urllib.request import urlopen

from troll.common.digests import digest_of_json
from troll.common.errors import UserError, nearest
from troll.common.files import read_yaml
from troll.common.hub import config_of
from troll.experiment.experiment import Experiment, Run
from troll.experiment.model_settings import Hub, ModelSettings
from troll.operations.doctor import hub_answers
from troll.operations.fetch import needed_data
from troll.operations.rehearsal.report import Check, State, failures_or_ok
from troll.tasks.datasets.catalogue import DATA_SETS
from troll.tasks.datasets.load import load, mirror_of
from troll.tasks.datasets.settings import require_system_turn
from troll.training.wheel_model import kept_at

Kind = Literal["here", "hub", "known", "package", "missing"]
"""On this machine; found on the hub; in known_models.yaml; in a package left to pip; none of these."""

_KNOWN = Path(__file__).with_name("known_models.yaml")
_hub_answers = cache(hub_answers)
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")


@dataclass(frozen=True)
class Known:
    """An entry of known_models.yaml."""

    architecture: str
    tied: bool
    template: bool


@cache
def known_models() -> dict[str, Known]:
    """Reads the models of known architecture, by id."""
    return {name: Known(*facts) for name, facts in read_yaml(_KNOWN, "list of models").items()}


@dataclass(frozen=True)
class Source:
    """Where a model or its tokenizer comes from."""

    id: str  # ``owner/name``
    kind: Kind  # see `Kind`
    directory: Path | None = None  # of its configuration and tokenizer, if on this machine
    template: bool | None = None  # whether it has a chat template; None if unknown


def _has_template(directory: Path) -> bool:
    if (directory / "chat_template.jinja").exists():
        return True
    path = directory / "tokenizer_config.json"
    try:
        return bool(json.loads(path.read_text(encoding="utf-8")).get("chat_template"))
    except (OSError, ValueError, AttributeError):
        return False


def ask_hub(kind: Literal["models", "datasets"], name: str) -> bool | None:
    """Whether the hub has a repository; None if it cannot be reached.

    Its answer 401 counts as no: it stands for missing repositories, and for some that require a login.
    """
    if _hub_answers():
        return None
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        with urlopen(f"{address}/api/{kind}/{name}", timeout=10.0):
            return True
    except HTTPError as error:
        return False if error.code in (401, 404) else None
    except (HTTPException, OSError, ValueError):
        return None


def source_of(model_id: str) -> Source:
    """Finds the source of a pretrained model."""
    if model_id in _packages:
        return _packages[model_id]
    config = config_of(model_id)
    if config is not None and any(config.with_name(name).exists() for name in _TOKENIZERS):
        return Source(model_id, "here", config.parent, _has_template(config.parent))
    known = known_models().get(model_id)
    answer = ask_hub("models", model_id)
    template = known.template if known else None
    if answer is not None:
        return Source(model_id, "hub" if answer else "missing", None, template)
    return Source(model_id, "known" if known else "missing", None, template)


def hubs_of(experiment: Experiment, runs: Sequence[Run]) -> dict[str, Hub]:
    """Returns the pretrained models of these runs, by name; those from packages get an id by `as_hub`."""
    names = dict.fromkeys(run.model for run in runs)
    hubs = {name: as_hub(experiment.models[name]) for name in names}
    return {name: hub for name, hub in hubs.items() if hub is not None}


def as_hub(model: ModelSettings) -> Hub | None:
    """Returns a pretrained model as a hub model, so that all substitutes are hub models in one mirror.

    A model from a package gets the id ``wheel/<package>-<version>-<digest>``.
    """
    if (wheel := model.wheel) is None:
        return model.hub
    version = re.sub(r"[^A-Za-z0-9.]", "-", wheel.version)
    name = f"wheel/{wheel.name}-{version}-{digest_of_json(wheel.model_dump())[:8]}"
    kept = kept_at(wheel)
    _packages[name] = Source(name, "here" if kept else "package", kept, kept is None or _has_template(kept))
    return Hub(id=name)


_packages: dict[str, Source] = {}
"""Sources of models from packages, by the ids that `as_hub` gave them."""


def _nowhere(model_id: str) -> str:
    hint = nearest(model_id, list(known_models()))
    return f"{model_id!r} was found neither on this machine nor on the hub{hint}"


def check_models(experiment: Experiment, runs: Sequence[Run]) -> list[Check]:
    """Checks that every pretrained model has a source."""
    sources = {name: source_of(hub.id) for name, hub in hubs_of(experiment, runs).items()}
    if not sources:
        return []
    words = {
        "here": "on this machine",
        "hub": "on the hub",
        "known": "known by name (the hub cannot be reached)",
        "package": "in a package (not looked up)",
    }
    kinds = [source.kind for source in sources.values()]
    counted = [f"{kinds.count(kind)} {text}" for kind, text in words.items() if kind in kinds]
    failures = [
        Check("models", "failed", _nowhere(source.id), f"models.{name}.hub.id")
        for name, source in sources.items()
        if source.kind == "missing"
    ]
    return failures_or_ok("models", failures, ", ".join(counted))


def check_templates(experiment: Experiment, runs: Sequence[Run]) -> list[Check]:
    """Checks that every pretrained model has a chat template, or is configured to use none."""
    hubs = hubs_of(experiment, runs)
    if not hubs:
        return []
    failures: list[Check] = []
    for name, hub in hubs.items():
        state: State = "failed"
        problem = ""
        source = source_of(hub.chat_template_of or hub.id)
        if hub.chat_template_of is not None:
            if source.kind == "missing":
                problem = _nowhere(source.id)
            elif source.template is False:
                problem = f"{source.id} has no chat template"
        elif source.template is False:
            problem = f"{hub.id} has no chat template, so its prompts are plain text"
            if "chat_template_of" in hub.model_fields_set:  # an explicit null
                state, problem = "note", f"{problem}, as configured"
            else:
                problem += "; set it to a model that has one, or to null if plain text is intended"
        if problem:
            failures.append(Check("chat templates", state, problem, f"models.{name}.hub.chat_template_of"))
    others = sum(hub.chat_template_of is not None for hub in hubs.values())
    return failures_or_ok("chat templates", failures, f"{len(hubs)} models, {others} take another's")


def check_data(experiment: Experiment, runs: Sequence[Run]) -> tuple[list[Check], list[str]]:
    """Reads the public data sets that are on this machine, and looks for sources of the others.

    Returns the checks, and the sets that are not on this machine, which built-in rows replace.
    """
    failures: list[Check] = []
    absent: list[str] = []
    needed = needed_data(experiment, runs)
    for name, splits in needed.items():
        item = DATA_SETS[name]
        key = f"tasks.{name}"
        if name not in experiment.tasks:
            evaluated = any(name in task.evaluate_on for task in experiment.tasks.values())
            key = f"tasks.*.{'evaluate_on' if evaluated else 'validate_on'}.{name}"
        try:
            mirrored = mirror_of(item) is not None
        except UserError as error:
            return [Check("data", "failed", str(error), "TROLL_DATA_MIRROR")], absent
        try:
            if mirrored or item.evalplus is None:  # evalplus would download its sets
                settings = experiment.tasks[name].settings if name in experiment.tasks else {}
                for split in splits:
                    require_system_turn(name, load(name, split).problems, settings)
                continue
        except UserError as error:
            if mirrored:
                failures.append(Check("data", "failed", str(error), key))
                continue
        absent.append(name)
        repositories = {piece.repository for part in item.parts.values() for piece in part.hub}
        if not repositories and item.evalplus is None:
            failures.append(Check("data", "failed", f"{name} is in no mirror, and not on the hub", key))
        failures += [
            Check("data", "failed", f"the hub has no data set {repository}", key)
            for repository in sorted(repositories)
            if ask_hub("datasets", repository) is False
        ]
    if absent:
        words = f"not on this machine, replaced by built-in rows: {', '.join(absent)}"
        failures.insert(0, Check("data", "note", words))
    if not needed:
        return [], absent
    here = len(needed) - len(absent)
    return failures_or_ok("data", failures, f"{here} of {len(needed)} sets read on this machine"), absent
