"""Settings of rules: the keyword-only parameters of a function, and what their annotations allow."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from troll.algorithms.ranges import Range
from troll.common.errors import UserError

_SECTIONS = ("Args:", "Arguments:", "Keyword Args:", "Keyword Arguments:", "Settings:")
_ENTRY = re.compile(r"(?P<indent>\s+)\*{0,2}(?P<name>\w+)\s*(\([^)]*\))?:(?P<text>.*)")


@dataclass(frozen=True)
class Setting:
    """One setting of a rule, as its annotation says.

    An annotation is ``float``, ``int``, ``bool``, ``str``, ``Annotated[float, Range(...)]``, ``Literal``, or
    a union of these and ``None``; anything else allows every value.

    Attributes:
        default: its default.
        kind: float, int, bool or str; None if anything is allowed.
        choices: the allowed values if they are a fixed few.
        range: the allowed numbers.
        optional: whether None is allowed.
        alternatives: of a union, one of which a value has to suit; none otherwise.
        description: what the docstring says of it; empty where it says nothing.
    """

    default: Any
    kind: type | None = None
    choices: tuple[Any, ...] = ()
    range: Range | None = None
    optional: bool = False
    alternatives: tuple[Setting, ...] = ()
    description: str = ""

    @classmethod
    def of(cls, annotation: Any, default: Any) -> Setting:
        """The setting that an annotation declares."""
        parts = list(_flat(annotation))
        optional = any(part is NoneType or None in _choices(part) for part, _ in parts)
        found = [cls._of_part(part, allowed, default) for part, allowed in parts if part is not NoneType]
        if len(found) == 1:
            (one,) = found
            # A Literal says itself whether None is among its values.
            optional = optional or (default is None and not one.choices)
            return cls(default, one.kind, one.choices, one.range, optional)
        if any(one.kind is None and not one.choices for one in found):
            return cls(default, optional=optional)
        return cls(default, optional=optional or default is None, alternatives=tuple(found))

    @classmethod
    def _of_part(cls, annotation: Any, allowed: Range | None, default: Any) -> Setting:
        if get_origin(annotation) is Literal:
            return cls(default, choices=_without_none(annotation))
        kind = annotation if annotation in (float, int, bool, str) else None
        if allowed is None and kind in (float, int):
            allowed = Range()
        return cls(default, kind, range=allowed)

    @property
    def meaning(self) -> str:
        """What would be right, in words."""
        if self.alternatives:
            text = " or ".join(one.meaning for one in self.alternatives)
        elif self.choices:
            text = f"one of {', '.join(map(repr, self.choices))}"
        elif self.range is not None:
            text = self.range.words("an integer" if self.kind is int else "a number")
        else:
            text = {bool: "true or false", str: "text"}.get(self.kind or object, "anything")
        return f"{text}, or none" if self.optional else text

    def allows(self, value: Any) -> bool:
        """Whether a value is right."""
        if self.alternatives:
            return (value is None and self.optional) or any(one.allows(value) for one in self.alternatives)
        if value is None:
            return self.optional or (self.kind is None and not self.choices)
        if self.choices:
            return any(
                value == one and isinstance(value, bool) == isinstance(one, bool) for one in self.choices
            )
        if self.range is not None:
            return value in self.range and (self.kind is not int or isinstance(value, int))
        return self.kind is None or isinstance(value, self.kind)


def _flat(annotation: Any, allowed: Range | None = None) -> Iterator[tuple[Any, Range | None]]:
    """The parts of a union, each with the range that an annotation around it gives."""
    if get_origin(annotation) is Annotated:
        inner, *marks = get_args(annotation)
        yield from _flat(inner, next((mark for mark in marks if isinstance(mark, Range)), allowed))
    elif get_origin(annotation) in (Union, UnionType):
        for part in get_args(annotation):
            yield from _flat(part, allowed)
    else:
        yield annotation, allowed


def _choices(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _without_none(annotation: Any) -> tuple[Any, ...]:
    return tuple(choice for choice in _choices(annotation) if choice is not None)


def keyword_settings(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The keyword-only parameters of a function: the settings a user may name."""
    parameters = inspect.signature(function).parameters
    return {name: p for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


def settings_of(
    function: Callable[..., Any], where: str, defaults: Mapping[str, Any] | None = None
) -> dict[str, Setting]:
    """The settings of a function, or of a class with settings.

    Annotations of settings alone are read: those of other parameters may have names that only type checkers
    know.

    Args:
        function: its keyword-only parameters are the settings.
        where: how messages call it.
        defaults: defaults that differ from the function's.

    Raises:
        UserError: a setting has no default, or an annotation that cannot be read.
    """
    settings, described = {}, descriptions(function)
    for name, parameter in keyword_settings(function).items():
        default = (defaults or {}).get(name, parameter.default)
        if default is inspect.Parameter.empty:
            raise UserError(f"{where}: setting {name!r} has no default; give it one")
        setting = Setting.of(_annotation(function, parameter, default, where), default)
        settings[name] = replace(setting, description=described.get(name, ""))
    return settings


def _annotation(function: Callable[..., Any], parameter: inspect.Parameter, default: Any, where: str) -> Any:
    """A setting's annotation with text in it evaluated; without one its default tells the type."""
    annotation, name = parameter.annotation, parameter.name
    if annotation is inspect.Parameter.empty:
        return float if type(default) is int else type(default)
    target = function.__init__ if inspect.isclass(function) else inspect.unwrap(function)
    alone = SimpleNamespace(__annotations__={name: annotation})
    try:
        return get_type_hints(alone, getattr(target, "__globals__", {}), include_extras=True)[name]
    except Exception as error:  # evaluating text may raise anything
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(
            f"{where}: setting {name!r}: cannot read its annotation {annotation!r} ({reason}); it must be "
            "valid when the file runs: import its names outside of `if TYPE_CHECKING:`"
        ) from None


def descriptions(function: Callable[..., Any]) -> dict[str, str]:
    """What a docstring says of parameters: see `_SECTIONS`; each entry on one line."""
    found: dict[str, list[str]] = {}
    inside, indent, current = False, "", ""
    for line in (inspect.getdoc(function) or "").splitlines():
        if not line[:1].isspace() and line:
            inside, indent, current = line.strip() in _SECTIONS, "", ""
        elif inside and line.strip():
            entry = _ENTRY.match(line)
            if entry is not None and entry["indent"] == (indent or entry["indent"]):
                indent, current = entry["indent"], entry["name"]
                found[current] = [entry["text"].strip()]
            elif current:
                found[current].append(line.strip())
    return {name: " ".join(words).strip() for name, words in found.items()}
