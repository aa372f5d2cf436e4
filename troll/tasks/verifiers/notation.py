r"""Reads and normalises the notation of answers: the part of judging mathematics that needs no algebra.

`number` returns the exact value of an answer that is one number in any notation; `respelled` rewrites an
answer so that a LaTeX parser reads all of it; `contradicts` finds differences that such a parser ignores and
a reader would not. These are rules for rewards; see ``docs/algorithms.md``, "Rewards of mathematics".
"""

import functools
import re
from collections.abc import Callable
from fractions import Fraction

from troll.tasks.verifiers.units import (
    UNIT_NAME,
    UNIT_TEXT,
    changes,
    in_latex,
    quantity,
    with_powers,
    with_signs,
)

# Longer answers are not rewritten: some patterns take quadratic time, and Python reads no integer of more
# than 4,300 digits. Numbers are read without a time limit, so their limit is lower.
_MAX_CHARACTERS = 2_000
_MAX_NUMBER_CHARACTERS = 300
# Beyond, 10**exponent is not an answer but an attack on time and memory.
_MAX_EXPONENT = 5_000
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿ", "0123456789+-()n")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉₊₋₍₎", "0123456789+-()")
_CHARACTERS = {
    **dict.fromkeys("−–—‐‑﹣－", "-"),
    **dict.fromkeys("\u00a0\u2002\u2003\u2009\u200a\u202f\u3000", " "),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", ""),
    **dict.fromkeys("·⋅∙", r"\cdot "),
    **{"×": r"\times ", "÷": r"\div ", "±": r"\pm ", "∓": r"\mp ", "∞": r"\infty ", "°": r"^\circ "},
    **{"≤": r"\le ", "≥": r"\ge ", "≠": r"\neq ", "≈": r"\approx ", "∪": r"\cup ", "∩": r"\cap "},
    **{"∈": r"\in ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "′": "'", "（": "(", "）": ")", "，": ","},
    **{"½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}"},
    **{"¾": r"\frac{3}{4}", "⅕": r"\frac{1}{5}", "⅛": r"\frac{1}{8}", "％": r"\%", "＝": "=", "＋": "+"},
    **{"π": r"\pi ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta "},
    **{"∨": r"\lor ", "∧": r"\land ", "或": r"\text{ or }", "和": r"\text{ and }", "且": r"\text{ and }"},
    **{"、": ", ", "；": ";", "¢": r"\text{ cents}"},
    **{"λ": r"\lambda ", "ω": r"\omega ", "φ": r"\phi ", "σ": r"\sigma ", "τ": r"\tau ", "ρ": r"\rho "},
}

_NUMERALS = "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
_BASES = {name: str(base) for base, name in enumerate(_NUMERALS.split(), start=2)}
_BASE_NAME = rf"(?:\d+|{'|'.join(_BASES)})"
_TOKEN = r"(\{[^{}]*\}|\\[a-zA-Z]+|[^\s\\{}])"
_E = re.compile(r"(?<![A-Za-z\d.])(\d+(?:\.\d*)?|\.\d+)[eE]([+-]?\d{1,6})(?![\d.A-Za-z])")
_PERCENT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*\\?%")

_DECIMAL = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+(?:\.\d*)?|\.\d+)"
_POWER_OF_TEN = r"10\^(?:\{([+-]?\d{1,6})\}|([+-]?\d))"
_NUMBER = re.compile(
    rf"([+-]?)(?:({_DECIMAL})(?:\\(?:times|cdot)\s*{_POWER_OF_TEN})?|{_POWER_OF_TEN}"
    rf"|(?:\\frac\{{([+-]?{_DECIMAL})\}}\{{({_DECIMAL})\}}|({_DECIMAL})/({_DECIMAL})))(\\?%)?"
)
_SCIENTIFIC = re.compile(rf"[+-]?{_DECIMAL}\s*\\(?:times|cdot)\s*{_POWER_OF_TEN}")
_SIDE_BY_SIDE = re.compile(r"(?<![a-z]\^)[\d.] +[\d.]")  # allows \sin^2 30


def with_powers_of_ten(text: str) -> str:
    r"""Rewrites ``4.5e33`` as ``4.5\times 10^{33}``: math-verify would read it as 4.5 times e times 33."""
    return _E.sub(r"\1\\times 10^{\2}", text)


def _plain(bold: re.Match[str]) -> str:
    """Returns what was in bold, as text if it is words."""
    return rf"\text{{{bold[1]}}}" if re.fullmatch(r"[A-Za-z][A-Za-z ]+", bold[1]) else bold[1]


