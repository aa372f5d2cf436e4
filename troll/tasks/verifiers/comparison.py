"""Compares outputs of programs as evalplus does, on plain data only.

The rules are those of ``evalplus.eval.unsafe_execute`` (version 0.3.1): equality, or closeness if the problem
has an absolute tolerance or the expected output consists of floats. One difference: NaN equals itself here,
while in evalplus this depends on object identity.

evalplus' special rules for problems with more than one right answer go by function name, and apply to
HumanEval(+) and MBPP(+) only. Where evalplus computes a second answer, its own function is called.
"""

import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from troll.tasks.sandbox.plain_data import NotPlainError, encode, refuse_colliding
from troll.tasks.sandbox.program import Output

# evalplus' relative tolerance for numpy.allclose, and its absolute one for floats of problems without one
_RELATIVE_TOLERANCE = 1e-7
_FLOAT_TOLERANCE = 1e-6

Oracle = Callable[[list[Any], Output, Output, float], bool]
"""Tells from (arguments of the call, output, expected output, tolerance) whether the output is right."""

# Copies of evalplus.eval._special_oracle.MBPP_OUTPUT_SET_EQ_TASKS and MBPP_OUTPUT_NOT_NONE_TASKS, so that
# training does not need evalplus; a test compares them.
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
# A root is less than 1 + the largest ratio of coefficients; powers of huge integers would take minutes.
_MAX_ZERO_BITS = 1024
OPAQUE_ALLOWED = ("check_str", "text_match_three", "text_starta_endb")


def outputs_match(output: Output, expected: Output, tolerance: float) -> bool:
    """Tells whether an output counts as the expected one within evalplus' ``atol`` (0 for exact problems)."""
    return _match(output, expected, lambda value, other: values_match(value, other, tolerance))


def equal(output: Output, expected: Output) -> bool:
    """Tells whether two outputs are equal values, as an assertion would."""
    return _match(output, expected, operator.eq)


def equal_as_lists(output: Output, expected: Output) -> bool:
    """Tells whether two outputs are equal as JSON: tuples count as lists, and keys as text."""
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
    """Does the same as `outputs_match` for decoded values."""
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
    """Returns evalplus' special rule for a problem of HumanEval or MBPP; None if it has none."""
    return _ORACLES[dataset].get(entry_point)


def load_second_answers(dataset: str, entry_point: str) -> None:
    """Imports evalplus if the rule calls it: the import takes longer than a comparison may."""
    if dataset == "mbpp" and entry_point in ("surface_Area", "digit_distance_nums"):
        import evalplus.eval._special_oracle  # noqa: F401


def _is_zero(arguments: list[Any], output: Output, _: Output, tolerance: float) -> bool:
    """Accepts any root of the polynomial (HumanEval/32)."""
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
    """Ignores order and repetition."""
    try:
        items = list({encode(item): item for item in output.value}.values())
        refuse_colliding(items)
        return set(items) == set(expected.value)
    except (NotPlainError, TypeError):
        return False


def _same_presence(_: list[Any], output: Output, expected: Output, __: float) -> bool:
    """Compares whether there is a match, since match objects cannot leave the sandbox."""
    present = _present(expected)
    if output.kind == "value" and output.text in ("true", "false"):
        return (output.text == "true") == present
    return output.kind != "raised" and _present(output) == present


def _present(output: Output) -> bool:
    return output.kind == "opaque" or output.text != "null"


def _number(output: Output) -> Any:
    """Returns the output if it is a real number and not NaN, else None."""
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
