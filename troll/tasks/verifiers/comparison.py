"""Compares outputs of programs as evalplus does, on plain data only.

The rules are those of ``evalplus.eval.unsafe_execute`` (version 0.3.1): equality, then closeness where
the problem names an absolute tolerance or the expected output is made of floats. One difference:
not-a-number equals itself here, while evalplus' answer depends on object identity.
"""

import operator
from collections.abc import Callable
from typing import Any

from troll.tasks.sandbox.plain_data import NotPlainError, encode
from troll.tasks.sandbox.program import Output

# evalplus: numpy.allclose's relative tolerance, and the absolute one for floats of problems that name none
_RELATIVE_TOLERANCE = 1e-7
_FLOAT_TOLERANCE = 1e-6


def outputs_match(output: Output, expected: Output, tolerance: float) -> bool:
    """Whether an output counts as the expected one within evalplus' ``atol``; 0 for exact problems."""
    return _match(output, expected, lambda value, other: values_match(value, other, tolerance))


def equal(output: Output, expected: Output) -> bool:
    """Tells whether two outputs are equal values, as an assertion would."""
    return _match(output, expected, operator.eq)


def equal_as_lists(output: Output, expected: Output) -> bool:
    """Tells whether two outputs are equal where JSON is the measure: tuples count as lists, keys as text."""
    return _match(output, expected, lambda value, other: values_match(_lists(value), _lists(other), 0))


def _match(output: Output, expected: Output, same: Callable[[Any, Any], Any]) -> bool:
    if output.kind != "value" or expected.kind != "value":
        return False
    try:
        return output.text == expected.text or bool(same(output.value, expected.value))
    except (NotPlainError, RecursionError):
        return False


def _lists(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_lists(item) for item in value]
    if isinstance(value, dict):
        return {_key(key): _lists(item) for key, item in value.items()}
    return value


def _key(key: Any) -> str:
    try:
        return str(key)
    except ValueError:  # an integer of more digits than Python writes
        return encode(key)


def values_match(value: Any, expected: Any, tolerance: float) -> bool:
    """`outputs_match` for decoded values."""
    if value == expected or _equal_with_nan(value, expected):
        return True
    if tolerance == 0 and _is_floats(expected):
        tolerance = _FLOAT_TOLERANCE
    if tolerance == 0 or type(value) is not type(expected):
        return False
    return _close(value, expected, tolerance)


def _equal_with_nan(value: Any, expected: Any) -> bool:
    if isinstance(expected, (list, tuple)):
        return (
            type(value) is type(expected)
            and len(value) == len(expected)
            and all(map(_equal_with_nan, value, expected))
        )
    if isinstance(expected, float) and expected != expected:
        return isinstance(value, float) and value != value
    return bool(value == expected)


def _is_floats(value: Any) -> bool:
    if isinstance(value, (list, tuple)) and value:
        return all(isinstance(item, float) for item in value)
    return isinstance(value, float)


def _close(value: Any, expected: Any, tolerance: float) -> bool:
    if isinstance(expected, (list, tuple)):
        return (
            isinstance(value, (list, tuple))
            and len(value) == len(expected)
            and all(_close(item, other, tolerance) for item, other in zip(value, expected, strict=True))
        )
    if not isinstance(value, (int, float, complex)) or not isinstance(expected, (int, float, complex)):
        return False
    if value == expected:
        return True  # infinities of one sign
    try:
        return bool(abs(value - expected) <= tolerance + _RELATIVE_TOLERANCE * abs(expected) < float("inf"))
    except OverflowError:
        return False