def _unwrapped(text: str) -> str:
    """Removes braces that enclose the whole text."""
    text = text.strip()
    while re.fullmatch(r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}", text):
        text = text[1:-1].strip()
    return text


def _in_base(match: re.Match[str]) -> str:
    base = match["base"] or match["said"]
    return f"_{{{_BASES.get(base, base)}}}"


def _mixed(number: re.Match[str]) -> str:
    """Rewrites ``2 1/4`` as a sum, but not ``1 000/3`` or 2 times three halves."""
    whole, above, below = number.groups()
    return rf"({whole}+\frac{{{above}}}{{{below}}})" if int(above) < int(below) else number[0]


def _braced(match: re.Match[str]) -> str:
    r"""Adds the braces to ``\frac12`` and ``\frac n 2``."""
    above, below = (match[1], match[2]) if match[1] else (match[3], match[4])
    return rf"\frac{{{above.strip('{}')}}}{{{below.strip('{}')}}}"


def _repeating(match: re.Match[str]) -> str:
    r"""Rewrites 0.1(6) as ``\frac{15}{90}``."""
    return _with_period(match[1] or "0", match[2], match[3])


def _with_period(whole: str, start: str, period: str) -> str:
    top = int(whole + start + period) - int(whole + start)
    return rf"\frac{{{top}}}{{{'9' * len(period)}{'0' * len(start)}}}"


