r"""The equality of answers that rewards ask for: math-verify's structures, exact values.

math-verify rounds to six decimals, evaluates differences to 15 digits and cuts small ones off, and takes any
number that it finds in an answer that it cannot parse. That suits an evaluation of answers in good faith; a
policy would learn to use it. Here an answer is parsed whole or not at all, decimals are exact fractions, and
constants agree to 45 significant digits. Runs within the limits of ``math_worker.py``.
"""

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import latex2sympy, normalize_latex
from math_verify import LatexExtractionConfig, grader, verify
from sympy.core.function import AppliedUndef

from troll.tasks.verifiers.notation import contradicts, respelled, with_percents

_DIGITS = 60
_TOLERANCE = sympy.Rational(1, 10**45)
# For "approximately", between the sides of an answer such as \sqrt{2} \approx 1.41.
_ROUGHLY = sympy.Rational(1, 20)
# Unlikely roots of anything; of both signs, for absolute values and roots.
_POINTS = (sympy.Rational(7393, 5147), sympy.Rational(-5077, 3209), sympy.Rational(2017, 8081))
_NORMALIZATION = replace(LatexExtractionConfig().normalization_config, boxed="none")
_IMAGINARY = re.compile(r"(?<![a-zA-Z\\])i(?![a-zA-Z])")
_SIDES = re.compile(r"(?<![<>!:\\])(=|\\approx(?![a-zA-Z])|\\simeq(?![a-zA-Z])|\\sim(?![a-zA-Z]))")
_RELATION = re.compile(r"[=<>]|\\(?:le|ge|leq|geq|leqslant|geqslant|lt|gt|neq?|in|approx)(?![a-zA-Z])")
_NAME = re.compile(r"\s*(?:[a-zA-Z]|\\[a-zA-Z]+)(?:_(?:\w|\{\w+\}))?\s*")


def equal_answers(reference: str, answer: str) -> bool:
    """Whether an answer is the reference in other words.

    Args:
        reference: the content of its box; where it is no mathematics that can be parsed, the answer must be
            the same text, spaces and typesetting apart.
        answer: likewise.
    """
    reference, answer = respelled(reference), respelled(answer)
    if contradicts(reference, answer):
        return False
    if reference.replace(" ", "") == answer.replace(" ", ""):
        return True
    is_complex = bool(_IMAGINARY.search(reference) or _IMAGINARY.search(answer))
    value = _last_side(reference, answer, is_complex)
    parsed = None if value is None else parse(with_percents(value, keep=False), is_complex)
    if parsed is None or _repeats(reference, answer, parsed):
        return False
    keeps = [False, True] if "%" in reference and "%" not in answer else [False]
    golds = [parse(with_percents(reference, keep=keep), is_complex) for keep in keeps]
    with _exactly():
        return any(
            verify([gold], [parsed], timeout_seconds=None, allow_set_relation_comp=True)
            for gold in golds
            if gold is not None
        )


@functools.lru_cache(maxsize=1024)
def parse(text: str, is_complex: bool) -> Any | None:
    """A respelled answer as a sympy object; None where the parser does not read all of it."""
    try:
        found = latex2sympy(
            normalize_latex(text, config=_NORMALIZATION),
            is_real=not is_complex,
            convert_degrees=False,
            normalization_config=None,
        )
    except Exception:  # it has no type of its own for what it cannot read
        return None
    if is_complex and isinstance(found, (sympy.Expr, sympy.Set, sympy.Tuple, sympy.MatrixBase)):
        letters = [letter for letter in found.free_symbols if letter.name == "i"]
        found = found.subs(dict.fromkeys(letters, sympy.I)) if letters else found
    return found


def equal_values(left: Any, right: Any) -> bool:
    """Whether two expressions or matrices have the same value, at every point."""
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
        # each letter gets another point, and both signs
        point = {letter: _POINTS[(k + shift) % 3] + k for k, letter in enumerate(letters)}
        close.append(_close(left.subs(point), right.subs(point), _TOLERANCE))
    if all(close) or any(agree is False for agree in close):
        return all(close)
    return bool(sympy.simplify(left - right).is_zero)


def _close(left: Any, right: Any, tolerance: Any) -> bool | None:
    """Whether two constants agree; None where that is not to be decided in numbers."""
    left, right = sympy.N(left, _DIGITS), sympy.N(right, _DIGITS)
    if not (left.is_number and right.is_number and left.is_finite and right.is_finite):
        return None
    scale = max(abs(left), abs(right))
    if scale < _TOLERANCE:  # perhaps a zero that was not recognised
        return None
    return bool(abs(left - right) <= tolerance * scale)


def _exact(value: Any) -> Any:
    """Decimals as fractions."""
    decimals = value.atoms(sympy.Float)
    return value.xreplace({item: sympy.Rational(str(item)) for item in decimals}) if decimals else value


@contextmanager
def _exactly() -> Iterator[None]:
    """math-verify compares numbers and expressions, also within sets and relations, by `equal_values`."""
    numeric: Callable[..., bool] = grader.sympy_numeric_eq
    symbolic: Callable[..., bool] = grader.sympy_symbolic_eq
    grader.sympy_numeric_eq = lambda left, right, *_: equal_values(left, right)
    grader.sympy_symbolic_eq = lambda left, right: False  # all is decided above
    try:
        yield
    finally:
        grader.sympy_numeric_eq, grader.sympy_symbolic_eq = numeric, symbolic


def _last_side(reference: str, answer: str, is_complex: bool) -> str | None:
    r"""The side of ``x = 3 + 4 = 7`` that answers; None if two sides are different constants.

    Only where the reference is no equation itself, and the answer one chain of them.
    """
    sides = _SIDES.split(answer)
    if len(sides) == 1 or _RELATION.search(reference) or _has_outer_comma(answer):
        return answer
    values, marks = [side.strip() for side in sides[::2]], sides[1::2]
    if len(values) == 2 and _NAME.fullmatch(values[1]) and not _NAME.fullmatch(values[0]):
        values.reverse()
    constants = [_constant(value, is_complex) if value else None for value in values]
    for (left, right), mark in zip(pairwise(constants), marks, strict=True):
        if left is None or right is None:
            continue
        same = equal_values(left, right) if mark == "=" else _close(left, right, _ROUGHLY)
        if not same:
            return None
    return values[-1]


def _constant(text: str, is_complex: bool) -> Any | None:
    found = parse(with_percents(text, keep=False), is_complex)
    if not isinstance(found, sympy.Expr) or found.free_symbols or found.atoms(AppliedUndef):
        return None
    return found


def _has_outer_comma(text: str) -> bool:
    depth = 0
    for mark in re.findall(r"[()\[\]{},;]", text):
        depth += (mark in "([{") - (mark in ")]}")
        if depth == 0 and mark in ",;":
            return True
    return False


def _repeats(reference: str, answer: str, parsed: Any) -> bool:
    """Whether a list such as ``5, 5`` would pass for the one value 5."""
    return (
        isinstance(parsed, sympy.FiniteSet)
        and len(parsed.args) == 1
        and "," in answer
        and _has_outer_comma(answer)
        and not _has_outer_comma(reference)
    )
