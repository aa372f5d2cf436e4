r"""Compares mathematical expressions exactly, as math-verify's parser reads them.

An expression is parsed whole and only if it consists of known marks, decimals are exact fractions, and
constants must agree to 45 significant digits: math-verify itself rounds to six decimals, drops small
differences, and takes any number that it finds in a text that it cannot parse.
"""

import functools
import re
from dataclasses import replace
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy, normalize_latex
from math_verify import LatexExtractionConfig

from troll.tasks.verifiers.numbers import number
from troll.tasks.verifiers.units import factor, quantity

_DIGITS = 60
_TOLERANCE = sympy.Rational(1, 10**45)
# Values of variables when expressions are compared: unlikely to be roots, and of both signs.
_POINTS = (sympy.Rational(7393, 5147), sympy.Rational(-5077, 3209), sympy.Rational(2017, 8081))
# Unlike math-verify's, which take letters at the end for units (pi r^2 h is pi r^2) and ignore case.
_NORMALIZATION = replace(LatexExtractionConfig().normalization_config, boxed="none", units=False)
_CONVERSION = ConversionConfig(lowercase_symbols=False)

# What an expression may consist of: the parser passes over other commands.
_COMMANDS = """
    frac sqrt cdot times div pi alpha beta gamma delta epsilon theta lambda mu nu rho sigma tau phi varphi psi
    omega Gamma Delta Omega Phi infty binom sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln
    exp sum max min lfloor rfloor lceil rceil begin end
"""
_READABLE = re.compile(
    rf"(?:[\w+\-*/^(){{}}\[\]|.!,&=\s](?<=[\x00-\x7f])|\\\\|\\(?:{'|'.join(_COMMANDS.split())})(?![a-zA-Z]))*"
)
# Numbers side by side, or split by braces; indices of numbers; signs without a number.
_SPLIT = re.compile(
    r"(?<![a-z]\^)[\d.] +[\d.]|(?:^|[^\w^{}])\d+\s*\{|^\{[^{}]*\}\s*\{|(?:(?<!matrix)\}|\))\s*\d"
    r"|(?<![a-zA-Z}_\d])\d+\s*_|\^(?:\{[^{}]*\}|\w)\s*\^|[\^_/*]\s*$|!!|\+\s*-|-\s*-"
)
_BASE = re.compile(r"(-?(?=[A-F]*\d)[\dA-F]+)_\{(\d+)\}")
_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")
_DEGREE = re.compile(r"(?<=[\w)}])\s*\^\\circ\s*(?=$|[-+)},])")
_ANGLE = re.compile(
    r"([\d.]+|\\frac\{[^{}]*\}\{[^{}]*\}|\([^()]*\)|\{[^{}]*\}|\\?[a-zA-Z]+)\s*\^\\circ(?![a-zA-Z])"
)
_IN_RADIANS = r"(\\frac{\\pi}{180} \\cdot \1)"


def same_expression(reference: str, answer: str) -> bool:
    """Tells whether two plain texts, which are neither equations nor lists, have the same value."""
    if base := _BASE.fullmatch(reference):
        return answer.replace(" ", "") == base[1]
    if (base := _BASE.fullmatch(answer)) and base[2] == "10":
        answer = base[1]
    if _FUNCTION.search(reference + answer):
        reference, answer = (_ANGLE.sub(_IN_RADIANS, text) for text in (reference, answer))
    ours = quantity(reference, trusted=True)
    theirs = quantity(answer, like=ours.unit)
    left, right = (parse(_DEGREE.sub("", value)) for value in (ours.value, theirs.value))
    if left is None or right is None:
        return False
    degrees = [part.unit == "degree" or r"\circ" in part.value for part in (ours, theirs)]
    turn = sympy.pi / 180 if degrees[1] else 180 / sympy.pi
    scale = factor(theirs.unit, ours.unit)
    factors = [] if scale is None else [sympy.Rational(scale)]
    if degrees[0] != degrees[1] and {ours.unit, theirs.unit} <= {"", "degree", "radians"}:
        factors.append(turn)
    return any(equal_values(left, right * by) for by in factors)


def constant(text: str) -> Any:
    """Returns the value of a side of an equation, without its unit; None as `parse`."""
    return parse(_DEGREE.sub("", quantity(text).value))


class _Parser(_Latex2Sympy):
    """Reads neighbours as a product; latex2sympy adds numbers, as in 2 1/2, and so reads 3(4) as 7."""

    def convert_postfix_list(self, arr: list[Any], i: int = 0) -> Any:
        """Returns the product of the parts from index i on."""
        parts = [self.convert_postfix(part) for part in arr[i:]]
        if len(parts) > 1 and not all(isinstance(part, (sympy.Expr, sympy.MatrixBase)) for part in parts):
            raise ValueError("no product")
        product = parts.pop()
        while parts:
            product = self.mul_flat(parts.pop(), product)
        return product


@functools.lru_cache(maxsize=1024)
def parse(text: str) -> Any:
    """Returns an expression or a matrix; None if the text has unknown marks or is not read to its end."""
    if not _READABLE.fullmatch(text) or _SPLIT.search(text):
        return None
    if r"\infty" in text and not re.fullmatch(r"[-+]?\s*\\infty\s*", text):
        return None
    if (value := number(text)) is not None:
        return sympy.Rational(value.numerator, value.denominator)
    is_complex = re.search(r"(?<![a-zA-Z\\])i(?![a-zA-Z])", text) is not None
    try:
        plain_text = normalize_latex(text, config=_NORMALIZATION)
        parsed = _Parser(is_real=not is_complex, config=_CONVERSION).parse(plain_text)
    except Exception:  # the parser has no exception type of its own
        return None
    if not isinstance(parsed, (sympy.Expr, sympy.MatrixBase)):
        return None
    letters = [letter for letter in parsed.free_symbols if is_complex and letter.name == "i"]
    return parsed.subs(dict.fromkeys(letters, sympy.I)) if letters else parsed


def equal_values(left: Any, right: Any) -> bool:
    """Tells whether two expressions or matrices have the same value at every point."""
    if isinstance(left, sympy.MatrixBase) or isinstance(right, sympy.MatrixBase):
        if not (isinstance(left, sympy.MatrixBase) and isinstance(right, sympy.MatrixBase)):
            return False
        left, right = left.doit(), right.doit()
        return left.shape == right.shape and all(map(equal_values, left.flat(), right.flat()))
    left, right = _exact(left).doit(), _exact(right).doit()
    if left == right:
        return True
    if left.is_Rational and right.is_Rational:
        return False
    letters = sorted(left.free_symbols | right.free_symbols, key=str)
    agree = []
    for shift in range(len(_POINTS) if letters else 1):
        # each letter gets a different value, over the shifts with both signs
        point = {letter: _POINTS[(k + shift) % 3] + k for k, letter in enumerate(letters)}
        agree.append(close(left.subs(point), right.subs(point), _TOLERANCE))
    if any(near is False for near in agree):
        return False
    if all(agree):
        # 10^{100} and 10^{100} + 1 agree to more digits than are computed.
        difference = left - right
        return not difference.is_Rational or bool(difference.is_zero)
    return bool(sympy.simplify(left - right).is_zero)


def close(left: Any, right: Any, tolerance: Any) -> bool | None:
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
