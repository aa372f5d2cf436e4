r"""Finds the unit at the end of an answer and tells whether two units contradict each other.

Units are in upright letters, ``5\text{ cm}``, ``5\,\mathrm{m}/\mathrm{s}``, or signs, ``\$5``, ``30^\circ``.
Italic letters are variables, except after a number where they cannot mean a product: ``5 cm``, but not
``5t``. Values of units come from ``sympy.physics.units``.
"""

import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

UNIT_NAME = r"\\(?:text|mathrm|textrm|mbox|operatorname)\s*\{([^{}]*)\}(?:\s*\^\s*(?:\{\s*[+-]?\d+\s*\}|\d))?"
UNIT_TEXT = re.compile(UNIT_NAME)
_TRAILING = re.compile(rf"(?<=[\w)}}\].%!$])(?:\s*(?:(?:\\cdot|/)\s*)?{UNIT_NAME}\.?)+$")
_DEGREES = re.compile(r"\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})\s*(?:\\(?:text|mathrm)\s*\{\s*)?([CF]?)\s*\}?$")
_DEGREE_SIGN = re.compile(r"\s*\^\s*(?:\\circ(?![a-zA-Z])|\{\s*\\circ\s*\})")
_CURRENCY = re.compile(r"^([+-]?)\s*(\\\$|[€£¥])\s*(?=[+\-\d.\\])|\s*(\\\$|[€£¥])$")
_BARE = re.compile(
    r"(?:(?<=[\d})])|(?<=\\pi))(\s*)((?:(?:square|sq|cubic|cu)\s+)?([A-Za-z]+)(?:\s*\^\s*(?:\{\d\}|\d))?"
    r"(?:\s*(?:/|per(?![a-zA-Z]))\s*[A-Za-z]+(?:\s*\^\s*(?:\{\d\}|\d))?)*)\.?$"
)
_NUMERIC = re.compile(
    r"(?:[^a-zA-Z\\]|\\(?:[dtc]?frac|sqrt|pi|cdot|times|left|right)(?![a-zA-Z])|\\[^a-zA-Z])+"
)
# Words that change a number or add another one.
_CHANGES = re.compile(
    r"(?<![a-zA-Z])(?:or|and|not|to|from|between|less|fewer|more|greater|below|above|under|over|squared|cubed|"
    r"factorial|half|halves|thirds?|quarters?|twice|double|triple|inverse|reciprocal|root|negative|dozens?|"
    r"hundreds?|thousands?|millions?|billions?|trillions?|percent|times|plus|minus|base|one|two|three|four|five|"
    r"six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|forty|fifty)(?![a-zA-Z])|[\d%^_=]"
)
_EXPONENT = re.compile(r"(?<=[a-zA-Z])\^-?\d")
_CONNECTIVE = re.compile(r"\s*,?\s*(?:and|or)\s*")
_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")

