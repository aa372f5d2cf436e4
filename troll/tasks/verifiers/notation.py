r"""Rewrites the notation of answers as plain LaTeX: the part of judging mathematics that needs no algebra.

`plain` removes typesetting and spells numbers alike; what it does not know stays, and is refused elsewhere.
"""

import functools
import re
from collections.abc import Callable
from itertools import accumulate

# Longer answers are not rewritten: some patterns take quadratic time.
_MAX_CHARACTERS = 2_000
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿ", "0123456789+-()n")
_CHARACTERS = {
    **dict.fromkeys("−–—‐‑﹣－", "-"),
    **dict.fromkeys("\u00a0\u2002\u2003\u2009\u200a\u202f\u3000", " "),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", ""),
    **dict.fromkeys("·⋅∙", r"\cdot "),
    **{"×": r"\times ", "÷": r"\div ", "±": r"\pm ", "∞": r"\infty ", "°": r"^\circ ", "√": r"\sqrt"},
    **{
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\neq ",
        "≈": r"\approx ",
        "∪": r"\cup ",
        "∈": r"\in ",
        "∅": r"\emptyset ",
    },
    **{
        "（": "(",
        "）": ")",
        "，": ",",
        "、": ", ",
        "；": ";",
        "％": "%",
        "＝": "=",
        "π": r"\pi ",
        "θ": r"\theta ",
    },
    **{
        "½": r"\frac{1}{2}",
        "⅓": r"\frac{1}{3}",
        "⅔": r"\frac{2}{3}",
        "¼": r"\frac{1}{4}",
        "¾": r"\frac{3}{4}",
    },
    **{"∨": r"\lor ", "∧": r"\land ", "或": r"\text{ or }", "和": r"\text{ and }", "且": r"\text{ and }"},
}
_NUMERALS = "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
_BASES = {name: str(base) for base, name in enumerate(_NUMERALS.split(), start=2)}
_FONT = "(?:math|text)(?:bf|sf|it|tt|normal)|boldsymbol|bm|emph|underline|boxed|fbox|ensuremath"
_TOKEN = r"(\{[^{}]*\}|\\[a-zA-Z]+|[^\s\\{}])"
_LARGE = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCIENTIFIC = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)\s*\\(?:times|cdot)\s*10\s*\^")


def with_powers_of_ten(text: str) -> str:
    r"""Rewrites ``4.5e33`` as ``4.5\times 10^{33}``: math-verify would read it as 4.5 times e times 33."""
    return _E.sub(r"\1\\times 10^{\2}", text)


_E = re.compile(r"(?<![A-Za-z\d.])(\d+(?:\.\d*)?|\.\d+)[eE]([+-]?\d{1,6})(?![\d.A-Za-z])")


def is_scientific(text: str) -> bool:
    r"""Tells whether an answer starts with a number in scientific notation: ``4.5e33``, ``3\times10^8``."""
    return len(text) <= 300 and bool(_SCIENTIFIC.match(plain(text)))


def _unwrapped(text: str) -> str:
    """Removes braces that enclose the whole text."""
    text = text.strip()
    while len(text) > 1 and text[0] == "{" and _closes_last(text):
        text = text[1:-1].strip()
    return text


def _closes_last(text: str) -> bool:
    """Tells whether the brace that a text starts with is closed by its last character."""
    depths = accumulate((character == "{") - (character == "}") for character in text)
    return next((at for at, depth in enumerate(depths) if depth == 0), -1) == len(text) - 1


def _raised(run: re.Match[str]) -> str:
    text = run[0].translate(_SUPERSCRIPTS)
    return f"^{text}" if len(text) == 1 else f"^{{{text}}}"


def _mixed(match: re.Match[str]) -> str:
    r"""Rewrites ``2\frac14`` and ``2 1/4`` as a sum, but not ``1 000/3`` or 2 times three halves."""
    whole, above, below = match.groups()
    return rf"({whole}+\frac{{{above}}}{{{below}}})" if int(above) < int(below) else match[0]


