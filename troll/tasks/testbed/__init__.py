"""Generated tasks: small enough for a laptop, hard enough that reinforcement learning can improve a model.

Each task is a module of its name, with its `TASK` and a model of its settings.
"""

import pkgutil
from collections.abc import Mapping
from typing import Any

_HELPERS = ("splits", "words")
NAMES = tuple(sorted(item.name for item in pkgutil.iter_modules(__path__) if item.name not in _HELPERS))

TOKENIZER_TASKS = ("chains", "functions")
"""The tasks that tokenizers are learnt from. Fixed, so that a new task does not change the models of others;
tokenizers are byte-level, so that they read any text.
"""

WORDY_TASKS = ("locks", "programs")
"""Tasks with thousands of words in their answers, for which the tokenizer is learnt from these tasks.

If an experiment has one of them, all are used, so that the models of one do not depend on the others.
"""


def tokenizer_texts(tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the tasks, with settings, that the tokenizer of an experiment's models is learnt from.

    They are the same whatever an experiment trains on, so that experiments share their base models. Settings
    that fill a larger vocabulary are an exception: ``names`` of chains, and all settings of `WORDY_TASKS`.
    """
    if any(name in tasks for name in WORDY_TASKS):
        return {name: dict(tasks.get(name, {})) for name in WORDY_TASKS}
    settings: dict[str, dict[str, Any]] = {name: {} for name in TOKENIZER_TASKS}
    for name in settings.keys() & tasks.keys():
        if names := tasks[name].get("names"):
            settings[name] = {"names": names}
    return settings