_DOLLAR = re.compile(
    r"\\(?:text|mathrm|mbox)\s*\{\s*(?:US\s*)?\\\$\s*\}|\\(?:text|math)?dollar(?![a-zA-Z])|(?:US\s*)\\\$"
    r"|(?:\\(?:text|mathrm)\s*\{\s*)?(?<![a-zA-Z])USD(?![a-zA-Z])\s*\}?"
)
_DEGREE = re.compile(r"\\text\s*\{\s*\^\\circ\s*([CF]?)\s*\}|\\degree(?![a-zA-Z])")
_LARGE = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12, "万": 4, "亿": 8}
_LARGE_WORD = re.compile(
    r"(?<=[\d}])\s*(?:\\(?:text|mathrm|mbox)\s*\{\s*(thousand|million|billion|trillion)(?![a-zA-Z])([^{}]*)\}"
    r"|(thousand|million|billion|trillion)(?![a-zA-Z]))"
)
_CHINESE_LIST = """
    毫米 mm 厘米 cm 分米 dm 千米 km 公里 km 米 m 毫克 mg 克 g 千克 kg 公斤 kg 吨 tonne 毫升 mL 升 L 秒 s
    分钟 minutes 小时 hours 天 days 日 days 周 weeks 月 months 年 years 元 yuan 美元 dollars 欧元 euros
    度 degrees 弧度 radians 分 points
"""
_CHINESE_UNITS = {
    **dict(zip(_CHINESE_LIST.split()[::2], _CHINESE_LIST.split()[1::2], strict=True)),
    **dict.fromkeys("个個人只隻种種次名位件条條张張页頁棵组組本块塊岁歲", "items"),
}
_CHINESE_NAMES = "|".join(sorted(_CHINESE_UNITS, key=len, reverse=True))
_CHINESE = re.compile(
    rf"(?<=[\d}}\s])(?P<text>\\(?:text|mathrm|mbox)\s*\{{\s*)?(?P<large>[万亿]?)\s*(?P<power>平方|立方)?"
    rf"(?P<name>{_CHINESE_NAMES})?(?:(?:/|每)(?P<below>{_CHINESE_NAMES}))?(?<=[^\x00-\x7f])\s*(?(text)\}})$"
)
# Italic letters that are a unit after a number; those of `_SPACED` only if there is a space between.
_ABBREVIATIONS = frozenset(("cm", "mm", "km", "kg"))
_SPACED = frozenset(
    ("ft", "yd", "lb", "lbs", "oz", "mph", "kmph", "min", "sec", "hr", "hrs", "mL", "Hz", "kHz")
)
_WORD_LIST = """
    meter metre centimeter centimetre millimeter millimetre kilometer kilometre inch inche feet foot yard
    mile gram kilogram pound ounce ton tonne liter litre milliliter millilitre gallon second minute hour day
    week month year dollar cent euro yuan rupee degree radian newton joule watt volt ampere ohm kelvin hertz
    unit acre hectare student people person children ticket apple coin toy digit point mark page tile edge
    multiple integer meal soldier monkey women men way
"""
_WORDS = frozenset(_WORD_LIST.split())
# Name, factor, unit. All other units are sympy's, with or without a plural's s.
_OWN_LIST = """
    sec 1 second, min 1 minute, hr 1 hour, hrs 1 hour, week 7 day,
    yr 12 month, year 12 month, decade 120 month, century 1200 month,
    metre 1 meter, millimetre 1 mm, centimetre 1 cm, kilometre 1 km,
    inche 1 inch, in 1 inch, yd 1 yard, mi 1 mile, litre 1 liter, millilitre 1 mL, milliliter 1 mL,
    gallon 231 inch^3, gal 231 inch^3, acre 4840 yard^2, ha 1 hectare, lb 1 pound, lbs 1 pound,
    oz 1/16 pound, ounce 1/16 pound, gm 1 gram, mph 1 mile/hour, kmph 1 km/hour, kph 1 km/hour, kmh 1 km/hour,
    erg 1/10000000 joule, dyne 1/100000 newton, dyn 1 dyne, kHz 1000 Hz, MHz 1000000 Hz,
    kJ 1000 joule, kW 1000 watt, kN 1000 N,
    cent 1/100 dollar, KB 1000 byte, MB 1000000 byte, GB 1000000000 byte
"""
_OWN: Mapping[str, tuple[Fraction, str]] = {
    name: (Fraction(count), unit) for name, count, unit in map(str.split, _OWN_LIST.split(","))
}
_OTHER_LIST = """
    dollar euro yuan rupee yen month unit ton am pm celsius fahrenheit east west north south left right
    clockwise counterclockwise profit gain loss increase decrease
"""
_OTHERS = frozenset(_OTHER_LIST.split())
_TOKEN = re.compile(r"\\\$|[A-Za-z€£¥]+|/|\^\s*\{?\s*([+-]?\d+)\s*\}?")
_SIGNS = {"\\$": "dollar", "€": "euro", "£": "pound", "¥": "yuan"}
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}


def in_latex(text: str) -> str:
    """Rewrites a Chinese unit at the end of an answer as LaTeX."""
    return _CHINESE.sub(_in_english, text)


def with_signs(text: str) -> str:
    r"""Rewrites dollars as ``\$`` and degrees as ``^\circ``, whatever their notation."""
    return _DEGREE.sub(r"^\\circ \1", _DOLLAR.sub(r"\\$", text))


def with_powers(text: str) -> str:
    """Rewrites words such as "million" as powers of ten."""
    return _LARGE_WORD.sub(_with_power, text)


class Quantity(NamedTuple):
    r"""An answer and its unit."""

    value: str  # the answer without its unit
    unit: str  # as it is written, but "degree" for ``30^\circ``; empty if there is none
    bare: bool = False  # whether the unit is in italics and might be a product of variables


@functools.lru_cache(maxsize=8192)
def quantity(text: str, like: str = "") -> Quantity:
    """Splits a respelled answer into its value and its unit.

    ``like`` is the unit of the other answer: italic letters of the same kind, as in ``5 m``, are then a unit.
    """
    if sign := _CURRENCY.search(text):
        rest = text[: sign.start()] + (sign[1] or "") + text[sign.end() :]
        return Quantity(rest.strip(), sign[2] or sign[3])
    if (degrees := _DEGREES.search(text)) and degrees.start() and not _FUNCTION.search(text):
        unit = {"C": "celsius", "F": "fahrenheit"}.get(degrees[1], "degree")
        return Quantity(_DEGREE_SIGN.sub("", text[: degrees.start()]), unit)
    if upright := _TRAILING.search(text):
        names = [name.strip(" ~.") for name in UNIT_TEXT.findall(upright[0])]
        if any(changes(name) or name in ("i", "e", "j", "x") for name in names):
            return Quantity(text, "")
        return Quantity(text[: upright.start()], _spelled(upright[0]))
    italic = _BARE.search(text)
    if (
        italic
        and _NUMERIC.fullmatch(text[: italic.start()])
        and (_is_unit(italic) or _is_like(italic[2], like))
    ):
        return Quantity(text[: italic.start()], _spelled(italic[2]), bare=True)
    return Quantity(text, "")


