r"""Compares answers for rewards: with math-verify's rules for structures, but by exact values.

math-verify rounds to six decimals, evaluates differences to 15 digits and drops small ones, and takes any
number that it finds in an answer that it cannot parse. That suits answers in good faith, but a policy would
learn to exploit it. Here an answer is parsed whole or not at all, decimals are exact fractions, and constants
must agree to 45 significant digits. Runs within the limits of ``math_worker.py``.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy, normalize_latex
from latex2sympy2_extended.logic import And
from math_verify import LatexExtractionConfig, grader, verify
from sympy.core.function import AppliedUndef

from troll.tasks.verifiers.lists import groups, is_relational, same_list, split
from troll.tasks.verifiers.notation import contradicts, respelled, same_in_base, same_number, with_percents
from troll.tasks.verifiers.units import Quantity, conversion, measure, quantity

_DIGITS = 60
_TOLERANCE = sympy.Rational(1, 10**45)
# Tolerance of "approximately" between the sides of an answer such as \sqrt{2} \approx 1.41.
_ROUGHLY = sympy.Rational(1, 20)
# Values of variables when expressions are compared: unlikely to be roots, and of both signs.
_POINTS = (sympy.Rational(7393, 5147), sympy.Rational(-5077, 3209), sympy.Rational(2017, 8081))
# Unlike math-verify's, which take letters at the end for units (pi r^2 h is pi r^2) and ignore case.
_NORMALIZATION = replace(LatexExtractionConfig().normalization_config, boxed="none", units=False)
_CONVERSION = ConversionConfig(lowercase_symbols=False)
_IMAGINARY = re.compile(r"(?<![a-zA-Z\\])i(?![a-zA-Z])")
_SIDES = re.compile(r"(?<![<>!:\\])(=|\\approx(?![a-zA-Z])|\\simeq(?![a-zA-Z])|\\sim(?![a-zA-Z]))")
_COMMA = re.compile("([,;])")
_RELATION = re.compile(r"[=<>]|\\(?:le|ge|leq|geq|leqslant|geqslant|lt|gt|neq?|in|approx)(?![a-zA-Z])")
# A number before an arrow or words, as in 11 \Rightarrow x: such a first side is not a name.
_CONNECTED = re.compile(
    r"^[+-]?\s*[\d.].*\\(?:text|mbox|mathrm|[a-zA-Z]*arrow|to|implies|iff|therefore|because|mid|mapsto)(?![a-zA-Z])"
)
_WORDS = re.compile(r"(?:\s*\\(?:text|mathrm|textrm|mbox)\s*\{[^{}\d]*[^\W\d_][^{}\d]*\})+\s*")
_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc|arc(?:sin|cos|tan))(?![a-zA-Z])")
_ANGLE = re.compile(
    r"(\d+(?:\.\d*)?|\.\d+|\\frac\{[^{}]*\}\{[^{}]*\}|\([^()]*\)|\{[^{}]*\}|\\[a-z]+|[a-zA-Z])"
    r"\s*\^\s*(?:\\circ(?![a-zA-Z])|\{\s*\\circ\s*\})"
)
_MEMBER = re.compile(r"\\in(?![a-zA-Z])")
_INEQUALITY = re.compile(r"[<>]|\\(?:le|ge|leq|geq|leqslant|geqslant|lt|gt)(?![a-zA-Z])")
_NAME = re.compile(r"\s*(?:[a-zA-Z]|\\[a-zA-Z]+)(?:_(?:\w|\{\w+\}))?\s*")


def equal_answers(reference: str, answer: str) -> bool:
    """Tells whether an answer, the content of a box, has the same value as the reference.

    If it cannot be parsed as mathematics, it must be the same text, except for spaces and typesetting.
    """
    reference, answer = respelled(reference), respelled(answer)
    if contradicts(reference, answer):
        return False
    if reference.replace(" ", "") == answer.replace(" ", ""):
        return True
    if _WORDS.fullmatch(reference) or _WORDS.fullmatch(answer):
        return _letters(reference) == _letters(answer)
    if is_relational(reference + answer) and _same_solutions(reference, answer):
        return True
    same = same_list(reference, answer, equal_items)
    return equal_items(reference, answer) if same is None else same


def equal_items(reference: str, answer: str) -> bool:
    """Does the same as `equal_answers` for respelled answers that are not lists."""
    if (same := same_number(reference, answer)) is not None:
        return same
    is_complex = bool(_IMAGINARY.search(reference) or _IMAGINARY.search(answer))
    reference, answer = _without_name(reference, answer)
    value = _last_side(reference, answer, is_complex)
    if value is None:
        return False
    if (same := same_in_base(reference, value)) is not None:
        return same
    angles = _angles(reference, value)
    for theirs in _readings(value, quantity(reference).unit):
        for ours in _readings(reference, theirs.unit):
            factor = conversion(theirs.unit, ours.unit)
            factors = {"degree": [1, sympy.pi / 180]}.get(theirs.unit, []) if not ours.unit else []
            factors += {"degree": [1, 180 / sympy.pi]}.get(ours.unit, []) if not theirs.unit else []
            sides = [
                [_in_radians(side.value) if turn else side.value for side in (ours, theirs)]
                for turn in angles
            ]
            if factor is not None and any(
                _same(left, right, by, is_complex) for left, right in sides for by in factors or [factor]
            ):
                return True
    return False


def _same(reference: str, answer: str, factor: Any, is_complex: bool) -> bool:
    """Tells whether the values are equal if the answer is multiplied by a factor."""
    parsed = parse(with_percents(answer, keep=False), is_complex)
    if parsed is None or _repeats(reference, answer, parsed):
        return False
    if factor != 1:
        if not isinstance(parsed, sympy.Expr):
            return False
        parsed = factor * parsed
    keeps = [False, True] if "%" in reference and "%" not in answer else [False]
    golds = [parse(with_percents(reference, keep=keep), is_complex) for keep in keeps]
    with _exactly():
        return any(
            verify([gold], [candidate], timeout_seconds=None, allow_set_relation_comp=True)
            for gold in golds
            if gold is not None
            for candidate in _turned(parsed)
        )


def _readings(text: str, like: str) -> list[Quantity]:
    """Returns an answer without its unit and, if the unit might be a product of variables, also as it is."""
    with_unit = quantity(text, like)
    return [with_unit, Quantity(text, "")] if with_unit.bare else [with_unit]


def _turned(parsed: Any) -> list[Any]:
    """Returns the answer and, since chains such as 3 > x > 2 are compared part by part, a reversed chain."""
    return (
        [parsed, _in_order(parsed, reversed(parsed._unsorted_args))] if isinstance(parsed, And) else [parsed]
    )


def _in_order(chain: Any, parts: Iterable[Any]) -> Any:
    """Returns a copy of a chain of relations, with its parts in another order.

    sympy represents equal chains by one object, which has the order of the last one created: without a copy,
    chains that were parsed before would change, and with them the verdicts.
    """
    ordered = sympy.Basic.__new__(And, *chain.args)
    ordered._argset, ordered._unsorted_args = chain._argset, list(parts)
    return ordered


def _angles(reference: str, answer: str) -> list[bool]:
    """Returns whether to read degrees as numbers: yes in functions or if both have them, else both ways."""
    degrees = [r"\circ" in text for text in (reference, answer)]
    if all(degrees) or (any(degrees) and _FUNCTION.search(reference + answer)):
        return [True]
    return [False, True] if any(degrees) else [False]


def _in_radians(text: str) -> str:
    return _ANGLE.sub(r"(\\frac{\\pi}{180} \\cdot \1)", text)


def _letters(text: str) -> str:
    """Returns the letters and digits of a text without typesetting, in lower case."""
    text = re.sub(r"\\(?:text|mathrm|textrm|mbox)(?![a-zA-Z])|\\.", "", text)
    return re.sub(r"[\W_]", "", text).casefold()


def _without_name(reference: str, answer: str) -> tuple[str, str]:
    """Removes ``x =`` from both if the reference is such an equation and the answer has no other name."""
    name, mark, value = reference.partition("=")
    if not mark or not _NAME.fullmatch(name) or _RELATION.search(value):
        return reference, answer
    first, _, rest = answer.partition("=")
    if not _RELATION.search(answer) or (rest and first.replace(" ", "") == name.replace(" ", "")):
        return value.strip(), (rest or answer).strip()
    return reference, answer


class _Parser(_Latex2Sympy):
    """Reads neighbours as a product; latex2sympy adds numbers, as in 2 1/2, and so reads 3(4) as 7."""

    def convert_postfix_list(self, arr: list[Any], i: int = 0) -> Any:
        """Returns the product of the parts from index i on."""
        parts = [self.convert_postfix(part) for part in arr[i:]]
        if any(isinstance(part, list) for part in parts):  # a derivative
            return super().convert_postfix_list(arr, i)
        if len(parts) > 1 and not all(isinstance(part, (sympy.Expr, sympy.MatrixBase)) for part in parts):
            raise ValueError("no product")
        product = parts.pop()
        while parts:
            left = parts.pop()
            matrices = getattr(left, "is_Matrix", False) or getattr(product, "is_Matrix", False)
            product = self.mat_mul_flat(left, product) if matrices else self.mul_flat(left, product)
        return product


@functools.lru_cache(maxsize=1024)
def parse(text: str, is_complex: bool) -> Any | None:
    """Returns a respelled answer as a sympy object; None if the parser does not read all of it."""
    try:
        plain = normalize_latex(text, config=_NORMALIZATION)
        parsed = _Parser(is_real=not is_complex, config=_CONVERSION).parse(plain)
    except Exception:  # the parser has no exception type of its own
        return None
    if isinstance(parsed, And):
        return _in_order(parsed, parsed._unsorted_args)
    if is_complex and isinstance(parsed, (sympy.Expr, sympy.Set, sympy.Tuple, sympy.MatrixBase)):
        letters = [letter for letter in parsed.free_symbols if letter.name == "i"]
        parsed = parsed.subs(dict.fromkeys(letters, sympy.I)) if letters else parsed
    return parsed


def equal_values(left: Any, right: Any) -> bool:
    """Tells whether two expressions or matrices have the same value at every point."""
    if isinstance(left, sympy.MatrixBase) or isinstance(right, sympy.MatrixBase):
        left, right = left.doit(), right.doit()
        return left.shape == right.shape and all(map(equal_values, left.flat(), right.flat()))
    if not (isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr)):
        return False
    left, right = _exact(left).doit(), _exact(right).doit()
    if left == right:
        return True
    if left.is_Rational and right.is_Rational:
        return False
    letters = sorted(left.free_symbols | right.free_symbols, key=str)
    close = []
    for shift in range(len(_POINTS) if letters else 1):
        # each letter gets a different value, over the shifts with both signs
        point = {letter: _POINTS[(k + shift) % 3] + k for k, letter in enumerate(letters)}
        close.append(_close(left.subs(point), right.subs(point), _TOLERANCE))
    if any(agree is False for agree in close):
        return False
    if all(close):
        # 10^{100} and 10^{100} + 1 agree to more digits than are computed.
        difference = left - right
        return not difference.is_Rational or bool(difference.is_zero)
    return bool(sympy.simplify(left - right).is_zero)


def _close(left: Any, right: Any, tolerance: Any) -> bool | None:
    """Tells whether two constants agree; None if numerical values cannot decide it."""
    left, right = sympy.N(left, _DIGITS), sympy.N(right, _DIGITS)
    if not (left.is_number and right.is_number and left.is_finite and right.is_finite):
        return None
    scale = max(abs(left), abs(right))
    if scale < _TOLERANCE:  # may be exactly zero
        return None
    return bool(abs(left - right) <= tolerance * scale)


def _exact(value: Any) -> Any:
    """Replaces decimals with fractions."""
    decimals = value.atoms(sympy.Float)
    return value.xreplace({item: sympy.Rational(str(item)) for item in decimals}) if decimals else value


@contextmanager
def _exactly() -> Iterator[None]:
    """Makes math-verify compare numbers and expressions by `equal_values`, also in sets and relations."""
    numeric: Callable[..., bool] = grader.sympy_numeric_eq
    symbolic: Callable[..., bool] = grader.sympy_symbolic_eq
    names: Callable[..., bool] = grader.sympy_compare_symbols
    grader.sympy_numeric_eq = lambda left, right, *_: equal_values(left, right)
    grader.sympy_symbolic_eq = lambda left, right: False  # `equal_values` has decided already
    grader.sympy_compare_symbols = equal_values  # AB is not ab, nor E Euler's number
    try:
        yield
    finally:
        grader.sympy_numeric_eq, grader.sympy_symbolic_eq = numeric, symbolic
        grader.sympy_compare_symbols = names


def _last_side(reference: str, answer: str, is_complex: bool) -> str | None:
    r"""Returns the last side of ``x = 3 + 4 = 7``; None if two sides are different constants.

    Also None if anything between is not a side: ``x = 11 \Rightarrow x = 12`` is not 12.
    """
    sides = split(answer, _SIDES)
    if len(sides) == 1 or (_RELATION.search(reference) and len(sides) == 3):
        return answer
    values, marks = [side.strip() for side in sides[::2]], sides[1::2]
    if (
        len(values) == 2
        and _NAME.fullmatch(values[1])
        and (values[0] == r"\pi" or not _NAME.fullmatch(values[0]))
    ):
        values.reverse()
    if any(_INEQUALITY.search(side) for side in values[:-1]):
        return None
    parsed = [_side(value, is_complex) if value else None for value in values]
    if any(found is None for found in parsed[1:-1]) or (parsed[0] is None and _CONNECTED.search(values[0])):
        return None
    name = parsed[0] if isinstance(parsed[0], sympy.Symbol) else None
    if name is not None and any(side is not None and side.has(name) for side in parsed[1:-1]):
        return None  # x = 11 x = 12
    others = [k for k, side in enumerate(parsed[:-1]) if k and not isinstance(side, sympy.Expr)]
    if not all(_same(values[k], values[k + 1], 1, is_complex) for k in others):
        return None
    last = None  # the latest constant, which all later sides must equal
    exact = True
    for k, (side, mark) in enumerate(zip(parsed, ["=", *marks], strict=True)):
        constant = _constant(side)
        exact = exact and mark == "="
        is_name = isinstance(side, sympy.Symbol) and 0 < k < len(parsed) - 1  # 12 = x = 12
        if last is not None and constant is None and not is_name:
            return None
        if last is not None and constant is not None:
            if not (equal_values(last, constant) if exact else _close(last, constant, _ROUGHLY)):
                return None
            exact = True
        last = constant if constant is not None else last
    return answer if _RELATION.search(reference) else values[-1]


def _same_solutions(reference: str, answer: str) -> bool:
    """Tells whether (lists of) inequalities or sets describe the same numbers."""
    singles = all(sum(map(len, groups(text))) == 1 for text in (reference, answer))
    if singles and not _MEMBER.search(reference + answer):
        return False  # compared elsewhere, as they are
    ours, theirs = _solutions(reference), _solutions(answer)
    if ours is None or theirs is None or (ours[0] and theirs[0] and ours[0] != theirs[0]):
        return False
    return bool(ours[1] == theirs[1] or ours[1].symmetric_difference(theirs[1]).is_empty)


def _solutions(text: str) -> tuple[set[sympy.Symbol], sympy.Set] | None:
    """Returns the variable of inequalities and the numbers that solve them; None for anything else."""
    letters: set[sympy.Symbol] = set()
    solutions = []
    for group in groups(text):
        parsed = [parse(part, False) for part in group]
        letters |= {
            letter for part in parsed if isinstance(part, sympy.Basic) for letter in part.free_symbols
        }
        sets = [_solution(part) for part in parsed]
        if len(letters) > 1 or not all(isinstance(part, sympy.Set) for part in sets):
            return None
        values = any(isinstance(part, sympy.Expr) for part in parsed)
        both = sympy.Union(*sets) if values else sympy.Intersection(*sets)
        solutions.append(sympy.Union(*sets) if both is sympy.S.EmptySet else both)
    return letters, sympy.Union(*solutions)


def _solution(parsed: Any) -> Any:
    if isinstance(parsed, sympy.Eq):
        return parsed.rhs if isinstance(parsed.rhs, sympy.Set) else sympy.FiniteSet(parsed.rhs)
    if isinstance(parsed, sympy.Expr) and parsed.is_number:
        return sympy.FiniteSet(parsed)
    try:
        return parsed if isinstance(parsed, sympy.Set) else parsed.as_set()
    except (AttributeError, NotImplementedError, ValueError, TypeError):
        return None


def _side(text: str, is_complex: bool) -> Any | None:
    """Parses a side of an equation, in base units if it has a unit."""
    value, unit, _ = quantity(text)
    found = parse(with_percents(_in_radians(value), keep=False), is_complex)
    known = measure(unit) if unit and isinstance(found, sympy.Expr) else None
    return found if known is None else found * known[0]


def _constant(parsed: Any | None) -> Any | None:
    if not isinstance(parsed, sympy.Expr) or parsed.free_symbols or parsed.atoms(AppliedUndef):
        return None
    return parsed


def _repeats(reference: str, answer: str, parsed: Any) -> bool:
    """Tells whether an answer is a list such as ``5, 5``, which would otherwise equal the single value 5."""
    return (
        isinstance(parsed, sympy.FiniteSet)
        and len(parsed.args) == 1
        and len(split(answer, _COMMA)) > 1
        and len(split(reference, _COMMA)) == 1
    )
