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
from troll.experiment.model_settings import Hub, Wheel
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
    """Finds the source of a model of the hub."""
    config = config_of(model_id)
    if config is not None and any(config.with_name(name).exists() for name in _TOKENIZERS):
        return Source(model_id, "here", config.parent, _has_template(config.parent))
    known, answer = known_models().get(model_id), ask_hub("models", model_id)
    found = known is not None if answer is None else answer
    kind: Kind = "missing" if not found else "known" if answer is None else "hub"
    return Source(model_id, kind, None, known.template if known else None)


def id_of(model: Hub | Wheel) -> str:
    """Returns a model's id on the hub; for one from a package ``wheel/<package>-<version>-<digest>``.

    So all substitutes are hub models in one mirror.
    """
    if isinstance(model, Hub):
        return model.id
    version = re.sub(r"[^A-Za-z0-9.]", "-", model.version)
    return f"wheel/{model.name}-{version}-{digest_of_json(model.model_dump())[:8]}"


def template_of(model: Hub | Wheel) -> str | None:
    """Returns the id of the model whose chat template a model takes; None if it takes its own."""
    return model.chat_template_of if isinstance(model, Hub) else None


def sources_of(experiment: Experiment, runs: Sequence[Run]) -> dict[str, tuple[Hub | Wheel, Source]]:
    """Returns the pretrained models of these runs and their sources, by name."""
    models = {run.model: experiment.models[run.model].pretrained for run in runs}
    return {name: (model, _source(model)) for name, model in models.items() if model is not None}


def _source(model: Hub | Wheel) -> Source:
    if isinstance(model, Hub):
        return source_of(model.id)
    kept = kept_at(model)
    return Source(id_of(model), "here" if kept else "package", kept, kept is None or _has_template(kept))


def _nowhere(model_id: str) -> str:
    hint = nearest(model_id, list(known_models()))
    return f"{model_id!r} was found neither on this machine nor on the hub{hint}"


def check_models(experiment: Experiment, runs: Sequence[Run]) -> list[Check]:
    """Checks that every pretrained model has a source."""
    sources = {name: source for name, (_, source) in sources_of(experiment, runs).items()}
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
    models = sources_of(experiment, runs)
    if not models:
        return []
    failures: list[Check] = []
    for name, (model, source) in models.items():
        state: State = "failed"
        plain = f"{source.id} has no chat template, so its prompts are plain text"
        if other := template_of(model):
            source = source_of(other)
            problem = _nowhere(other) if source.kind == "missing" else f"{other} has no chat template"
        elif "chat_template_of" in model.model_fields_set:  # an explicit null
            state, problem = "note", f"{plain}, as configured"
        else:
            problem = f"{plain}; set it to a model that has one, or to null if plain text is intended"
        if source.template is False or (other and source.kind == "missing"):
            failures.append(Check("chat templates", state, problem, f"models.{name}.hub.chat_template_of"))
    others = sum(template_of(model) is not None for model, _ in models.values())
    return failures_or_ok("chat templates", failures, f"{len(models)} models, {others} take another's")


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
