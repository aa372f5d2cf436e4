"""Whether responses fit the context of the hub's models, where this machine has their configurations."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from troll.experiment.experiment import Experiment
from troll.experiment.shapes import context_problems


@cache
def known_context(model_id: str) -> int | None:
    """A model's ``max_position_embeddings``, from the mirror or the hub's cache; None where neither tells.

    Nothing is downloaded.

    Raises:
        UserError: the environment names a mirror that is no directory, or the model there has no config.json.
    """
    from huggingface_hub import try_to_load_from_cache

    from troll.common.hub import in_mirror

    directory = in_mirror(model_id)
    found = directory / "config.json" if directory else try_to_load_from_cache(model_id, "config.json")
    if not isinstance(found, str | Path):
        return None
    try:
        context = json.loads(Path(found).read_text(encoding="utf-8")).get("max_position_embeddings")
    except (OSError, ValueError, AttributeError):  # loading the model says what is wrong with it
        return None
    return context if isinstance(context, int) else None


def hub_context_problems(experiment: Experiment) -> Iterator[str]:
    """Runs whose prompts and responses exceed the context of their model of the hub, a line each."""
    for run in experiment.runs():
        hub = experiment.models[run.model].hub
        context = known_context(hub.id) if hub is not None else None
        if context is not None:
            yield from context_problems(run, experiment.training_of(run), context)
