"""What is worked out once for a table, however many tables, figures and verdicts ask for it."""

import weakref
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

import pandas as pd

_Result = TypeVar("_Result")


def cached_per_frame(compute: Callable[[pd.DataFrame], _Result]) -> Callable[[pd.DataFrame], _Result]:
    """Remembers what was computed from a table, which nobody changes in place, as long as the table lives."""
    cache: dict[int, tuple[weakref.ref[pd.DataFrame], _Result]] = {}

    @wraps(compute)
    def remembered(frame: pd.DataFrame) -> _Result:
        key = id(frame)
        entry = cache.get(key)
        if entry is None or entry[0]() is not frame:
            gone = weakref.ref(frame, lambda _: cache.pop(key, None) and None)
            entry = cache[key] = (gone, compute(frame))
        return entry[1]

    return remembered
