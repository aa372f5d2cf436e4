"""Generated tasks: small enough for a laptop, hard enough that reinforcement learning has something to do.

A task is one file here, named as the task, with a `TASK` and the model of its settings.
"""

import pkgutil
from collections.abc import Mapping
from typing import Any

_HELPERS = ("splits", "words")
NAMES = tuple(sorted(item.name for item in pkgutil.iter_modules(__path__) if item.name not in _HELPERS))

TOKENIZER_TASKS = ("chains", "functions")
"""Whose text every tokenizer is learnt from. Fixed, so that a new task leaves the models of the others alone;
it is byte-level, so that it reads any text.
"""

WORDY_TASKS = ("locks", "programs")
"""Tasks whose answers draw on thousands of words: a vocabulary that is to hold them is learnt from them.

From all of theirs wherever one of them is, so that the models of one do not depend on what else is trained.
"""


def tokenizer_texts(tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """What the tokenizer of an experiment's models is learnt from.

    The same texts whatever an experiment trains on: its base models are then those of every other. Settings
    that fill a larger vocabulary are an exception: ``names`` of chains, and all of the wordy tasks.
    """
    if any(name in tasks for name in WORDY_TASKS):
        return {name: dict(tasks.get(name, {})) for name in WORDY_TASKS}
    settings: dict[str, dict[str, Any]] = {name: {} for name in TOKENIZER_TASKS}
    for name in settings.keys() & tasks.keys():
        if names := tasks[name].get("names"):
            settings[name] = {"names": names}
    return settings
