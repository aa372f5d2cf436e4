"""Where the data, models and chat templates of an experiment come from, and whether there is such a place.

Nothing is downloaded. What is on this machine is used; of the rest the hub is asked whether it has it, and
where the hub cannot be reached, the names that are known here count.
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
from troll.experiment.experiment import Experiment, Run
from troll.experiment.model_settings import Hub, ModelSettings
from troll.operations.doctor import hub_answers
from troll.operations.fetch import needed_data
from troll.operations.hub_context import config_of
from troll.operations.rehearsal.report import Check, State, failures_or_ok
from troll.tasks.datasets.catalogue import DATA_SETS
from troll.tasks.datasets.load import load, mirror_of
from troll.training.wheel_model import kept_at

Kind = Literal["here", "hub", "known", "package", "nowhere"]
"""On this machine; on the hub, which was asked; known by name; left to pip; none of these."""

_KNOWN = Path(__file__).with_name("known_models.yaml")
_hub_answers = cache(hub_answers)
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")


@dataclass(frozen=True)
class Known:
    """What is known of a model of the hub by its name: see known_models.yaml."""

    architecture: str
    tied: bool
    template: bool


@cache
def known_models() -> dict[str, Known]:
    """The models of known architecture, by id."""
    return {name: Known(*facts) for name, facts in read_yaml(_KNOWN, "list of models").items()}


@dataclass(frozen=True)
class Source:
    """Where a model or its tokenizer comes from."""

    id: str  # ``owner/name``
    kind: Kind  # see `Kind`
    directory: Path | None = None  # of its configuration and tokenizer, where they are here
    template: bool | None = None  # whether it has a chat template; None where nobody knows


def _has_template(directory: Path) -> bool:
    if (directory / "chat_template.jinja").exists():
        return True
    path = directory / "tokenizer_config.json"
    try:
        return bool(json.loads(path.read_text(encoding="utf-8")).get("chat_template"))
    except (OSError, ValueError, AttributeError):
        return False


def ask_hub(kind: Literal["models", "datasets"], name: str) -> bool | None:
    """Whether the hub has a repository; None where it cannot be reached.

    It answers 401 for what does not exist, and to people who have not logged in for some that does.
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
    """Where a pretrained model comes from."""
    if model_id in _packages:
        return _packages[model_id]
    config = config_of(model_id)
    if config is not None and any(config.with_name(name).exists() for name in _TOKENIZERS):
        return Source(model_id, "here", config.parent, _has_template(config.parent))
    wheel_model = known_models().get(model_id)
    answer = ask_hub("models", model_id)
    template = wheel_model.template if wheel_model else None
    if answer is not None:
        return Source(model_id, "hub" if answer else "nowhere", None, template)
    return Source(model_id, "known" if wheel_model else "nowhere", None, template)


def hubs_of(experiment: Experiment, runs: Sequence[Run]) -> dict[str, Hub]:
    """The pretrained models of these runs, by their name in the file; a package's with an id of our own.

    A rehearsal's substitutes are all models of one mirror.
    """
    names = dict.fromkeys(run.model for run in runs)
    hubs = {name: as_hub(experiment.models[name]) for name in names}
    return {name: hub for name, hub in hubs.items() if hub is not None}


def as_hub(model: ModelSettings) -> Hub | None:
    """A pretrained model as one of the hub, ``wheel/<package>-<version>-<digest>`` for a package's."""
    if (wheel := model.wheel) is None:
        return model.hub
    version = re.sub(r"[^A-Za-z0-9.]", "-", wheel.version)
    name = f"wheel/{wheel.name}-{version}-{digest_of_json(wheel.model_dump())[:8]}"
    kept = kept_at(wheel)
    _packages[name] = Source(name, "here" if kept else "package", kept, kept is None or _has_template(kept))
    return Hub(id=name)


_packages: dict[str, Source] = {}
"""Sources of packages by the ids that `as_hub` gave them."""


