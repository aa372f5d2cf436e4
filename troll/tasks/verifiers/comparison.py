"""Compares outputs of programs as evalplus does, on plain data only.

The rules are those of ``evalplus.eval.unsafe_execute`` (version 0.3.1): equality, then closeness where
the problem names an absolute tolerance or the expected output is made of floats. One difference:
not-a-number equals itself here, while evalplus' answer depends on object identity.

Its special rules for problems with more than one right answer go by function name, and hold for HumanEval(+)
and MBPP(+) only. Where evalplus computes a second answer, its own function is called.
"""

import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from troll.tasks.sandbox.plain_data import NotPlainError, encode, refuse_colliding
from troll.tasks.sandbox.program import Output

# evalplus: numpy.allclose's relative tolerance, and the absolute one for floats of problems that name none
_RELATIVE_TOLERANCE = 1e-7
_FLOAT_TOLERANCE = 1e-6

Oracle = Callable[[list[Any], Output, Output, float], bool]
"""(arguments of the call, output, expected output, tolerance) to right or not."""

# evalplus.eval._special_oracle.MBPP_OUTPUT_SET_EQ_TASKS and MBPP_OUTPUT_NOT_NONE_TASKS, repeated here so that
# training needs no evalplus; a test keeps them equal.
SET_EQUAL = (
    "similar_elements",
    "find_char_long",
    "common_in_nested_lists",
    "extract_singly",
    "larg_nnum",
    "intersection_array",
    "find_dissimilar",
    "Diff",
)
# A zero is less than 1 + the largest ratio of coefficients; powers of larger integers would take minutes.
_MAX_ZERO_BITS = 1024
OPAQUE_ALLOWED = ("check_str", "text_match_three", "text_starta_endb")


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


def special_oracle(dataset: str, entry_point: str) -> Oracle | None:
    """The special rule for a problem of HumanEval or MBPP, if evalplus has one."""
    return _ORACLES[dataset].get(entry_point)


def load_second_answers(dataset: str, entry_point: str) -> None:
    """Imports evalplus where a rule calls it, which takes longer than any comparison may."""
    if dataset == "mbpp" and entry_point in ("surface_Area", "digit_distance_nums"):
        import evalplus.eval._special_oracle  # noqa: F401


def _is_zero(arguments: list[Any], output: Output, _: Output, tolerance: float) -> bool:
    """HumanEval/32: any zero of the polynomial will do."""
    value = _number(output)
    if value is None:
        return False
    if not isinstance(value, float) and max(map(int.bit_length, value.as_integer_ratio())) > _MAX_ZERO_BITS:
        return False
    try:
        total = sum(coefficient * value**power for power, coefficient in enumerate(arguments[0]))
        return bool(abs(total) <= tolerance)
    except (OverflowError, ZeroDivisionError):
        return False


def _anything(_: list[Any], output: Output, __: Output, ___: float) -> bool:
    return output.kind in ("value", "opaque")


def _or_zero(_: list[Any], output: Output, expected: Output, tolerance: float) -> bool:
    return outputs_match(output, expected, tolerance) or _number(output) == 0


def _or_slant_surface(arguments: list[Any], output: Output, expected: Output, tolerance: float) -> bool:
    from evalplus.eval._special_oracle import _surface_Area

    return outputs_match(output, expected, tolerance) or (
        (value := _number(output)) is not None and abs(value - _surface_Area(*arguments)) <= tolerance
    )


def _or_padded_distance(arguments: list[Any], output: Output, expected: Output, tolerance: float) -> bool:
    from evalplus.eval._special_oracle import _digit_distance_nums

    return outputs_match(output, expected, tolerance) or (
        (value := _number(output)) is not None and value == _digit_distance_nums(*arguments)
    )


def _same_set(_: list[Any], output: Output, expected: Output, __: float) -> bool:
    """Order and repetition do not count."""
    try:
        items = list({encode(item): item for item in output.value}.values())
        refuse_colliding(items)
        return set(items) == set(expected.value)
    except (NotPlainError, TypeError):
        return False


def _same_presence(_: list[Any], output: Output, expected: Output, __: float) -> bool:
    """Match objects cannot cross the wall; whether there is one can."""
    present = _present(expected)
    if output.kind == "value" and output.text in ("true", "false"):
        return (output.text == "true") == present
    return output.kind != "raised" and _present(output) == present


def _present(output: Output) -> bool:
    return output.kind == "opaque" or output.text != "null"


def _number(output: Output) -> Any:
    """The output if it is a real number, else None."""
    try:
        value = output.value if output.kind == "value" else None
    except NotPlainError:
        return None
    return value if isinstance(value, (int, float, Fraction)) and values_match(value, value, 0) else None


_ORACLES: Mapping[str, Mapping[str, Oracle]] = {
    "humaneval": {"find_zero": _is_zero},
    "mbpp": {
        **dict.fromkeys(SET_EQUAL, _same_set),
        **dict.fromkeys(OPAQUE_ALLOWED, _same_presence),
        "are_equivalent": _anything,
        "sum_div": _or_zero,
        "surface_Area": _or_slant_surface,
        "digit_distance_nums": _or_padded_distance,
    },
}
