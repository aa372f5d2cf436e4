"""What this machine knows of pretrained models before anything runs: contexts, and where packages are."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal

from troll.common.digests import sha256_of_file
from troll.experiment.experiment import Experiment
from troll.experiment.model_settings import ModelSettings, Wheel
from troll.experiment.validation import context_problems


def config_of(model_id: str) -> Path | None:
    """A model's config.json in the mirror or the hub's cache; None where neither has it."""
    from huggingface_hub import try_to_load_from_cache

    from troll.common.hub import in_mirror

    if (directory := in_mirror(model_id)) is not None:
        return directory / "config.json"
    cached = try_to_load_from_cache(model_id, "config.json")
    return Path(cached) if isinstance(cached, str) else None


@cache
def known_context(model_id: str) -> int | None:
    """A model's ``max_position_embeddings`` from mirror or cache, without download; None if unknown."""
    return _context_in(config_of(model_id))


def _context_in(config: Path | None) -> int | None:
    if config is None:
        return None
    try:
        context = json.loads(config.read_text(encoding="utf-8")).get("max_position_embeddings")
    except (OSError, ValueError, AttributeError):  # loading the model says what is wrong with it
        return None
    return context if isinstance(context, int) else None


def _context_of(model: ModelSettings) -> int | None:
    if model.wheel is not None:
        from troll.training.wheel_model import kept_at

        kept = kept_at(model.wheel)
        return _context_in(kept and kept / "config.json")
    return known_context(model.hub.id) if model.hub is not None else None


def wheel_state(wheel: Wheel) -> tuple[Literal["ok", "note", "missing"], str, str]:
    """Whether a package's model is kept, in the mirror, or left to pip: state, what was found, what to do."""
    from troll.training.wheel_model import in_mirror, kept_at, title

    if (kept := kept_at(wheel)) is not None:
        return "ok", f"{title(wheel)} is dequantised: {kept}", ""
    mirrored = in_mirror(wheel)
    if mirrored is None:
        fix = "`troll fetch` does it beforehand, say where jobs cannot reach the index"
        return "note", f"{title(wheel)} will be downloaded by pip", fix
    if sha256_of_file(mirrored) != wheel.sha256:
        fix = "put the right wheel there, or none, so that pip is asked for it"
        return "missing", f"{mirrored}: its sha256 is not {wheel.sha256}", fix
    return "ok", f"{mirrored}", ""


def hub_context_problems(experiment: Experiment) -> Iterator[str]:
    """Runs whose prompts and responses exceed the context of their pretrained model, a line each."""
    contexts = {name: _context_of(model) for name, model in experiment.models.items()}
    for run in experiment.runs():
        context = contexts[run.model]
        if context is not None:
            yield from context_problems(run, experiment.training_of(run), context)