def _nowhere(model_id: str) -> str:
    hint = nearest(model_id, list(known_models()))
    return f"{model_id!r} was found neither on this machine nor on the hub{hint}"


def check_models(experiment: Experiment, runs: Sequence[Run]) -> list[Check]:
    """Whether every model is somewhere."""
    sources = {name: source_of(hub.id) for name, hub in hubs_of(experiment, runs).items()}
    if not sources:
        return []
    words = {
        "here": "on this machine",
        "hub": "on the hub",
        "known": "known by name, the hub was not reached",
        "package": "in a package, which pip was not asked for",
    }
    kinds = [source.kind for source in sources.values()]
    counted = [f"{kinds.count(kind)} {text}" for kind, text in words.items() if kind in kinds]
    failures = [
        Check("models", "failed", _nowhere(source.id), f"models.{name}.hub.id")
        for name, source in sources.items()
        if source.kind == "nowhere"
    ]
    return failures_or_ok("models", failures, ", ".join(counted))


def check_templates(experiment: Experiment, runs: Sequence[Run]) -> list[Check]:
    """Whether every model has a chat template, or the file says that it needs none."""
    hubs = hubs_of(experiment, runs)
    if not hubs:
        return []
    failures: list[Check] = []
    for name, hub in hubs.items():
        state: State = "failed"
        problem = ""
        source = source_of(hub.chat_template_of or hub.id)
        if hub.chat_template_of is not None:
            if source.kind == "nowhere":
                problem = _nowhere(source.id)
            elif source.template is False:
                problem = f"{source.id} has no chat template"
        elif source.template is False:
            problem = f"{hub.id} has no chat template, so that its prompts are plain text"
            if "chat_template_of" in hub.model_fields_set:  # null: its prompts are to be plain text
                state, problem = "note", f"{problem}, as the file says"
            else:
                problem += "; name a model that has one, or write null if that is meant"
        if problem:
            failures.append(Check("chat templates", state, problem, f"models.{name}.hub.chat_template_of"))
    others = sum(hub.chat_template_of is not None for hub in hubs.values())
    return failures_or_ok("chat templates", failures, f"{len(hubs)} models, {others} take another's")


def check_data(experiment: Experiment, runs: Sequence[Run]) -> tuple[list[Check], list[str]]:
    """Reads every part of the data that is here, and looks for a source of the others.

    Returns what was found, and the sets that are not here, which are replaced by built-in rows.
    """
    failures: list[Check] = []
    absent: list[str] = []
    needed = needed_data(experiment, runs)
    for name, splits in needed.items():
        item = DATA_SETS[name]
        key = f"tasks.{name}" if name in experiment.tasks else f"tasks.*.evaluate_on.{name}"
        try:
            mirrored = mirror_of(item) is not None
        except UserError as error:
            return [Check("data", "failed", str(error), "TROLL_DATA_MIRROR")], absent
        try:
            if mirrored or item.evalplus is None:  # it would download its sets
                for split in splits:
                    load(name, split)
                continue
        except UserError as error:
            if mirrored:
                failures.append(Check("data", "failed", str(error), key))
                continue
        absent.append(name)
        repositories = {piece.repository for part in item.parts.values() for piece in part.hub}
        if not repositories and item.evalplus is None:
            failures.append(Check("data", "failed", f"{name} is on no hub and in no mirror", key))
        failures += [
            Check("data", "failed", f"the hub has no data set {repository}", key)
            for repository in sorted(repositories)
            if ask_hub("datasets", repository) is False
        ]
    if absent:
        words = f"not here, built-in rows used instead: {', '.join(absent)}"
        failures.insert(0, Check("data", "note", words))
    if not needed:
        return [], absent
    here = len(needed) - len(absent)
    return failures_or_ok("data", failures, f"{here} of {len(needed)} sets read on this machine"), absent