def _with_dots(match: re.Match[str]) -> str:
    """Rewrites 0.333... as a repeating decimal if a period shows: one digit three times, or several twice."""
    whole, digits = match[1] or "0", match[2]
    for length in range(1, len(digits) // 2 + 1):
        period = digits[-length:]
        times = 1
        while digits.endswith(period * (times + 1)):
            times += 1
        if times >= (3 if length == 1 else 2):
            return _with_period(whole, digits[: len(digits) - times * length], period)
    return match[0]


def _sub(pattern: str, replacement: str | Callable[[re.Match[str]], str]) -> Callable[[str], str]:
    return functools.partial(re.compile(pattern).sub, replacement)


_STEPS: tuple[Callable[[str], str], ...] = (
    lambda text: " ".join(text.split()),
    _sub(r"^\s*(?:(?P<mark>`+)([^`]+)(?P=mark)|(?P<stars>\*\*?)([^*]+)(?P=stars))\s*$", r"\2\4"),
    in_latex,
    _sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿ]+", lambda run: f"^{{{run[0].translate(_SUPERSCRIPTS)}}}"),
    _sub("[₀₁₂₃₄₅₆₇₈₉₊₋₍₎]+", lambda run: f"_{{{run[0].translate(_SUBSCRIPTS)}}}"),
    _sub(r"√\s*(\d+|[A-Za-z]|(?=[({]))", lambda root: rf"\sqrt{{{root[1]}}}" if root[1] else r"\sqrt"),
    _sub("|".join(map(re.escape, _CHARACTERS)), lambda character: _CHARACTERS[character[0]]),
    with_signs,
    # Typesetting: displays, sizes, fonts, colours.
    _sub(
        r"\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits)(?![a-zA-Z])|(?<!\\)\$|(?<!\\)\\[()\[\]]",
        "",
    ),
    _sub(r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![a-zA-Z])\s*\.?", ""),
    _sub(r"\\big(cup|cap)(?![a-zA-Z_]|\s*_)", r"\\\1 "),
    _sub(r"\{\s*\\rm(?![a-zA-Z])\s*([^{}]*)\}|\\rm(?![a-zA-Z])", r"\\mathrm{\1}"),
    _sub(
        r"\\[hv]?phantom\s*\{[^{}]*\}|\\(?:(?:text|math)?colou?r|colorbox|fcolorbox\s*\{[^{}]*\})\s*(?:\[[^\[\]]*\])?\s*\{[^{}]*\}",
        "",
    ),
    _sub(r"\\(?:mathbf|boldsymbol|bm|mathsf|mathit|textbf|textit|emph|boxed|fbox)\s*\{([^{}]*)\}", _plain),
    _sub(r"\\textnormal", r"\\text"),
    _sub(
        r"\\(?:(?:underline|uline|mathbf|boldsymbol|bm|mathsf|mathit|mathtt|textbf|textit|textsf|texttt|textsc|emph|"
        r"boxed|fbox|ensuremath)\s*(?=\{)|(?:bf|it|sf|tt|sc|em|bfseries|itshape|tiny|small|normalsize|large|Large|LARGE|"
        r"huge|Huge|displaystyle)(?![a-zA-Z]))",
        "",
    ),
    _unwrapped,
    # Bases, numbers and mathematics in text, upright letters.
    _sub(
        rf"(?<=[\dA-F)}}])\s*(?:_\s*(?P<brace>\{{)?\s*(?P<bracket>\()?\s*(?:(?P<text>\\(?:text|mathrm|textrm|mbox)\s*\{{)"
        rf"\s*(?:base\s*(?P<end>\}})?)?)?\s*(?P<base>{_BASE_NAME})\s*(?(text)(?(end)|\}}))\s*(?(bracket)\))\s*(?(brace)\}})"
        rf"|\\text\s*\{{\s*\(?\s*(?:in\s+)?base[\s-]*(?P<said>{_BASE_NAME})\s*\)?\s*\}})$",
        _in_base,
    ),
    _sub(r"\(\s*(-?[\dA-F]+)\s*\)\s*_(?=\{\d+\}$)", r"\1_"),
    _sub(r"\A\\(?:text|mathrm|mbox)\s*\{\s*([+-]?\d[\d.,/]*)\s*([a-zA-Z][^{}]*)\}\Z", r"\1\\text{ \2}"),
    _sub(r"(\\(?:text|mathrm|mbox)\s*\{[^{}]*[a-zA-Z])\s*\^\s*\{(-?\d)\}([^{}]*\})", r"\1^\2\3"),
    _sub(
        r"(?<![_^])\\(?:text|mathrm|textrm|mbox)\s*\{\s*((?=[^{}]*\d)[\d\s.,/+\-*^()=%\\$]+|)\s*\}(?!\s*\^)",
        r" \1 ",
    ),
    _sub(
        r"\\(?:mathrm|text|textrm|operatorname)\s*(?:\{\s*([ie])\s*\}|([ie])(?![a-zA-Z]))|\\imath(?![a-zA-Z])",
        lambda letter: f" {letter[1] or letter[2] or 'i'} ",
    ),
    # Spaces.
    _sub(r",\s*\\!\s*(?=\d{3})|\{,\}(?=\d{3})", ""),
    _sub(r"(?<!\\)\\!", ""),
    _sub(
        r"(?<!\\)\\[,;:> ]|\\(?:enspace|thinspace|medspace|thickspace)(?![a-zA-Z])|~|\\h?space\{[^{}]*\}|\s+",
        " ",
    ),
    str.strip,
    with_powers,
    _sub(r"\\text\s*\{\s*(?:percent|per cent|pct|\\?%)\s*\}|(?<![a-zA-Z])percent(?![a-zA-Z])", r"\\%"),
    _sub(rf"(?:[\s,]|\\q?quad)*({UNIT_NAME})\s*$", r" \1"),
    _sub(r"[\s,;]*\\q?quad(?![a-zA-Z])[\s,;]*(?:\\q?quad(?![a-zA-Z])[\s,;]*)*", ", "),
    lambda text: text.strip(" ,;"),
    # Numbers.
    _sub(r"(?<![\d.,])\d{1,3}(?: \d{3})+(?!\d| \d)", lambda number: number[0].replace(" ", "")),
    # A factorial before "=", which is not the operator "!=".
    _sub(r"(?<=[\d)])!=", "! ="),
    _sub(r"(?<![\d.,^_}\\])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d.])", _mixed),
    _sub(r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
    _sub(
        rf"\\frac(?![a-zA-Z])\s*(?!\{{){_TOKEN}\s*{_TOKEN}|\\frac\s*(\{{[^{{}}]*\}})\s*(\\[a-zA-Z]+|[^\s\\{{}}])",
        _braced,
    ),
    _sub(r"(?<![\d.,^_\\])(\d+)\s*\\frac\s*\{(\d+)\}\s*\{(\d+)\}", _mixed),
    _sub(r"(?<![\d.])(\d*)\.(\d*)\\(?:overline|bar|dot)\s*\{(\d+)\}(?!\d)", _repeating),
    _sub(r"(?<![\d.])(\d*)\.(\d*)\((\d+)\)(?![\d^])", _repeating),
    _sub(r"(?<![\d.])(\d*)\.(\d+)\s*(?:\\[lc]?dots(?![a-zA-Z])|\.\.\.+|…)", _with_dots),
    _sub(r"(?<=\d)\.(?=\s*(?:[a-zA-Z/)}]|\\(?!(?:[lc]?dots|overline|bar|dot)(?![a-zA-Z]))))", ""),
    with_powers_of_ten,
    _sub(r"(?<=[\d.])\s*(?:[xX*]|\\ast)\s*10\s*(?=\^)", r"\\times 10"),
    _sub(r"(?:\^|\*\*)\s*([+-]?\d{2,}|[+-]\d)", r"^{\1}"),
    _sub(r"\*\*", "^"),
    # Functions, cases, sets, labels.
    _sub(
        r"(?:\b(?:np|math|numpy)\.)?(?<![\\a-zA-Z])(arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|log|ln|exp|sqrt)(?=\s*[({])",
        r"\\\1",
    ),
    _sub(r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
    _sub(
        r"(?s)"
        r"\\begin\s*\{(?:cases|aligned|gathered)\}((?:(?!\\(?:begin|text|mbox)(?![a-zA-Z])|\\end).)*=.*?)"
        r"\\end\s*\{(?:cases|aligned|gathered)\}",
        lambda cases: cases[1].replace("&", ""),
    ),
    _sub(r"\\\{\s*[a-zA-Z]\s*(?:\\in\s*\\mathbb\s*\{?R\}?\s*)?(?:\\mid(?![a-zA-Z])|\||:)([^{}]*)\\\}", r"\1"),
    _sub(r"\\varnothing", r"\\emptyset"),
    _sub(r"(?<![\d.])(\d+)!\s*\^", r"(\1!)^"),
    # The parser takes E for Euler's number, which cannot have an index.
    _sub(r"(?<![A-Za-z\\])E_", r"\\Xi_"),
    _sub(r"_\{\s*\\(max|min)\s*\}", r"_{\1}"),
    lambda text: text.strip().rstrip(".;,").strip(),
)


@functools.lru_cache(maxsize=8192)
def respelled(text: str) -> str:
    r"""Rewrites an answer in notation that math-verify's LaTeX parser reads completely.

    Sizes of brackets, spaces and fonts are removed; characters outside ASCII, repeating decimals, ``4.5e33``,
    percents and unbraced fractions and exponents become plain LaTeX. Unknown notation is left as it is.
    """
    if len(text) > _MAX_CHARACTERS:
        return text.strip()
    for step in _STEPS:
        text = step(text)
    if text.count(r"\pm") == 1 and "," not in text and "=" not in text:
        before, after = text.split(r"\pm")
        text = f"{before}{'+' if before.strip() else ''}{after.strip()}, {before}-{after.strip()}"
    return text


@functools.lru_cache(maxsize=8192)
def number(text: str) -> tuple[Fraction, bool] | None:
    r"""Returns the exact value of an answer that is one number, and whether it is a percentage.

    Args:
        text: the answer, `respelled` or not: ``-12``, ``1,000``, ``0.5``, ``4.5e33``, ``4.5\times10^{33}``,
            ``10^{5}``, ``3/4``, ``\frac{3}{4}``, ``0.\overline{3}``, ``75\%``; with or without a unit.

    Returns:
        The value (3/4 for ``75\%``) and the flag; None if the answer is anything else, is longer than 300
        characters or has an exponent beyond 5,000.
    """
    if len(text) > _MAX_NUMBER_CHARACTERS:
        return None
    text = quantity(respelled(text)).value
    text = text.removeprefix("{").removesuffix("}") if re.fullmatch(r"\{[^{}]*\}", text) else text
    match = None if _SIDE_BY_SIDE.search(text) else _NUMBER.fullmatch(text.replace(" ", ""))
    if match is None:
        return None
    sign, mantissa, power, short, alone, alone_short, above, below, left, right, percent = match.groups()
    exponent = int(power or short or alone or alone_short or 0)
    if abs(exponent) > _MAX_EXPONENT:
        return None
    parts = (mantissa or above or left or "1", below or right or "1")
    top, bottom = (Fraction(part.replace(",", "")) for part in parts)
    if bottom == 0:
        return None
    value = top / bottom * Fraction(10) ** exponent
    return (-value if sign == "-" else value) / (100 if percent else 1), bool(percent)


def same_number(answer: str, box: str) -> bool | None:
    r"""Tells whether two numbers are exactly equal; None unless both are numbers.

    Also None if comparing their units needs algebra. A percentage has its value: ``75\%`` is 3/4, and
    ``10\%`` is not 10. A reference in percent may be answered without the sign, since the question then
    contains the unit.
    """
    reference = number(answer)
    value = number(box) if reference else None
    if reference is None or value is None:
        return None
    units = {quantity(respelled(text)).unit for text in (answer, box)} - {""}
    if len(units) == 2 or ("degree" in units and value != reference):
        return None
    return value[0] == reference[0] or (reference[1] and not value[1] and value[0] == 100 * reference[0])


def is_scientific(text: str) -> bool:
    r"""Tells whether an answer starts with a number in scientific notation: ``4.5e33``, ``3\times10^8``."""
    return len(text) <= _MAX_NUMBER_CHARACTERS and bool(_SCIENTIFIC.match(respelled(text).replace(" ", "")))


def with_percents(text: str, *, keep: bool) -> str:
    """Rewrites the percentages of a respelled answer as hundredths or, with ``keep``, as bare numbers."""
    return _PERCENT.sub(r"\1" if keep else r"(\\frac{\1}{100})", text)


def contradicts(answer: str, box: str) -> bool:
    r"""Tells whether an answer differs from the reference by something that a parser may ignore.

    Both are `respelled`. It finds braces against parentheses, ``[0, \infty]``, ``\neq`` and ``\ldots`` that
    only the answer has, two numbers side by side (``5 7`` is not 12), primes, words that change the number
    before them, and characters or commands that no parser reads.
    """
    kinds = {_bracket(answer), _bracket(box)}
    return (
        kinds in ({"{", "("}, {"{", "["})
        or any(mark.search(box) and not mark.search(answer) for mark in _MARKS)
        or ("infty" not in answer and bool(_UNEQUAL.search(box)) and not _UNEQUAL.search(answer))
        or any(changes(text) for text in UNIT_TEXT.findall(box) if text not in answer)
    )


_UNEQUAL = re.compile(r"\\neq?(?![a-zA-Z])|\\not(?![a-zA-Z])|!=")
# What an answer must not contain unless the reference does, too.
_MARKS = (
    re.compile(r"\\infty\s*\]|\[\s*[+-]?\s*\\infty"),
    re.compile(r"\\[lc]?dots(?![a-zA-Z])|\.\.\."),
    _SIDE_BY_SIDE,
    re.compile(r"'|\\prime"),
    re.compile(r"\""),
    re.compile(r"^[+-]?\{?\d+\}?\s*\{\d"),  # a number split by braces
    re.compile(r"[^\x00-\x7f]"),
)
_BASE = re.compile(r"\{?(-?[0-9A-Za-z.]+)\}?_\s*(?:\{\s*(-?\d+)\s*\}|(\d+))")


def same_in_base(answer: str, box: str) -> bool | None:
    """Tells whether numbers like ``1202_3`` have equal digits and bases; one of them may omit the base.

    Returns None if neither respelled answer has a base.
    """
    reference, value = _base(answer), _base(box)
    if reference is None and value is None:
        return None
    if reference and value:
        return reference == value
    digits, base = reference or value or ("", 0)
    valid = all(character in "-." or int(character, 36) < abs(base) for character in digits)
    return valid and digits == _without_text(box if reference else answer)


def _base(text: str) -> tuple[str, int] | None:
    match = _BASE.fullmatch(_without_text(text))
    has_digit = match is not None and any(map(str.isdigit, match[1]))
    return (match[1], int(match[2] or match[3])) if match and has_digit else None


def _without_text(text: str) -> str:
    return UNIT_TEXT.sub("", text).replace(" ", "")


def _bracket(text: str) -> str:
    """Returns the bracket around a whole list: "{", "(" or "["; empty for anything else."""
    text = text.replace(r"\lbrace", r"\{").replace(r"\rbrace", r"\}").partition("=")[2] or text
    text = text.strip().replace(r"\lbrace", r"\{").replace(r"\rbrace", r"\}")
    marks = [(m.start(), m[0]) for m in re.finditer(r"\\[{}]|[()\[\]{},]", text)]
    if len(marks) < 3 or marks[0][0] != 0:
        return ""
    depth, comma = 0, False
    for at, mark in marks:
        if mark in (r"\{", "(", "[", "{"):
            depth += 1
        elif mark == ",":
            comma |= depth == 1
        else:
            depth -= 1
            if depth == 0 and at + len(mark) != len(text):
                return ""
    return marks[0][1][-1] if comma and depth == 0 else ""
