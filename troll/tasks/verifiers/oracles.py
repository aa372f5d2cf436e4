"""evalplus' special rules for problems with more than one right answer, on plain data.

They are those of ``evalplus.eval.unsafe_execute`` (0.3.1), by function name, and hold for HumanEval(+)
and MBPP(+) only. Where evalplus computes a second answer, its own function is called.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from troll.tasks.sandbox.plain_data import NotPlainError, encode, refuse_colliding
from troll.tasks.sandbox.program import Output
from troll.tasks.verifiers.comparison import outputs_match, values_match

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
