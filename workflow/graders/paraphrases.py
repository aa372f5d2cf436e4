r"""Reference answers in other notations, and other values in the same notations.

Computed from exact values by `Decimal` and `Fraction` and by text substitution, independently of the audited
code: nothing is imported from the verifiers, so that their mistakes are not repeated.
"""

import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

Forms = dict[str, str]

_INTEGER = re.compile(r"-?\d+")
_DECIMAL = re.compile(r"-?(?:\d+\.\d*|\.\d+)")
_SCIENTIFIC = re.compile(r"(-?\d+(?:\.\d+)?)e([+-]?\d+)")
_FRACTION = re.compile(r"(-?)\\[dt]?frac\{(\d+)\}\{(\d+)\}")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?) ?\\?%")
_ROOT = re.compile(r"(\d*)\\sqrt\{(\d+)\}")
_LIST = re.compile(r"(?:\\left)?\s*([(\[])(.*?)(?:\\right)?\s*([)\]])", re.DOTALL)
_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_LONGEST = 12  # maximum digits of a decimal or a period


def right_forms(answer: str) -> Forms:
    """The same value in other notations, by name of the notation; at least one."""
    return _made(answer, 0)


def wrong_forms(answer: str) -> Forms:
    """Near misses by name of the notation; empty for words and other answers without any."""
    return _made(answer, 1)


def _made(answer: str, which: int) -> Forms:
    makers: list[tuple[re.Pattern[str], Callable[[str], tuple[Forms, Forms]]]] = [
        (_INTEGER, _of_integer),
        (_DECIMAL, _of_decimal),
        (_SCIENTIFIC, _of_decimal),
        (_FRACTION, _of_fraction),
        (_PERCENT, _of_percent),
        (_ROOT, _of_root),
        (_LIST, _of_list),
    ]
    for pattern, make in makers:
        if pattern.fullmatch(answer):
            return make(answer)[which]
    return _of_text(answer)[which]


def _of_integer(answer: str) -> tuple[Forms, Forms]:
    value = int(answer)
    right = {
        "decimal point": f"{value}.0",
        "fraction": _latex(Fraction(value), 2),
        "equation": f"x = {value}",
        "sum": f"{value - 1} + 1",
        "scientific": _scientific(Decimal(value), r"\times 10"),
        "percent": f"{100 * value}\\%",
        "unit": f"{value}\\text{{ cm}}",
        "bold": f"\\mathbf{{{value}}}",
    }
    wrong = {
        "next integer": str(value + 1),
        "contradiction": f"{value + 1} = {value}",
        "unequal": f"\\neq {value}",
        "side by side": f"{value - 3}\\quad 3",
        "decimal point": f"{value}.5",
    }
    if value:
        wrong |= {
            "sign": str(-value),
            "percent": f"{value}\\%",
            "power of ten": f"{value}\\times 10^{{1}}",
        }
    if abs(value) > 1:
        wrong |= {"superscript": f"{value}²", "upside down": f"\\frac{{1}}{{{value}}}"}
    if abs(value) >= 1000:
        grouped = f"{value:,}"
        right |= {"thousands": grouped.replace(",", "{,}"), "thin spaces": grouped.replace(",", "\\,")}
    return right, wrong


def _of_decimal(answer: str) -> tuple[Forms, Forms]:
    value = Decimal(answer)
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    raised = Decimal((sign, (*digits[:-1], digits[-1] + 1), exponent)) if digits[-1] < 9 else value * 2
    right = {
        "scientific": _scientific(value, r"\times 10"),
        "scientific, dot": _scientific(value, r" \cdot 10"),
        "scientific, shifted": f"{_plain(value.scaleb(3))} \\times 10^{{-3}}",
        "digits": _plain(value),
        "e": f"{value:e}",
        "unit": _scientific(value, r"\times 10") + r"\,\mathrm{erg}",
        "equation": "E = " + _scientific(value, r"\times 10"),
        "raised characters": _raised(value),
        "fraction": _latex(Fraction(value), 1),
    }
    wrong = {
        "next digit": _scientific(raised, r"\times 10"),
        "power of ten": _scientific(value.scaleb(1), r"\times 10"),
        "e": f"{value.scaleb(-1):e}",
        "sign": _plain(-value),
        "zero": "0",
        "tiny": "1.1\\times 10^{-40}",
    }
    scientific = _SCIENTIFIC.fullmatch(answer)
    if scientific:
        wrong["Euler's number"] = f"{_plain(Decimal(scientific[1]) * int(scientific[2]))}e"
    if not value:
        right, wrong = {"digits": "0.00"}, {"next digit": "0.001"}
    return right, wrong


def _of_fraction(answer: str) -> tuple[Forms, Forms]:
    match = _FRACTION.fullmatch(answer)
    assert match is not None
    if not int(match[3]):
        return _of_text(answer)
    value = Fraction(int(match[1] + match[2]), int(match[3]))
    right = {
        "slash": f"{value.numerator}/{value.denominator}",
        "fraction, larger terms": _latex(value, 3),
        "fraction, dfrac": _latex(value, 1).replace("\\frac", "\\dfrac"),
        "equation": f"P = {_latex(value, 1)}",
        "difference": f"1 - {_latex(1 - value, 1)}" if value < 1 else f"{_latex(value - 1, 1)} + 1",
    }
    wrong = {
        "next numerator": _latex(Fraction(value.numerator + 1, value.denominator), 1),
        "sign": _latex(-value, 1) if value else "1",
        "contradiction": f"2 = {_latex(value, 1)}" if value != 2 else "3 = 2",
    }
    whole, start, period = _expanded(abs(value))
    minus = "-" if value < 0 else ""
    if not period:
        decimal = f"{minus}{whole}.{start}"
        right |= {"decimal": decimal, "percent": f"{_plain(Decimal(decimal) * 100)}\\%"}
        wrong |= {"percent": f"{decimal}\\%"} if value else {}
    else:
        wrong["rounded"] = f"{float(value):.7f}"
        if len(period) <= _LONGEST:
            right |= {
                "period, bar": f"{minus}{whole}.{start}\\overline{{{period}}}",
                "period, bracket": f"{minus}{whole}.{start}({period})",
                "period, dots": f"{minus}{whole}.{start}{period * 3}\\ldots",
            }
    if abs(value) not in (0, 1):
        wrong["upside down"] = _latex(1 / value, 1)
    return right, wrong


