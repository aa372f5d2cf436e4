"""Plain data across a wall of trust: values of known built-in types as one line of JSON text.

The side that runs candidate programs encodes, the judging side decodes; nothing but text crosses, so no
object of a candidate, with whatever methods, ever lives in the judging process. Scalars and lists are
JSON itself, every other type is a tagged object ``{"t": type, "v": payload}``.

This file imports the standard library only: it also runs inside the sandbox.
"""

import json
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable
from typing import Any

TOO_LARGE = "too large"
MAX_DEPTH = 100
MAX_NODES = 5_000_000
# Integers beyond this travel as hexadecimal text: decimal conversion is quadratic and capped by Python.
_MAX_DECIMAL_BITS = 1024
# Ordinary containers have a handful of equal hashes at most; thousands are an attack on the judge's time.
_MAX_EQUAL_HASHES = 64
# Whether they are what they say does not matter: what crosses is what their `item` returns.
_NUMPY_SCALARS = ("bool_", "bool", "str_", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)))
_NUMPY_SCALARS += ("float16", "float32", "float64", "complex64", "complex128")
_DICT_TYPES = (dict, OrderedDict, defaultdict, Counter)


class NotPlainError(Exception):
    """A value or text is not plain data: an unknown type, too deep, too large or malformed."""


def encode(value: Any) -> str:
    """Encodes a value as one line of ASCII JSON.

    Args:
        value: None, bool, int, float, complex, str, bytes, list, tuple, set, frozenset or dict (also the
            standard library's OrderedDict, defaultdict and Counter, which become dict), nested, and numpy's
            numbers. Types are matched exactly: a subclass is refused, since its behaviour cannot be known.

    Raises:
        NotPlainError: another type, deeper than ``MAX_DEPTH`` or more than ``MAX_NODES`` nodes.
    """
    budget = [MAX_NODES]
    return json.dumps(_to_json(value, MAX_DEPTH, budget), separators=(",", ":"))


def decode(text: str) -> Any:
    """Rebuilds the value from ``encode``'s text; safe for text of any origin.

    Raises:
        NotPlainError: the text is malformed, too deep, or built to make hashing slow.
    """
    try:
        return _from_json(json.loads(text), MAX_DEPTH)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise NotPlainError(f"malformed: {type(error).__name__}") from None


def _to_json(value: Any, depth: int, budget: list[int]) -> Any:
    budget[0] -= 1
    if budget[0] < 0:
        raise NotPlainError(TOO_LARGE)
    if depth == 0:
        raise NotPlainError("too deep")
    kind = type(value)
    if value is None or kind is bool or kind is float:
        return value
    if kind is str:
        return value if value.isascii() or not _has_surrogates(value) else _surrogates_to_json(value)
    if kind is int:
        return value if value.bit_length() <= _MAX_DECIMAL_BITS else {"t": "int", "v": hex(value)}
    if kind is list:
        return [_to_json(item, depth - 1, budget) for item in value]
    if kind is tuple or kind is set or kind is frozenset:
        return {"t": kind.__name__, "v": [_to_json(item, depth - 1, budget) for item in value]}
    if kind in _DICT_TYPES:
        pairs = [
            [_to_json(key, depth - 1, budget), _to_json(item, depth - 1, budget)]
            for key, item in dict.items(value)
        ]
        return {"t": "dict", "v": pairs}
    if kind is complex:
        return {"t": "complex", "v": [value.real, value.imag]}
    if kind is bytes:
        return {"t": "bytes", "v": value.hex()}
    if kind.__module__ == "numpy" and kind.__name__ in _NUMPY_SCALARS:
        return _to_json(value.item(), depth - 1, budget)
    raise NotPlainError(f"type {kind.__name__}"[:80])


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _surrogates_to_json(text: str) -> dict[str, str]:
    # JSON would join two surrogates into another character.
    return {"t": "str", "v": text.encode("utf-8", "surrogatepass").hex()}


def _from_json(node: Any, depth: int) -> Any:
    if depth == 0:
        raise NotPlainError("too deep")
    if isinstance(node, list):
        return [_from_json(item, depth - 1) for item in node]
    if not isinstance(node, dict):
        return node
    tag, payload = node["t"], node["v"]
    if tag == "int" and isinstance(payload, str):
        return int(payload, 16)
    if tag == "bytes" and isinstance(payload, str):
        return bytes.fromhex(payload)
    if tag == "str" and isinstance(payload, str):
        return bytes.fromhex(payload).decode("utf-8", "surrogatepass")
    if not isinstance(payload, list):
        raise NotPlainError("malformed: payload")
    if tag == "complex":
        real, imaginary = payload
        return complex(float(real), float(imaginary))
    if tag == "tuple":
        return tuple(_from_json(item, depth - 1) for item in payload)
    if tag == "dict":
        pairs = [(_from_json(key, depth - 1), _from_json(item, depth - 1)) for key, item in payload]
        refuse_colliding(key for key, _ in pairs)
        return dict(pairs)
    if tag == "set" or tag == "frozenset":
        items = [_from_json(item, depth - 1) for item in payload]
        refuse_colliding(items)
        return set(items) if tag == "set" else frozenset(items)
    raise NotPlainError("malformed: tag")


def refuse_colliding(keys: Iterable[Any]) -> None:
    """Refuses keys with many equal hashes: integers can be chosen so, and make building a table quadratic.

    Raises:
        NotPlainError: there are too many.
        TypeError: a key cannot be hashed.
    """
    hashes = sorted(map(hash, keys))
    if any(a == b for a, b in zip(hashes, hashes[_MAX_EQUAL_HASHES:], strict=False)):
        raise NotPlainError("colliding hashes")
