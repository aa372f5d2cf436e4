"""Rules by name: what is known of each, and one class for all registries."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from troll.algorithms.aggregation import check_aggregation
from troll.algorithms.settings import Setting, keyword_settings, settings_of
from troll.common.errors import UserError, unknown


@dataclass(frozen=True)
class Entry:
    """What is known of any registered rule.

    Attributes:
        name: the name users write.
        function: the rule.
        summary: first line of its docstring.
        settings: by name, those of a controller included.
        aggregation: the aggregation that belongs to it, if any.
    """

    name: str
    function: Callable[..., Any]
    summary: str
    settings: Mapping[str, Setting]
    aggregation: str | None


E = TypeVar("E", bound=Entry)


class Registry(Mapping[str, E], Generic[E]):
    """Registered rules of one kind, by name; reading it is all that others may do.

    Args:
        kind: how messages call one of them, as in "trust region".
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, E] = {}

    def __getitem__(self, name: str) -> E:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def add(
        self,
        make: Callable[..., E],
        name: str,
        function: Callable[..., Any],
        *,
        defaults: Mapping[str, Any],
        controller: Callable[..., Any] | None = None,
        aggregation: str | None = None,
        **more: Any,
    ) -> None:
        """Makes a function known under a name.

        Args:
            make: the class of the entry.
            name: the name users write.
            function: its keyword-only parameters are its settings.
            defaults: defaults that differ from the function's.
            controller: its keyword-only parameters are settings too.
            aggregation: one of `AGGREGATIONS`, if one belongs to it.
            **more: what else the entry holds.

        Raises:
            UserError: a default of a setting that does not exist, or is not allowed; a setting without a
                default, or with an annotation that cannot be read; an unknown aggregation.
        """
        where, parameters = f"register({name!r})", keyword_settings(function)
        for key in defaults:
            if key not in parameters:
                raise UserError(f"{where}: {unknown('setting', key, parameters)}")
        settings = settings_of(function, where, defaults)
        if controller is not None:
            settings |= settings_of(controller, where)
            more["controller"] = controller
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        aggregation = None if aggregation is None else check_aggregation(aggregation)
        entry = make(
            name=name, function=function, summary=summary, settings=settings, aggregation=aggregation, **more
        )
        self._check(entry, {key: setting.default for key, setting in settings.items()})
        self._entries[name] = entry

    def find(self, name: str, settings: Mapping[str, Any]) -> E:
        """The entry of a name, if it takes these settings.

        Raises:
            UserError: unknown name or setting, or a value that the setting does not allow.
        """
        if name not in self:
            raise UserError(f"{self.kind}: {unknown('name', name, self._entries)}")
        entry = self[name]
        self._check(entry, settings)
        return entry

    def _check(self, entry: E, settings: Mapping[str, Any]) -> None:
        where = f"{self.kind} {entry.name!r}"
        for key, value in settings.items():
            if key not in entry.settings:
                raise UserError(f"{where}: {unknown('setting', key, entry.settings)}")
            setting = entry.settings[key]
            if not setting.allows(value):
                hint = _as_number(value) if setting.range is not None else ""
                raise UserError(f"{where}: {key} is {value!r}, must be {setting.meaning}{hint}")
        values = {key: setting.default for key, setting in entry.settings.items()} | dict(settings)
        for low, high in _ordered(values):
            if values[low] > values[high]:
                raise UserError(f"{where}: {low} is {values[low]!r}, must be <= {high} = {values[high]!r}")


def _ordered(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Pairs of settings of which the first may not be the larger one: x_min and x_max, x and x_last."""
    numbers = [key for key, value in values.items() if isinstance(value, int | float)]
    for key in numbers:
        stem = key.removesuffix("_min")
        for other in (f"{stem}_max" if stem != key else "", f"{key}_last"):
            if other in numbers:
                yield key, other


def _as_number(value: Any) -> str:
    """A hint where a number came as text, as YAML takes 1e-3."""
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        return ""
    return "" if math.isnan(number) else "; it is text: YAML wants numbers as 0.001 or 1.0e-3, without quotes"
