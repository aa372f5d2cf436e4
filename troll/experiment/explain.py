"""What pydantic refuses, as one line: field, what is wrong, and what would be right."""

from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, RootModel, Tag, ValidationError

from troll.common.errors import unknown
from troll.experiment.settings import StrictModel

_SHOWN = 100  # characters of a value that a message quotes


def _step_into(annotation: Any, part: int | str) -> Any:
    """The annotation of one key, item or kind (of a tagged union) inside of another annotation."""
    if get_origin(annotation) is Annotated:
        return _step_into(get_args(annotation)[0], part)
    if isinstance(annotation, type) and issubclass(annotation, RootModel):
        return _step_into(annotation.model_fields["root"].annotation, part)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field = annotation.model_fields.get(str(part))
        return field.annotation if field else None
    options = get_args(annotation)
    if get_origin(annotation) in (Union, UnionType):
        tagged = [get_args(option)[0] for option in options if Tag(str(part)) in get_args(option)]
        return tagged[0] if tagged else _step_into(options[0], part)  # an optional block: X | None
    return options[-1] if options else None  # dict[str, X] or list[X]


def _model_at(model: type[BaseModel], location: tuple[int | str, ...]) -> type[StrictModel] | None:
    """The model whose key ``location[-1]`` was refused, found by walking the annotations."""
    current: Any = model
    for part in location[:-1]:
        current = _step_into(current, part)
    if get_origin(current) in (Union, UnionType):
        current = get_args(current)[0]
    return current if isinstance(current, type) and issubclass(current, StrictModel) else None


def _unknown_key(where: str, key: str, owner: type[StrictModel]) -> str:
    if key in owner.RENAMED:
        return f"{where}: unknown key {key!r}; it is now called {owner.RENAMED[key]}"
    return f"{where}: {unknown('key', key, owner.model_fields)}"


def explain(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    """The first problem of a validation error as one line: field, what is wrong, what would be right."""
    # A renamed key is both missing and unknown: the unknown one tells more.
    first = min(error.errors(include_url=False), key=lambda item: item["type"] != "extra_forbidden")
    location = tuple(part for part in first["loc"] if part != "int")
    # The kind of a tagged union (two words) is no key.
    keys = [str(part) for part in location if " " not in str(part)]
    where = ".".join([*([prefix] if prefix else []), *keys])
    owner = _model_at(model, location) if location else None
    if first["type"] == "extra_forbidden" and owner is not None:
        return _unknown_key(where, str(location[-1]), owner)
    if first["type"] == "missing":
        return f"{where}: is missing"
    if first["type"] == "too_short":
        has, needs = first["ctx"]["actual_length"], first["ctx"]["min_length"]
        return f"{where}: {f'has {has}' if has else 'is empty'}; at least {needs} needed"
    # What is wrong with the whole names its own keys; the caller says what the whole is.
    head = f"{where}: " if where else ""
    inner = _model_at(model, (*location, ""))
    if first["type"] == "model_type" and inner is not None:
        return f"{head}expected a block with keys {', '.join(inner.model_fields)}{_shown(first['input'])}"
    message, value = first["msg"].removeprefix("Value error, "), first["input"]
    quoted = isinstance(value, str) and repr(value) in message
    shown = "" if quoted or isinstance(value, dict) else _shown(value)
    return f"{head}{message[0].lower()}{message[1:]}{shown}"


def _shown(value: Any) -> str:
    text = repr(value)
    return f" (found {text})" if len(text) <= _SHOWN else f" (found {text[:_SHOWN]}...)"