def changes(text: str) -> bool:
    """Tells whether words change the number before them."""
    return _CHANGES.search(_EXPONENT.sub("", text)) is not None and _CONNECTIVE.fullmatch(text) is None


def conversion(unit: str, into: str) -> Any | None:
    """Returns the factor, a sympy number, that converts a value from one unit into another.

    It is 1 if a unit is missing or unknown, and None if the units contradict each other.
    """
    if not unit or not into or unit == into:
        return 1
    ours, theirs = measure(unit), measure(into)
    if ours is None or theirs is None:
        return 1
    (factor, powers), (other, others) = ours, theirs
    generic = {"unit"} & {*powers, *others}
    if {*powers, *others} in ({"celsius"}, {"fahrenheit"}) and "degree" in (unit, into):
        return 1
    if generic and len(powers) == len(others) == 1:
        return 1 if set(powers.values()) == set(others.values()) else None
    return factor / other if powers == others else None


@functools.lru_cache(maxsize=1024)
def measure(unit: str) -> tuple[Any, Mapping[str, int]] | None:
    """Returns a unit's factor and the powers of its dimensions; None if a name in it is unknown."""
    factor: Any = 1
    powers: Counter[str] = Counter()
    for name, power in _parts(unit):
        named = _named(name)
        if named is None:
            return None
        factor *= named[0] ** power
        for dimension, exponent in named[1].items():
            powers[dimension] += exponent * power
    return factor, {dimension: power for dimension, power in powers.items() if power}


def _parts(unit: str) -> Iterator[tuple[str, int]]:
    """Yields names and their powers: for "km/h", km with power 1 and h with power -1."""
    below, prefix = 1, 1
    parts: list[tuple[str, int]] = []
    for token in _TOKEN.finditer(unit.replace("p.m", "pm").replace("a.m", "am")):
        text = token[0]
        if text in ("/", "per"):
            below = -1
        elif text[0] == "^":
            if parts:
                parts[-1] = parts[-1][0], parts[-1][1] * int(token[1])
        elif text in _POWERS:
            prefix = _POWERS[text]
        else:
            parts.append((text, below * prefix))
            prefix = 1
    if any(name.lower() in ("celsius", "fahrenheit") for name, _ in parts):
        parts = [item for item in parts if _singular(item[0]) != "degree"]
    yield from parts


def _named(name: str) -> tuple[Any, Mapping[str, int]] | None:
    import sympy
    from sympy.physics import units
    from sympy.physics.units.quantities import PhysicalConstant
    from sympy.physics.units.systems.si import dimsys_SI

    name = _SIGNS.get(name, name)
    for spelled in (name, name.lower(), _singular(name)):
        if spelled in _OWN:
            count, unit = _OWN[spelled]
            known = measure(unit)
            return known and (sympy.Rational(count) * known[0], known[1])
        if spelled in _OTHERS:
            return sympy.Integer(1), {spelled: 1}
        found = getattr(units, spelled, None)
        if isinstance(found, units.Quantity) and not isinstance(found, PhysicalConstant):
            powers = dimsys_SI.get_dimensional_dependencies(found.dimension)
            return found.scale_factor, {str(key.name): int(power) for key, power in powers.items()}
    return None


def _singular(name: str) -> str:
    name = name.lower()
    return name[:-1] if len(name) > 3 and name.endswith("s") else name


def _spelled(text: str) -> str:
    r"""Returns a unit without typesetting: "km / h" for ``\mathrm{~km} / \mathrm{h}``."""
    text = re.sub(r"\\(?:text|mathrm|textrm|mbox|operatorname)\s*|\\cdot|[~{}]", " ", text)
    text = " ".join(text.split()).strip(". ")
    return "degree" if text in ("degrees", "deg", "deg.") else text


def _is_unit(match: re.Match[str]) -> bool:
    name = match[3]
    return name in _ABBREVIATIONS or (
        bool(match[1]) and (name in _SPACED or (len(name) > 2 and _singular(name) in _WORDS))
    )


def _is_like(unit: str, like: str) -> bool:
    """Tells whether italic letters are a unit of the same kind as the unit ``like``."""
    ours, theirs = (measure(unit), measure(like)) if like else (None, None)
    return ours is not None and theirs is not None and ours[1] == theirs[1]


def _in_english(unit: re.Match[str]) -> str:
    large, name, below = unit["large"], unit["name"], unit["below"]
    power = rf"\times 10^{{{_LARGE[large]}}}" if large else ""
    name = {"平方": "square ", "立方": "cubic "}.get(unit["power"], "") + _CHINESE_UNITS.get(name, "")
    per = f" per {_CHINESE_UNITS[below]}" if below else ""
    return power + (rf"\text{{ {name}{per}}}" if name else "")


def _with_power(word: re.Match[str]) -> str:
    """Rewrites "million" as a power of ten, and keeps the rest of the text."""
    rest = rf"\text{{{word[2]}}}" if word[2] and word[2].strip(" .") else ""
    return rf"\times 10^{{{_LARGE[word[1] or word[3]]}}}{rest}"
