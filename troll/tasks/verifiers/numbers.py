r"""Reads an answer that is one number, exactly: decimals, fractions, powers, sums, percentages.

Every character must be read, so that nothing that changes a number is passed over. Standard library only.
"""

import functools
import re
from fractions import Fraction

from troll.tasks.verifiers.notation import plain
from troll.tasks.verifiers.units import factor, quantity

# Numbers are read without a time limit: longer texts, and powers with more bits, are no numbers here.
_MAX_CHARACTERS = 300
_MAX_BITS = 40_000
_TOKEN = re.compile(
    r"\s*(?:(\d+(?:\.\d*)?|\.\d+)|(\\(?:frac|times|cdot|div)(?![a-zA-Z])|[-+*/^(){}]))", re.ASCII
)


class _NotOneNumberError(ValueError):
    pass


@functools.lru_cache(maxsize=8192)
def number(text: str) -> Fraction | None:
    r"""Returns the value of a plain text without a unit, such as ``-\frac{3}{4}`` or ``4.5\times 10^{33}``.

    Returns None for anything else: names, roots, more than 300 characters, or results of 40,000 bits.
    """
    if len(text) > _MAX_CHARACTERS:
        return None
    text = text.strip()
    share = text.endswith("%")
    try:
        value = _Reader(text.removesuffix("%").removesuffix("\\")).whole(share)
    except (_NotOneNumberError, ZeroDivisionError, RecursionError):
        return None
    return value / 100 if share else value


def same_number(reference: str, answer: str) -> bool | None:
    r"""Tells whether two numbers, with or without units, are exactly equal; None unless both are numbers.

    A percentage has its value: ``75\%`` is 3/4, and ``10\%`` is not 10. A reference in percent may be
    answered without the sign, since the question then contains the unit.
    """
    if max(len(reference), len(answer)) > _MAX_CHARACTERS:
        return None
    ours = quantity(plain(reference), trusted=True)
    theirs = quantity(plain(answer), like=ours.unit)
    wanted = number(ours.value)
    given = None if wanted is None else number(theirs.value)
    if wanted is None or given is None:
        return None
    if {ours.unit, theirs.unit} == {"", "degree"} and wanted != given:
        return None  # one may be in radians
    scale = factor(theirs.unit, ours.unit)
    if scale is None:
        return False
    bare = ours.value.endswith("%") and not theirs.value.endswith("%")
    return given * scale == wanted or (bare and given == 100 * wanted)


class _Reader:
    """Exact arithmetic by recursive descent; neighbours are a product only if one is in parentheses."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def whole(self, product: bool) -> Fraction:
        """Returns the value of the whole text, which must be no sum with ``product``."""
        value = self._product() if product else self._sum()
        if self._text[self._at :].strip():
            raise _NotOneNumberError
        return value

    def _take(self, *marks: str) -> str:
        token = _TOKEN.match(self._text, self._at)
        if token is None or (token[2] not in marks if marks else not token[1]):
            return ""
        self._at = token.end()
        return token[1] or token[2]

    def _sum(self) -> Fraction:
        value = self._product()
        while mark := self._take("+", "-"):
            value += self._product() if mark == "+" else -self._product()
        return value

    def _product(self) -> Fraction:
        sign = self._take("+", "-")
        value = self._power()
        while True:
            if self._take("*", r"\times", r"\cdot"):
                value *= self._power()
            elif self._take("/", r"\div"):
                value /= self._power()
            elif self._text[self._at :].lstrip().startswith("("):
                value *= self._power()
            else:
                return -value if sign == "-" else value

    def _power(self) -> Fraction:
        base = self._atom()
        if not self._take("^"):
            return base
        exponent = self._group("{", "}") if self._next("{") else self._digit()
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if exponent.denominator != 1 or bits * abs(exponent) > _MAX_BITS:
            raise _NotOneNumberError
        return base ** int(exponent)

    def _atom(self) -> Fraction:
        if self._take(r"\frac"):
            return self._group("{", "}") / self._group("{", "}")
        for left, right in (("(", ")"), ("{", "}")):
            if self._next(left):
                return self._group(left, right)
        return self._digit()

    def _digit(self) -> Fraction:
        digits = self._take()
        if not digits:
            raise _NotOneNumberError
        return Fraction(digits)

    def _next(self, mark: str) -> bool:
        return self._text[self._at :].lstrip().startswith(mark)

    def _group(self, left: str, right: str) -> Fraction:
        if not self._take(left):
            raise _NotOneNumberError
        value = self._sum()
        if not self._take(right):
            raise _NotOneNumberError
        return value
