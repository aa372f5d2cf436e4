r"""Finds the unit at the end of an answer, and tells whether two units contradict each other.

Only the units of a table are dropped from an answer: anything else beside a number could change it. What
stands in text after a reference's value is a unit, whatever it is.
"""

import functools
import re
from collections import Counter
from fractions import Fraction
from typing import NamedTuple

# Dimension: names, and factors of those that follow.
_TABLE = """
    length: m meter metre, 1/1000 mm millimeter millimetre, 1/100 cm centimeter centimetre 厘米, 1/10 dm,
            1000 km kilometer kilometre 千米 公里, 127/5000 in inch inche, 381/1250 ft foot feet,
            1143/1250 yd yard, 201168/125 mi mile, 1 米
    time: s sec second 秒, 60 min minute 分钟, 3600 h hr hour 小时, 86400 day 天, 604800 week
    years: year yr 年, 1/12 month, 10 decade, 100 century
    mass: g gram gm 克, 1/1000 mg, 1000 kg kilogram 千克, 45359237/100000 lb pound, 45359237/1600000 oz ounce
    volume: L l liter litre, 1/1000 mL ml milliliter millilitre, 473176473/125000000 gallon
    money: dollar USD 美元, 1/100 cent
    data: byte, 1000 KB kB, 1000000 MB, 1000000000 GB
    energy: J joule, 1000 kJ, 1/10000000 erg
    force: N newton, 1/100000 dyn dyne
"""
# Units that are converted into no other.
_OTHERS = """
    unit point student people person child children ticket apple coin toy page tile edge digit multiple book
    integer card ball chocolate candy egg meal soldier monkey man men woman women way time step pair game item
    degree radian rad celsius euro yuan rupee acre hectare ton tonne V volt A W watt K Hz kHz Pa ohm mol
    元 个 名 人 只 度 岁 am pm
"""
_SIGNS = {"\\$": "dollar", "€": "euro", "£": "pound", "¥": "yuan", "¢": "cent"}
_WRAPPED = r"\\(?:text|mathrm|textrm|mbox|operatorname)\s*\{[^{}]*\}(?:\s*\^\s*(?:\{-?\d\}|\d))?"
_UPRIGHT = re.compile(rf"(?<=[\w)}}\].%!])(?:\s*(?:(?:\\cdot|/)\s*)?{_WRAPPED})+\.?$")
_SIGN = re.compile(r"^([-+]?)\s*(\\\$|[€£¥])\s*(?=[-+\d.\\])|\s*(\\\$|[€£¥¢])$")
_DEGREES = re.compile(r"\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})\s*(?:C|\\(?:text|mathrm)\s*\{\s*C\s*\})?$")
_BARE = re.compile(
    r"(?<=[\d}).])(\s*)((?:(?:square|cubic|sq) )?([^\W\d_]+)(?:\^\{?\d\}?)?(?:\s*(?:/|per )\s*[^\W\d_]+)*)$"
)
_NUMERIC = re.compile(r"(?:[^a-zA-Z\\]|\\(?:frac|sqrt|pi|cdot|times)(?![a-zA-Z])|\\[^a-zA-Z])+")
# Italic letters that are a unit after a number, without or only with a space, as are those of three and more.
_CLOSE = ("cm", "mm", "km", "kg")
_SPACED = ("ft", "yd", "lb", "oz", "hr", "mL", "Hz", "min", "sec", "mph", "USD")
_CHANGES = re.compile(
    r"(?i)\b(?:or|and|to|less|more|below|above|squared|cubed|half|dozens?|hundreds?|percent)\b|\d%"
)
_PART = re.compile(r"(/|[^\W\d_]+|\\\$|\S)(?:\^(-?\d))?")
_SPELLED = {"mph": "mile/hour", "kmph": "km/hour", "a.m.": "am", "p.m.": "pm"}
_SPELLED |= dict.fromkeys(("degrees", "deg", "degrees Celsius", "度"), "degree")
_POWERS = {"square": 2, "sq": 2, "平方": 2, "cubic": 3, "cu": 3}


