"""Registries speak one language: unknown names are answered with the nearest and with all known ones."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from troll.errors import UserError


def nearest(name: str, known: Iterable[str]) -> str:
    """The tail of an error message: ", did you mean 'x'? Known: x, y"."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, 1, 0.5)
    return (f", did you mean {close[0]!r}?" if close else ".") + f" Known: {', '.join(names) or 'none'}"


def keyword_settings(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The keyword-only parameters of a function: the settings a user may name."""
    parameters = inspect.signature(function, eval_str=True).parameters
    return {name: p for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


def check_settings(where: str, settings: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse settings that do not exist.

    Raises:
        UserError: names the first unknown setting, the nearest known one, and all of them.
    """
    names = list(known)
    for name in settings:
        if name not in names:
            raise UserError(f"{where}: unknown setting {name!r}{nearest(name, names)}")


def check_number(
    where: str, value: Any, low: float, high: float, meaning: str, *, open_low: bool = False
) -> float:
    """Return a number that lies in [low, high] (or (low, high]).

    Raises:
        UserError: it does not, or it is no number.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (low < value <= high or (value == low and not open_low)):
        raise UserError(f"{where}: got {value!r}, must be {meaning}")
    return float(value)
