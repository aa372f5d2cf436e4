"""Encodes values of known built-in types as one line of JSON text, which may cross a trust boundary.

The side that runs candidate programs encodes, the judging side decodes. Only text crosses, so no object of a
candidate, with whatever methods, ever exists in the judging process. Scalars and lists are plain JSON; every
other type is a tagged object ``{"t": type, "v": payload}``.

Standard library only: it also runs inside the sandbox.
"""

import json
import math
from collections import ChainMap, UserDict, UserList, UserString
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Any

TOO_LARGE = "too large"
MAX_DEPTH = 100
MAX_NODES = 5_000_000
# Larger integers are written as hexadecimal text: decimal conversion is quadratic and capped by Python.
_MAX_DECIMAL_BITS = 1024
# Ordinary containers have at most a few equal hashes; thousands are an attack on the judge's time.
_MAX_EQUAL_HASHES = 64
# Names of numpy's types. A type that only pretends to be one is harmless: only what `item` returns crosses.
_NUMPY_SCALARS = (
    *("bool_", "bool", "str_", "bytes_", "float16", "float32", "float64", "complex64", "complex128"),
    *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)),
)

# Converts values of other types to data. Subclasses are read with their base's own methods: what counts is
# what they contain, not what their methods claim (such as a length, or that they are equal).
_AS_DATA: Mapping[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    bytes: bytes.__bytes__,
    list: lambda value: list(list.__iter__(value)),
    tuple: lambda value: tuple(tuple.__iter__(value)),
    set: lambda value: set(set.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
    dict: lambda value: dict(dict.items(value)),
    bytearray: bytes,
    memoryview: bytes,
    type({}.keys()): set,
    type({}.items()): set,
    MappingProxyType: dict,
    ChainMap: dict,
    UserDict: dict,
    UserList: list,
    UserString: str,
}


class NotPlainError(Exception):
    """A value or text is not plain data: an unknown type, too deep, too large or malformed."""


def encode(value: Any) -> str:
    """Encodes a value as one line of ASCII JSON.

    Args:
        value: None, bool, int, float, complex, str, bytes, list, tuple, set, frozenset or dict, nested, and
            fractions. Values that equal one of these in Python are converted to it: instances of subclasses
            (named tuples, IntEnum, Counter), Decimal (to a fraction), bytearray, the keys of a dict, the
            standard library's wrappers, numpy's numbers and its arrays of one number.

    Raises:
        NotPlainError: another type, deeper than ``MAX_DEPTH`` or more than ``MAX_NODES`` nodes.
    """
    budget = [MAX_NODES]
    return json.dumps(_to_json(value, MAX_DEPTH, budget), separators=(",", ":"))


def decode(text: str) -> Any:
    """Returns the value that ``encode`` wrote; safe for text of any origin.

    Raises:
        NotPlainError: the text is malformed, too deep, or built to make hashing slow.
    """
    try:
        return _from_json(json.loads(text), MAX_DEPTH)
    except (ValueError, TypeError, KeyError, RecursionError, ArithmeticError) as error:
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
        if value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value):
            return value
        # JSON would join two surrogates into another character.
        return {"t": "str", "v": value.encode("utf-8", "surrogatepass").hex()}
    if kind is int:
        return value if value.bit_length() <= _MAX_DECIMAL_BITS else {"t": "int", "v": hex(value)}
    if kind is list:
        return [_to_json(item, depth - 1, budget) for item in value]
    if kind is tuple or kind is set or kind is frozenset:
        return {"t": kind.__name__, "v": [_to_json(item, depth - 1, budget) for item in value]}
    if kind is dict:
        pairs = [
            [_to_json(key, depth - 1, budget), _to_json(item, depth - 1, budget)]
            for key, item in value.items()
        ]
        return {"t": "dict", "v": pairs}
    if kind is complex:
        return {"t": "complex", "v": [value.real, value.imag]}
    if kind is bytes:
        return {"t": "bytes", "v": value.hex()}
    if kind is Fraction:
        return {"t": "fraction", "v": [hex(value.numerator), hex(value.denominator)]}
    try:
        other = _as_data(value, kind)
    except (MemoryError, NotPlainError):
        raise
    except Exception:  # code of the value itself may have run and failed
        raise _unknown(kind) from None
    return _to_json(other, depth - 1, budget)


def _as_data(value: Any, kind: type) -> Any:
    """Converts a value of another type, by one step towards a type that can be encoded."""
    if kind.__module__ == "numpy":
        return _of_numpy(value, kind)
    for base in kind.__mro__:
        if base in _AS_DATA:
            return _AS_DATA[base](value)
        if base is Decimal and Decimal.is_finite(value):
            return Fraction(*Decimal.as_integer_ratio(value))
        if base is Decimal:  # infinity equals a float, and NaN equals nothing
            return float("nan") if Decimal.is_nan(value) else math.copysign(math.inf, Decimal(value))
        if base is Fraction:
            return Fraction(value.numerator, value.denominator)
        if base.__module__ == "numpy":
            return _of_numpy(value, base)
    raise _unknown(kind)


def _of_numpy(value: Any, kind: type) -> Any:
    if kind.__name__ in _NUMPY_SCALARS:
        return value.item()
    if kind.__name__ == "ndarray" and value.ndim == 0:
        return value[()]
    if kind.__name__ == "ndarray" and value.size == 1:
        return list(value)
    # Comparing longer arrays gives no single truth value, so they equal nothing in evalplus either.
    if kind.__name__ == "longdouble" and float(value) == value:
        return float(value)
    raise _unknown(kind)


def _unknown(kind: type) -> NotPlainError:
    return NotPlainError(f"type {kind.__name__}"[:80])


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
    if tag == "fraction":
        numerator, denominator = payload
        return Fraction(int(numerator, 16), int(denominator, 16))
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
    """Refuses keys with many equal hashes: integers can be chosen so that building a dict is quadratic.

    Raises:
        NotPlainError: there are too many.
        TypeError: a key cannot be hashed.
    """
    hashes = sorted(map(hash, keys))
    if any(a == b for a, b in zip(hashes, hashes[_MAX_EQUAL_HASHES:], strict=False)):
        raise NotPlainError("colliding hashes")
