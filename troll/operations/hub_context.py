"""Facts about pretrained models that are known before anything runs: context lengths and package files."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal

from troll.common.digests import sha256_of_file
from troll.common.hub import config_of
from troll.common.models import context_of
from troll.experiment.experiment import Experiment
from troll.experiment.model_settings import ModelSettings, Wheel
from troll.experiment.validation import context_problems


@cache
def known_context(model_id: str) -> int | None:
    """Returns a model's context in tokens without downloading anything; None if unknown."""
    return _context_in(config_of(model_id))


def _context_in(config: Path | None) -> int | None:
    if config is None:
        return None
    try:
        facts = json.loads(config.read_text(encoding="utf-8"))
        if isinstance(context := facts.get("max_position_embeddings"), int):
            return context
        from transformers import AutoConfig  # late: slow, and only for models with a nested configuration

        return context_of(AutoConfig.for_model(facts.pop("model_type"), **facts))
    except Exception:  # of several kinds; loading the model reports what is wrong with the file
        return None


def _context_of(model: ModelSettings) -> int | None:
    if model.wheel is not None:
        from troll.training.wheel_model import kept_at

        kept = kept_at(model.wheel)
        return _context_in(kept and kept / "config.json")
    return known_context(model.hub.id) if model.hub is not None else None


def wheel_state(wheel: Wheel) -> tuple[Literal["ok", "note", "missing"], str, str]:
    """Returns state, finding and fix for a package's model: dequantised, in the mirror, or left to pip."""
    from troll.training.wheel_model import in_mirror, kept_at, title

    if (kept := kept_at(wheel)) is not None:
        return "ok", f"{title(wheel)} is dequantised: {kept}", ""
    mirrored = in_mirror(wheel)
    if mirrored is None:
        fix = "run `troll fetch` beforehand if jobs cannot reach the package index"
        return "note", f"pip will download {title(wheel)}", fix
    if sha256_of_file(mirrored) != wheel.sha256:
        fix = "replace it with the right wheel, or remove it so that pip downloads it"
        return "missing", f"{mirrored}: its sha256 is not {wheel.sha256}", fix
    return "ok", f"{mirrored}", ""


def hub_context_problems(experiment: Experiment) -> Iterator[str]:
    """Yields a line for each run whose prompt and response exceed its pretrained model's context."""
    contexts = {name: _context_of(model) for name, model in experiment.models.items()}
    for run in experiment.runs():
        context = contexts[run.model]
        if context is not None:
            yield from context_problems(run, experiment.training_of(run), context)
