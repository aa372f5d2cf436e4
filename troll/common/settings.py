"""Models of user input: they refuse unknown keys, and can be made from a function's signature."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, create_model, model_validator

from troll.common.errors import UserError, unknown
from troll.common.explain import validated

_SECTIONS = ("Args:", "Arguments:", "Keyword Args:", "Keyword Arguments:", "Settings:")
_ENTRY = re.compile(r"(?P<indent>\s+)\*{0,2}(?P<name>\w+)\s*(\([^)]*\))?:(?P<text>.*)")


class StrictModel(BaseModel):
    """Base of all models: refuses unknown keys, is immutable, and takes only finite numbers.

    Attributes:
        NOUN: what messages call a key.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    NOUN: ClassVar[str] = "key"


class Settings(StrictModel):
    """Settings of a rule, an estimator or a task; each has a default, and text is not taken as a number."""

    model_config = ConfigDict(strict=True, arbitrary_types_allowed=True, protected_namespaces=())
    NOUN = "setting"

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Returns the default of every setting."""
        return {name: field.get_default() for name, field in cls.model_fields.items()}

    @classmethod
    def completed(cls, where: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Returns all settings: those given, unchanged, and defaults for the others.

        Fields with ``exclude_if`` are left out where it holds, as in a dump of the model.
        """
        validated(cls, dict(settings), where)
        found = cls.defaults() | dict(settings)
        excluded = {name: field.exclude_if for name, field in cls.model_fields.items()}
        return {
            name: value
            for name, value in found.items()
            if (left_out := excluded[name]) is None or not left_out(value)
        }

    @model_validator(mode="after")
    def _check_order(self) -> Settings:
        """Refuses x_min > x_max, and x > x_last."""
        for low, value in self:
            for high in (re.sub("_min$", "_max", low), f"{low}_last"):
                other = getattr(self, high, None)
                if isinstance(value, int | float) and isinstance(other, int | float) and value > other:
                    raise ValueError(f"{low} is {value!r}, must be <= {high} = {other!r}")
        return self


def keyword_settings(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Returns the keyword-only parameters of a function, which are its settings."""
    parameters = inspect.signature(function).parameters
    return {name: p for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


def settings_of(
    where: str, *functions: Callable[..., Any], defaults: Mapping[str, Any] | None = None
) -> type[Settings]:
    """Makes a model of the settings (keyword-only parameters) of functions or classes.

    Only the annotations of settings are evaluated, because those of other parameters may use names that are
    imported only for type checkers.

    Args:
        where: what messages call the settings' owner.
        functions: if several have a setting of the same name, the last one counts.
        defaults: replace defaults of the first function.
    """
    fields: dict[str, Any] = {}
    for number, function in enumerate(functions):
        parameters, described = keyword_settings(function), descriptions(function)
        changed = (defaults or {}) if number == 0 else {}
        for name in changed:
            if name not in parameters:
                raise UserError(f"{where}: {unknown('setting', name, parameters)}")
        for name, parameter in parameters.items():
            default = changed.get(name, parameter.default)
            if name.startswith("_"):
                raise UserError(f"{where}: setting {name!r} must begin with a letter; rename it")
            if default is inspect.Parameter.empty:
                raise UserError(f"{where}: setting {name!r} has no default; give it one")
            annotation = _annotation(function, parameter, default, where)
            fields[name] = annotation, Field(default, description=described.get(name, ""))
    with warnings.catch_warnings(action="ignore"):  # of settings called like a method of models, such as copy
        try:
            return create_model("Settings", __base__=Settings, **fields)
        except (NameError, TypeError, ValueError, PydanticUserError) as error:
            first = str(error).partition("\n")[0]
            raise UserError(f"{where}: its settings cannot be read ({first})") from None


def _annotation(function: Callable[..., Any], parameter: inspect.Parameter, default: Any, where: str) -> Any:
    """Returns a setting's evaluated annotation; without one, the type of its default."""
    annotation, name = parameter.annotation, parameter.name
    if annotation is inspect.Parameter.empty:
        return float if type(default) is int else Any if default is None else type(default)
    target = function.__init__ if inspect.isclass(function) else inspect.unwrap(function)
    alone = SimpleNamespace(__annotations__={name: annotation})
    try:
        hint = get_type_hints(alone, getattr(target, "__globals__", {}), include_extras=True)[name]
    except Exception as error:  # evaluating an annotation may raise anything
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(
            f"{where}: setting {name!r}: cannot read its annotation {annotation!r} ({reason}); it must be "
            "valid when the file runs: import its names outside of `if TYPE_CHECKING:`"
        ) from None
    return hint | None if default is None else hint


def descriptions(function: Callable[..., Any]) -> dict[str, str]:
    """Returns the descriptions of parameters in a docstring's `_SECTIONS`, each as one line."""
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
