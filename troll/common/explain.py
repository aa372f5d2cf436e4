"""One-line messages for pydantic's validation errors: field, what is wrong, what would be right."""

import re
from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, Tag, ValidationError

from troll.common.errors import UserError, unknown

_SHOWN = 100  # maximum number of characters of a quoted value
# Suffixes of pydantic's error types whose message states what the field takes (see `takes`).
_ANSWERED = ("_type", "_parsing", "_than", "_than_equal", "_number", "_from_float", "literal_error")

_BLOCK = re.compile(r"(a list of)? ?\[\w+\]\(#\w+\)")  # a link to a section of the reference page


def takes(annotation: Any, bounds: Sequence[Any] = ()) -> str:
    """Describes what an annotation allows: "a number >= 0 or infinity", "one of 'k1', 'k2', or none"."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = [part for item in arguments[1:] for part in getattr(item, "metadata", [item])]
        return takes(arguments[0], [*inner, *bounds])
    if origin in (Union, UnionType):
        words = " or ".join(takes(item, bounds) for item in arguments if item is not NoneType)
        return f"{words}, or none" if NoneType in arguments else words
    if origin is Literal:
        choices = [repr(item) for item in arguments if item is not None]
        words = f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]
        return f"{words}, or none" if None in arguments else words
    if origin is list:
        return "a list of " + re.sub(r"^an? (integer|number|mapping)", r"\1s", takes(arguments[0]))
    if origin is dict:
        return "a mapping" if arguments[1] is Any else f"{takes(arguments[1])} by name"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    if annotation in (int, float):
        return _range("an integer" if annotation is int else "a number", bounds)
    named = {str: "text", bool: "true or false", Any: "anything"}
    plain = str(annotation) if arguments else getattr(annotation, "__name__", str(annotation))
    return named.get(annotation) or plain


def _range(noun: str, bounds: Sequence[Any]) -> str:
    found = {
        name: bound
        for item in bounds
        for name in ("gt", "ge", "lt", "le", "allow_inf_nan")
        if (bound := getattr(item, name, None)) is not None
    }
    low, high = found.get("gt", found.get("ge")), found.get("lt", found.get("le"))
    if low is not None and high is not None:
        return f"{noun} in {'(' if 'gt' in found else '['}{low:g}, {high:g}{')' if 'lt' in found else ']'}"
    if low is not None:
        noun = f"{noun} {'>' if 'gt' in found else '>='} {low:g}"
    elif high is not None:
        noun = f"{noun} {'<' if 'lt' in found else '<='} {high:g}"
    return f"{noun} or infinity" if found.get("allow_inf_nan") else noun


_Model = TypeVar("_Model", bound=BaseModel)


def validated(model: type[_Model], value: object, where: object = "") -> _Model:
    """Validates a value against a model; the `UserError` for an invalid one starts with ``where``, if any."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise UserError(f"{where}: " * bool(where) + explain(error, model)) from None


def explain(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    """Describes the first problem of a validation error in one line; ``prefix`` is the path to the model."""
    # A misspelt key is reported as missing and as unknown; the latter is more helpful.
    first = min(error.errors(include_url=False), key=lambda item: item["type"] != "extra_forbidden")
    kind, location, value = first["type"], first["loc"], first["input"]
    if kind == "extra_forbidden":
        keys, owner = _walk(model, location[:-1])
        return _unknown_key([prefix, *keys], str(location[-1]), _model_in(owner))
    of_key = location[-1:] == ("[key]",)
    keys, annotation = _walk(model, location[:-2] if of_key else location)
    where = ".".join(filter(None, [prefix, *keys]))
    if of_key:
        return f"{where}: name {_short(value)} must be text; quote it"
    if kind == "missing":
        return f"{where}: is missing"
    if kind == "too_short":
        has, needs = first["ctx"]["actual_length"], first["ctx"]["min_length"]
        return f"{where}: {f'has {has}' if has else 'is empty'}; at least {needs} needed"
    # An error of the whole model has no field: its message names the keys, the caller the model.
    head = f"{where}: " if where else ""
    inner = _model_in(annotation)
    if kind in ("model_type", "model_attributes_type") and inner is not None:
        return f"{head}expected a block with keys {', '.join(inner.model_fields)} (found {_short(value)})"
    if kind.endswith(_ANSWERED) and where:
        words = _BLOCK.sub(lambda found: f"{found[1] or 'a'} block{'s' * bool(found[1])}", takes(annotation))
        return f"{where} is {_short(value)}, must be {words}{_as_number(value, words)}"
    message = first["msg"].removeprefix("Value error, ")
    quoted = isinstance(value, str) and repr(value) in message
    shown = "" if quoted or isinstance(value, dict | BaseModel) else f" (found {_short(value)})"
    if inner is not None and where and message.partition(":")[0] in inner.model_fields:
        head = f"{where}."  # the message of the whole model begins with one of its keys
    return f"{head}{message[0].lower()}{message[1:]}{shown}"


def _unknown_key(parents: Sequence[str], key: str, owner: type[BaseModel] | None) -> str:
    noun = getattr(owner, "NOUN", "key")
    where = ".".join(filter(None, [*parents, key if noun == "key" else ""]))
    head = f"{where}: " if where else ""
    return f"{head}{unknown(noun, key, owner.model_fields if owner else ())}"


def _walk(annotation: Any, location: Sequence[int | str]) -> tuple[list[str], Any]:
    """Returns the keys of a location, without the tags of unions, and the annotation there."""
    keys: list[str] = []
    for part in location:
        step = _step_into(annotation, part)
        if step is None:
            break
        annotation, is_key = step
        keys += [str(part)] if is_key else []
    return keys, annotation


def _step_into(annotation: Any, part: int | str) -> tuple[Any, bool] | None:
    """Returns the annotation of a key, an item or a tag of a union, and whether it counts as a key."""
    origin, options = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _step_into(options[0], part)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field = annotation.model_fields.get(str(part))
        return None if field is None else (Annotated[field.annotation, field], True)
    if origin in (Union, UnionType):
        tagged = [get_args(option)[0] for option in options if Tag(str(part)) in get_args(option)]
        return (tagged[0], False) if tagged else _step_into(options[0], part)  # an optional block: X | None
    return (options[-1], True) if origin in (dict, list) else None


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Returns the model in an annotation such as ``Model | None``; None if there is none."""
    while not isinstance(annotation, type) and get_args(annotation):
        annotation = get_args(annotation)[0]
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _as_number(value: Any, words: str) -> str:
    """Returns a hint if text reads like a number, because YAML parses 1e-3 as text."""
    if not isinstance(value, str) or not words.startswith(("a number", "an integer")):
        return ""
    try:
        float(value)
    except ValueError:
        return ""
    return "; it is text: write numbers in YAML as 0.001 or 1.0e-3, without quotes"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
