"""Generated tasks: small enough for a laptop, hard enough that reinforcement learning has something to do.

A task is one file here, named as the task, with a `TASK`.
"""

import pkgutil

_HELPERS = ("splits",)
NAMES = tuple(sorted(item.name for item in pkgutil.iter_modules(__path__) if item.name not in _HELPERS))

TOKENIZER_TASKS = ("chains", "functions")
"""Whose text every tokenizer is learnt from. Fixed, so that a new task leaves the models of the others alone;
it is byte-level, so that it reads any text.
"""