def _periodic(whole: str, start: str, period: str) -> str:
    r"""Returns 0.1(6) as ``\frac{15}{90}``."""
    top = int(f"{whole}{start}{period}") - int(f"{whole or 0}{start}")
    return rf"\frac{{{top}}}{{{'9' * len(period)}{'0' * len(start)}}}"


def _dotted(match: re.Match[str]) -> str:
    """Rewrites 0.333... as a fraction if a period shows: one digit three times, or several twice."""
    found = re.search(r"(\d)\1\1+$", match[2]) or re.search(r"(\d{2,}?)\1+$", match[2])
    return _periodic(match[1], match[2][: found.start()], found[1]) if found else match[0]


def _sub(pattern: str, replacement: str | Callable[[re.Match[str]], str]) -> Callable[[str], str]:
    return functools.partial(re.compile(pattern).sub, replacement)


_STEPS: tuple[Callable[[str], str], ...] = (
    _sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿ]+", _raised),
    _sub("|".join(map(re.escape, _CHARACTERS)), lambda character: _CHARACTERS[character[0]]),
    _sub(r"^\s*(?:(`+)([^`]+)\1|(\*\*?)([^*]+)\3)\s*$", r"\2\4"),
    # Typesetting: displays, sizes, fonts, colours, spaces.
    _sub(r"\\text\s*\{\s*\\\$\s*([\d.,]*)\s*\}|\\textdollar(?![a-zA-Z])|USD(?=\s*\d)", r"\\$\1"),
    _sub(r"\\text(?:bf|it|rm)\s*\{(?=[a-zA-Z ]{2,}\})", r"\\text{"),
    _sub(r"\\(?:displaystyle|textstyle|limits)(?![a-zA-Z])|(?<!\\)\$|(?<!\\)\\[()\[\]]", ""),
    _sub(r"\\(?:left|right|[bB]igg?[lrm]?)(?![a-zA-Z])\s*\.?", ""),
    _sub(
        r"\\[hv]?phantom\s*\{[^{}]*\}|\\(?:textcolor|color|colorbox|fcolorbox\s*\{\w+\})\s*(?:\[\w+\])?\s*\{[^{}]*\}",
        "",
    ),
    _sub(rf"\\(?:{_FONT})\s*(?=\{{)|\\(?:bf|it|rm|large|Large|huge)(?![a-zA-Z])", ""),
    _sub(r"\\big(cup|cap)(?![a-zA-Z_]|\s*_)", r"\\\1 "),
    _sub(r"\\(text|mathrm|mbox)\s*\{\s*([+-]?\d[\d.,/]*)\s*([a-zA-Z][a-zA-Z ]*)\}$", r"\2\\text{ \3}"),
    _sub(r"\\(?:mathrm|text)\s*\{\s*(?:\(([A-Z])\)|([ie])|([-\d.,/\s]*))\s*\}(?!\s*\{)", r" \1\2\3 "),
    _sub(r"\\(?:mathrm|text)\s+([ie])(?![a-zA-Z])", r" \1 "),
    _sub(r",\s*\\!\s*(?=\d{3})|\{,\}(?=\d{3})|\\!", ""),
    _sub(r"(?<!\\)\\[,;:> ]|~|\\h?space\{[^{}]*\}|\s+", " "),
    _sub(r"\\text\s*\{\s*(?:percent|per cent)\s*\}|(?<=\d) ?percent$", r"\\%"),
    _sub(
        r"(?<=[\d}])\s*\\text\s*\{\s*(thousand|million|billion|trillion)(?![a-zA-Z])([^{}]*)\}",
        lambda word: (
            rf"\times 10^{{{_LARGE[word[1]]}}}" + (rf"\text{{{word[2]}}}" if word[2].strip(" .") else "")
        ),
    ),
    _sub(r"\^\s*\{\s*\\circ\s*\}|\\degree(?![a-zA-Z])|\\text\s*\{\s*\^\\circ\s*\}", r"^\\circ "),
    _sub(r"[\s,;]*\\q?quad(?![a-zA-Z])[\s,;]*(?:\\q?quad(?![a-zA-Z])[\s,;]*)*", ", "),
    _unwrapped,
    _sub(
        r"^((?:\w\s*=)?\s*-?)\(?([\dA-F]+)\)?\s*(?:_[\s{(]*(?:\\(?:text|mathrm)\s*\{\s*)?|\\text\s*\{\s*\(?(?=base))"
        r"(?:base\s*\}?\s*)?(\w+)[\s})]*$",
        lambda base: f"{base[1]}{base[2]}_{{{_BASES.get(base[3], base[3])}}}",
    ),
    lambda text: text.lstrip(" ,;").rstrip(" ,;."),
    # Numbers.
    _sub(r"(?<![\d.,])\d{1,3}(?: \d{3})+(?!\d| \d)", lambda run: run[0].replace(" ", "")),
    _sub(
        r"^((?:[^=(\[{]*=)?\s*[-+]?(?:\\\$)?\s*[-+]?)(\d{1,3}(?:,\d{3})+)(?![\d,])",
        lambda run: run[1] + run[2].replace(",", ""),
    ),
    _sub(r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
    _sub(
        rf"\\frac(?![a-zA-Z])\s*{_TOKEN}\s*{_TOKEN}",
        lambda part: rf"\frac{{{part[1].strip('{}')}}}{{{part[2].strip('{}')}}}",
    ),
    _sub(r"(?<![\d.,^_}\\])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d.])", _mixed),
    _sub(r"(?<![\d.,^_\\])(\d+)\s*\\frac\{(\d+)\}\{(\d+)\}", _mixed),
    _sub(
        r"(?<![\d.])(?<!\d )(\d*)\.(\d*)(?:\\(?:overline|bar|dot)\s*\{(\d+)\}|\((\d+)\)(?!\^))(?!\d)",
        lambda run: _periodic(run[1], run[2], run[3] or run[4]),
    ),
    _sub(r"(?<![\d.])(\d*)\.(\d+)\s*(?:\\[lc]?dots(?![a-zA-Z])|\.\.\.+|…)", _dotted),
    with_powers_of_ten,
    _sub(r"(?<=[\d.])\s*(?:[xX*]|\\ast)\s*10\s*(?=\^)", r"\\times 10"),
    _sub(r"\*\*", "^"),
    _sub(r"\^\s*([+-]?\d{2,}|[+-]\d)", r"^{\1}"),
    _sub(
        r"(?:\b(?:np|math)\.)?(?<![\\a-zA-Z])(arcsin|arccos|arctan|sin|cos|tan|log|ln|exp|sqrt)(?=\s*[({])",
        r"\\\1",
    ),
    _sub(r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
    _sub(
        r"\\begin\s*\{cases\}(.*)\\end\s*\{cases\}",
        lambda cases: cases[1].replace("&", "").replace(r"\\", ","),
    ),
    _sub(r"^\\\{\s*[a-z]\s*(?:\\mid(?![a-zA-Z])|\||:)([^{}]*)\\\}$", r"\1"),
    _sub(r"\\varnothing", r"\\emptyset"),
    lambda text: text.lstrip(" ,;").rstrip(" ,;."),
)


@functools.lru_cache(maxsize=8192)
def plain(text: str) -> str:
    r"""Returns an answer without typesetting: sizes, fonts, colours and spaces; with one spelling of numbers.

    Repeating decimals and mixed numbers become fractions, ``4.5e33`` and millions products, and characters
    outside ASCII commands. Texts of more than 2,000 characters stay.
    """
    if len(text) <= _MAX_CHARACTERS:
        for step in _STEPS:
            text = step(text)
    return " ".join(text.split())