class Quantity(NamedTuple):
    """An answer without its unit, and the unit as it is written."""

    value: str
    unit: str


@functools.cache
def _table() -> dict[str, tuple[Fraction, str]]:
    found = {name: (Fraction(1), name) for name in _OTHERS.split()}
    for line in re.sub(r",\s+", ", ", _TABLE).strip().splitlines():
        dimension, _, groups = line.partition(":")
        for group in groups.split(","):
            first, *names = group.split()
            scale = Fraction(first) if first[0].isdigit() else Fraction(1)
            found |= dict.fromkeys(
                [*names, *(() if first[0].isdigit() else (first,))], (scale, dimension.strip())
            )
    return found


@functools.lru_cache(maxsize=8192)
def quantity(text: str, *, trusted: bool = False, like: str = "") -> Quantity:
    """Splits a plain answer into its value and its unit.

    Args:
        text: the answer.
        trusted: it is a reference, whose unit may be any text.
        like: the unit of the other answer: italic letters of the same kind, as in ``5 m``, are then a unit.
    """
    if sign := _SIGN.search(text):
        rest = text[: sign.start()] + (sign[1] or "") + text[sign.end() :]
        return Quantity(rest.strip(), sign[2] or sign[3])
    if degrees := _DEGREES.search(text):
        return Quantity(text[: degrees.start()], "degree")
    if upright := _UPRIGHT.search(text):
        unit = re.sub(r"\\[a-z]+\s*(?=\{)|\\cdot|[{}~]", " ", upright[0])
        unit = _spelled(unit)
        if unit == like or measure(unit) or (trusted and _CHANGES.search(unit) is None):
            return Quantity(text[: upright.start()], unit)
        return Quantity(text, "")
    bare = _BARE.search(text)
    if bare and _NUMERIC.fullmatch(text[: bare.start()]) and (found := measure(bare[2])):
        name, kind = bare[3], measure(like)
        if (
            name in _CLOSE
            or (bare[1] and (name in _SPACED or len(name) > 2))
            or not name.isascii()
            or (kind and kind[1] == found[1])
        ):
            return Quantity(text[: bare.start()], _spelled(bare[2]))
    return Quantity(text, "")


def factor(unit: str, into: str) -> Fraction | None:
    """Returns the factor that converts a value from one unit into another; None if they contradict.

    It is 1 if one of them is missing.
    """
    if not unit or not into or unit == into:
        return Fraction(1)
    ours, theirs = measure(unit), measure(into)
    if ours is None or theirs is None:
        return None
    if "unit" in (*ours[1], *theirs[1]):  # square units are square centimetres
        return Fraction(1) if sorted(ours[1].values()) == sorted(theirs[1].values()) else None
    return ours[0] / theirs[0] if ours[1] == theirs[1] else None


@functools.lru_cache(maxsize=1024)
def measure(unit: str) -> tuple[Fraction, Counter[str]] | None:
    """Returns a unit's factor and the powers of its dimensions; None if it has no or an unknown name."""
    scale, powers = Fraction(1), Counter[str]()
    below = ahead = 1
    for part, power in _PART.findall(unit):
        if part in ("/", "per"):
            below = -1
            continue
        if part in _POWERS:
            ahead = _POWERS[part]
            continue
        name = _SIGNS.get(part, part)
        spellings = (name, name.lower(), name.lower().removesuffix("s"))
        known = next((_table()[spelled] for spelled in spellings if spelled in _table()), None)
        if known is None:
            return None
        exponent = below * ahead * int(power or 1)
        ahead = 1
        scale *= known[0] ** exponent
        powers[known[1]] += exponent
    return (scale, powers) if powers else None


def _spelled(unit: str) -> str:
    unit = " ".join(re.sub(r"\s*\^\s*", "^", unit).split())
    return _SPELLED.get(unit, _SPELLED.get(unit.strip("."), unit.strip(".")))