def _of_percent(answer: str) -> tuple[Forms, Forms]:
    match = _PERCENT.fullmatch(answer)
    assert match is not None
    percent = Decimal(match[1])
    right = {
        "percent": f"{percent}\\%",
        "percent, no backslash": f"{percent}%",
        "percent, word": f"{percent}\\text{{ percent}}",
        "decimal": _plain(percent / 100),
        "fraction": _latex(Fraction(percent) / 100, 1),
    }
    wrong = {"next integer": f"{percent + 1}\\%", "percent": f"{_plain(percent / 100)}\\%"}
    return right, wrong


def _of_root(answer: str) -> tuple[Forms, Forms]:
    match = _ROOT.fullmatch(answer)
    assert match is not None
    factor, inner = int(match[1] or 1), int(match[2])
    right = {
        "root, all under it": f"\\sqrt{{{factor**2 * inner}}}",
        "root, power": f"{factor}\\cdot {inner}^{{1/2}}",
        "root, product": f"{factor} \\times \\sqrt{{{inner}}}",
        "equation": f"|AB| = {answer}",
    }
    wrong = {
        "next under root": f"{factor}\\sqrt{{{inner + 1}}}",
        "rounded": f"{factor * inner**0.5 + 1e-7:.7f}",
        "sign": f"-{answer}",
    }
    return right, wrong


def _of_list(answer: str) -> tuple[Forms, Forms]:
    match = _LIST.fullmatch(answer)
    assert match is not None
    left, inside, right_mark = match[1], match[2], match[3]
    parts = inside.split(",")
    if len(parts) < 2 or re.search(r"[()\[\]]", inside):
        return _of_text(answer)
    opened = {"(": r"\bigl(", "[": r"\bigl["}[left]
    spaced = ",\\;".join(part.strip() for part in parts)
    closed = {")": r"\bigr)", "]": r"\bigr]"}[right_mark]
    right = {
        "brackets, sized": f"{opened} {inside} {closed}",
        "brackets, left and right": f"\\left{left}{inside}\\right{right_mark}",
        "brackets, spaces": f"{left}\\,{spaced}\\,{right_mark}",
    }
    wrong = {"brackets, braces": f"\\{{{inside}\\}}"}
    if "infty" in inside and right_mark == ")" and parts[-1].strip() in ("\\infty", "+\\infty"):
        wrong["brackets, closed at infinity"] = f"{left}{inside}]"
    if len(parts) == 2 and len({part.strip() for part in parts}) == 2:
        wrong["brackets, other order"] = f"{left}{parts[1]},{parts[0]}{right_mark}"
    return right, wrong


def _of_text(answer: str) -> tuple[Forms, Forms]:
    r"""Forms that only differ in typesetting, as the meaning of the text is unknown."""
    sized = re.sub(r"\\(left|right)(?=\s*[()\[\]])", lambda side: f"\\big{side[1][0]}", answer)
    dressed = answer.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("\\frac", "\\dfrac")
    right = {"display style": f"\\displaystyle {answer}"}
    if sized != answer:
        right["brackets, sized"] = sized
    if dressed != answer:
        right["fraction, dfrac"] = dressed
    if "\\cup" in answer:
        right["union, big"] = answer.replace("\\cup", "\\bigcup")
    wrong = {}
    if re.fullmatch(r"[^=<>,;&~]*", answer) and not re.search(
        r"\\(?:text|mbox|mathrm|in|le|ge|leq|geq|geqslant|leqslant|equiv|pm|cup|cap|infty|circ|left\[|\{)(?![a-z])|_\d|_\{\d|[A-Za-z]{4,}\s|\\[{%]",
        answer,
    ):
        wrong["one more"] = f"{answer} + 1"
        wrong["tiny"] = "1.1\\times 10^{-30}"
    return right, wrong


def _plain(value: Decimal) -> str:
    """All digits, without an exponent."""
    return f"{value:f}"


def _scientific(value: Decimal, times: str) -> str:
    mantissa, _, exponent = f"{value:e}".partition("e")
    return f"{mantissa}{times}^{{{int(exponent)}}}"


def _raised(value: Decimal) -> str:
    mantissa, _, exponent = f"{value:e}".partition("e")
    return f"{mantissa}×10{str(int(exponent)).translate(_RAISED)}"


def _latex(value: Fraction, factor: int) -> str:
    sign = "-" if value < 0 else ""
    return f"{sign}\\frac{{{abs(value.numerator) * factor}}}{{{value.denominator * factor}}}"


def _expanded(value: Fraction) -> tuple[int, str, str]:
    """Integer part, digits before the period, and the period, by long division."""
    whole, rest = divmod(value.numerator, value.denominator)
    seen: dict[int, int] = {}
    digits = ""
    while rest and rest not in seen:
        seen[rest] = len(digits)
        digit, rest = divmod(10 * rest, value.denominator)
        digits += str(digit)
    return (whole, digits[: seen[rest]], digits[seen[rest] :]) if rest else (whole, digits or "0", "")
