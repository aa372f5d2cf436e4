"""Rules by name: what is known of each, what its settings may be, and one class for all registries."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin

from troll.algorithms.aggregation import check_aggregation
from troll.algorithms.ranges import Range
from troll.common.errors import UserError, unknown


@dataclass(frozen=True)
class Setting:
    """One setting of a rule, as its annotation says: ``bool``, ``Annotated[float, Range(...)]``, ``Literal``.

    Attributes:
        default: its default.
        kind: float, int, bool or str; None if anything is allowed.
        choices: the allowed values if they are a fixed few.
        range: the allowed numbers.
        optional: whether None is allowed.
    """

    default: Any
    kind: type | None = None
    choices: tuple[Any, ...] = ()
    range: Range | None = None
    optional: bool = False

    @classmethod
    def of(cls, parameter: inspect.Parameter, default: Any) -> Setting:
        """The setting that a keyword-only parameter declares; without an annotation its default tells."""
        annotation = parameter.annotation
        if annotation is inspect.Parameter.empty:
            annotation = float if type(default) is int else type(default)
        optional, annotation = _without_none(annotation)
        allowed: Range | None = None
        if get_origin(annotation) is Annotated:
            annotation, *marks = get_args(annotation)
            allowed = next((mark for mark in marks if isinstance(mark, Range)), None)
        if get_origin(annotation) is Literal:
            return cls(default, choices=get_args(annotation), optional=optional)
        kind = annotation if annotation in (float, int, bool, str) else None
        if allowed is None and kind in (float, int):
            allowed = Range()
        return cls(default, kind, range=allowed, optional=optional or default is None)

    @property
    def meaning(self) -> str:
        """What would be right, in words."""
        if self.choices:
            text = f"one of {', '.join(map(repr, self.choices))}"
        elif self.range is not None:
            text = self.range.words("an integer" if self.kind is int else "a number")
        else:
            text = {bool: "true or false", str: "text"}.get(self.kind or object, "anything")
        return f"{text}, or none" if self.optional else text

    def allows(self, value: Any) -> bool:
        """Whether a value is right."""
        if value is None:
            return self.optional or (self.kind is None and not self.choices)
        if self.choices:
            return value in self.choices
        if self.range is not None:
            return value in self.range and (self.kind is not int or isinstance(value, int))
        return self.kind is None or isinstance(value, self.kind)


def _without_none(annotation: Any) -> tuple[bool, Any]:
    if get_origin(annotation) not in (Union, UnionType):
        return False, annotation
    parts = [part for part in get_args(annotation) if part is not NoneType]
    optional = len(parts) < len(get_args(annotation))
    return optional, parts[0] if len(parts) == 1 else object


def keyword_settings(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The keyword-only parameters of a function: the settings a user may name."""
    parameters = inspect.signature(function, eval_str=True).parameters
    return {name: p for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


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
            UserError: a default of a setting that does not exist, or is not allowed; an unknown aggregation.
        """
        parameters = keyword_settings(function)
        for key in defaults:
            if key not in parameters:
                raise UserError(f"register({name!r}): {unknown('setting', key, parameters)}")
        settings = {key: Setting.of(p, defaults.get(key, p.default)) for key, p in parameters.items()}
        if controller is not None:
            settings |= {key: Setting.of(p, p.default) for key, p in keyword_settings(controller).items()}
            more["controller"] = controller
        for key, setting in settings.items():
            if setting.default is inspect.Parameter.empty:
                raise UserError(f"register({name!r}): setting {key!r} has no default; give it one")
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


def _as_number(value: Any) -> str:
    """A hint where a number came as text, as YAML takes 1e-3."""
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        return ""
    return "" if math.isnan(number) else "; it is text: YAML wants numbers as 0.001 or 1.0e-3, without quotes"
