r"""Compares answers for rewards, by exact values of whole answers.

math-verify suits answers in good faith, but a policy would learn to exploit what it passes over. Here
numbers are read by ``numbers.py`` and expressions by ``expressions.py``; lists, tuples, intervals,
inequalities and names are taken apart by this module, so that every part counts. Runs within the limits of
``math_worker.py``.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import sympy

from troll.tasks.verifiers.expressions import close, constant, equal_values, parse, same_expression
from troll.tasks.verifiers.notation import plain
from troll.tasks.verifiers.numbers import same_number

_BRACKETS = re.compile(r"\\begin(?![a-zA-Z])|\\end(?![a-zA-Z])|\\[lr](?:floor|ceil)|\\[\\{}]|[()\[\]{}]")
_DEPTH = dict.fromkeys(("(", "[", "{", r"\{", r"\begin", r"\lfloor", r"\lceil"), 1)
_DEPTH |= dict.fromkeys((")", "]", "}", r"\}", r"\end", r"\rfloor", r"\rceil"), -1)
_TEXT = (
    r"\\(?:text|mathrm|mbox|operatorname)\s*\{\s*,?\s*(?i:%s)\s*,?\s*\}"
    r"|(?<![a-zA-Z\\])(?i:%s)(?![a-zA-Z])"
)
_OR = re.compile(rf"[\s,;]*(?:{_TEXT % ('or', 'or')}|\\(?:lor|vee)(?![a-zA-Z])|;)[\s,;]*")
_AND = re.compile(rf"\s*(?:,?\s*(?:{_TEXT % ('and', 'and')}|\\(?:land|wedge)(?![a-zA-Z]))\s*,?|,)\s*")
_CUP = re.compile(r"\\cup(?![a-zA-Z])")
_EQUALS = re.compile(r"=|\\(?:approx|equiv)(?![a-zA-Z])")
_RELATION = re.compile(r"<=|>=|[<>]|\\(?:le|ge|leq|geq|leqslant|geqslant|lt|gt|neq?)(?![a-zA-Z])")
_SPELLED = {r"\l": "<", r"\g": ">", r"\n": "!"}
_MEMBER = re.compile(r"^\s*[a-zA-Z]\s*\\in(?![a-zA-Z])")
_GREEK = r"\\(?:alpha|beta|gamma|delta|theta|lambda|mu|rho|sigma|phi|omega)(?![a-zA-Z])"
_LETTER = rf"(?:[a-zA-Z]|\\(?:angle|triangle|overline|text|mathrm|operatorname|Pr)(?![a-zA-Z])|{_GREEK})"
_NAME = re.compile(
    rf"(?!e\s*$)(?:{_LETTER}|\|[a-zA-Z]|\[[A-Z])(?:[\w{{}}\[\]|\s]|\([^()]*\)|{_LETTER})*", re.ASCII
)
_VARIABLE = re.compile(rf"(?!e$)[a-zA-Z](?:_\w)?|{_GREEK}")
_WORDS = re.compile(r"(?:\s*\\(?:text|mathrm|textrm|mbox)\s*\{[^{}\d]*[^\W\d_][^{}\d]*\})+\s*")
_UNORDERED = ("", "{}", "cup")  # lists, sets, unions
# Tolerance of "approximately" between the sides of an answer such as \sqrt{2} \approx 1.41.
_ROUGHLY = sympy.Rational(1, 20)


class _Several(NamedTuple):
    """Values that make up an answer, by what is around or between them."""

    brackets: str  # "()", "(]" and so on, or one of `_UNORDERED`
    parts: list[Any]  # texts or `_Several`
    names: tuple[str, ...] = ()  # of the values of ``x = 1, y = 2``, in order


class _Region(NamedTuple):
    """Inequalities: alternatives of parts that hold together."""

    groups: list[list[str]]


def equal_answers(reference: str, answer: str) -> bool:
    """Tells whether an answer, the content of a box, has the same value as the reference.

    If it cannot be read as mathematics, it must be the same text, except for spaces and typesetting.
    """
    reference, answer = plain(reference), plain(answer)
    if _same_text(reference, answer):
        return True
    pairs = (("{", "}"), ("([", ")]"))
    balanced = all(sum(map(answer.count, left)) == sum(map(answer.count, right)) for left, right in pairs)
    return balanced and _same(_read(reference), _read(answer))


def _same_text(reference: str, answer: str) -> bool:
    # 5 7 is not 57
    ours, theirs = (re.sub(r"(?<![\d.]) | (?![\d.])", "", text) for text in (reference, answer))
    if ours == theirs:
        return True
    if _WORDS.fullmatch(reference) or _WORDS.fullmatch(answer):
        marks = re.compile(r"\\(?:text|mathrm|textrm|mbox)(?![a-zA-Z])|[\s.,;:()'{}~-]")
        words = [marks.sub("", text) for text in (reference, answer)]
        return words[0].casefold() == words[1].casefold()
    return False


def _split(text: str, mark: re.Pattern[str]) -> list[str]:
    """Splits at the marks outside of brackets."""
    depth, at, start, parts = 0, 0, 0, list[str]()
    while at < len(text):
        if bracket := _BRACKETS.match(text, at):
            depth += _DEPTH.get(bracket[0], 0)
        found = mark.match(text, at) if depth == 0 else None
        if found and found.end() > at:
            parts.append(text[start:at].strip())
            start = at = found.end()
        else:
            at = bracket.end() if bracket else at + 1
    return [*parts, text[start:].strip()]


def _read(text: str) -> Any:
    """Takes a plain answer apart."""
    text = re.sub(_TEXT % ("either|both", "either|both"), "", text)
    if ", " in text:
        text = re.sub(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d]|,\d)", lambda run: run[0].replace(",", ""), text)
    groups = [[part for part in _split(group, _AND) if part] for group in _split(text, _OR)]
    parts = [part for group in groups for part in group]
    if any(_RELATION.search(part) for part in parts):
        return _Region(groups)
    tuples = [named._replace(names=()) for group in groups if (named := _named(group))]
    if len(groups) == len(tuples) > 1:
        return _Several("", list(tuples))
    if len(parts) > 1:
        return _named(parts) or _Several("", [_item(part) for part in parts])
    return _item(text)


def _item(text: str) -> Any:
    text = _MEMBER.sub("", text).strip()
    if len(pieces := _split(text, _CUP)) > 1:
        return _Several("cup", [_item(piece) for piece in pieces])
    sides = _split(text, _EQUALS)
    if len(sides) > 1 and text.count("=") == len(sides) - 1:
        left, right = _tuple(sides[0]), _tuple(sides[-1])
        if (
            isinstance(left, _Several)
            and isinstance(right, _Several)
            and len(left.parts) == len(right.parts)
            and all(_same(_tuple(side), right) for side in sides[1:])
        ):
            pairs = zip(left.parts, right.parts, strict=True)
            return _named([f"{name}={value}" for name, value in pairs]) or text
    if found := _tuple(text):
        return found
    if text.count(r"\pm") == 1:
        before, after = text.split(r"\pm")
        plus = "+" if before.strip() and not before.strip().endswith("=") else ""
        return _Several("", [f"{before}{plus}{after.strip()}", f"{before}-{after.strip()}"])
    return text


def _tuple(text: str) -> Any:
    """Reads a set, or a tuple or interval of two values or more; of a set of one, its element."""
    text = text.strip()
    brackets = _BRACKETS.match(text)
    left = brackets[0] if brackets else ""
    right = text[-2:] if text[-2:] == r"\}" else text[-1:]
    if (left in ("(", "[") and right in (")", "]")) or (left, right) == (r"\{", r"\}"):
        inner = text[len(left) : -len(right)]
        parts = _split(inner, _AND)
        balanced = all(_depth(part) == 0 for part in parts)
        if balanced and all(parts) and len(parts) == 1 and left == r"\{":
            return _item(parts[0])
        if balanced and all(parts) and len(parts) > 1:
            return _Several("{}" if left == r"\{" else left + right, [_item(part) for part in parts])
    return None


def _depth(text: str) -> int:
    depth = lowest = 0
    for bracket in _BRACKETS.findall(text):
        depth += _DEPTH.get(bracket, 0)
        lowest = min(lowest, depth)
    return depth or lowest


def _named(parts: Sequence[str]) -> _Several | None:
    """Reads ``y = 2, x = 1`` as a tuple in the order of the names; None unless all have different names.

    Names that differ only in their index, as those of two roots, are the same.
    """
    sides = [_split(part, _EQUALS) for part in parts]
    if not all(len(side) == 2 and all(side) and _NAME.fullmatch(side[0]) for side in sides):
        return None
    items = sorted((side[0].replace(" ", ""), side[1]) for side in sides)
    stems = {re.sub(r"_(?:\{[^{}]*\}|\w)|'+$", "", name) for name, _ in items}
    if len(items) < 2 or len(stems) < 2 or len({name for name, _ in items}) < len(items):
        return None
    items.sort(key=lambda item: (item[0].startswith("\\"), item[0]))
    return _Several("()", [_item(value) for _, value in items], tuple(name for name, _ in items))


def _same(reference: Any, answer: Any) -> bool:
    if isinstance(reference, _Region) or isinstance(answer, _Region):
        both = isinstance(reference, _Region) and isinstance(answer, _Region)
        return (both and _same_chain(reference, answer)) or _same_points(reference, answer)
    if isinstance(reference, str) and isinstance(answer, str):
        return _same_value(reference, answer)
    if isinstance(reference, str) or isinstance(answer, str) or len(reference.parts) != len(answer.parts):
        return False
    if reference.names and answer.names and reference.names != answer.names:
        return False
    kinds = {reference.brackets, answer.brackets}
    if kinds == {"", "()"} and (reference.names or answer.names or not reference.brackets):
        return all(map(_same, reference.parts, answer.parts))  # 1, 2 or (1, 2) for x = 1, y = 2
    if len(kinds) > 1 and kinds != {"", "{}"}:
        return False
    if reference.brackets not in _UNORDERED:
        return all(map(_same, reference.parts, answer.parts))
    left = list(answer.parts)
    for part in reference.parts:
        found = next((k for k, other in enumerate(left) if _same(part, other)), None)
        if found is None:
            return False
        del left[found]
    return True


def _same_chain(reference: _Region, answer: _Region) -> bool:
    """Tells whether two chains such as ``2 < x < 3`` and ``3 > x > 2`` have the same sides and signs."""
    if [len(group) for group in reference.groups] != [1] or [len(group) for group in answer.groups] != [1]:
        return False
    (ours, signs), (theirs, others) = _chain(reference.groups[0][0]), _chain(answer.groups[0][0])
    return signs == others and len(ours) == len(theirs) and all(map(_same_value, ours, theirs))


def _chain(text: str) -> tuple[list[str], list[str]]:
    """Returns the sides and signs of a chain of inequalities, turned around if it falls."""
    sides = _split(text, _RELATION)
    signs = [_SPELLED.get(sign[:2], sign) + "=" * (sign[2:3] == "e") for sign in _RELATION.findall(text)]
    if all(sign in (">", ">=") for sign in signs):
        return sides[::-1], [sign.replace(">", "<") for sign in reversed(signs)]
    return sides, signs


def _same_points(reference: Any, answer: Any) -> bool:
    """Tells whether inequalities of one variable, intervals or sets describe the same numbers."""
    letters: set[Any] = set()
    ours, theirs = _points(reference, letters), _points(answer, letters)
    if ours is None or theirs is None or len(letters) > 1:
        return False
    return bool(ours == theirs or ours.symmetric_difference(theirs).is_empty)


def _points(read: Any, letters: set[Any]) -> Any:
    try:
        if isinstance(read, _Region):
            groups = [[_points(part, letters) for part in group] for group in read.groups]
            found = [sympy.Intersection(*group) for group in groups]
            if len(groups) == 1 and found[0] is sympy.S.EmptySet:  # x < 1, x > 3
                found = groups[0]
            return sympy.Union(*found)
        if isinstance(read, str):
            sides, signs = _chain(_MEMBER.sub("", read))
            values = [parse(side) for side in sides]
            if not signs:
                item = _item(sides[0])
                return None if isinstance(item, str) else _points(item, letters)
            letters.update(*(value.free_symbols for value in values))
            kinds = {"<": sympy.Lt, "<=": sympy.Le, ">": sympy.Gt, ">=": sympy.Ge, "!=": sympy.Ne}
            relations = [kinds[sign](*pair) for sign, *pair in zip(signs, values, values[1:], strict=False)]
            return sympy.Intersection(*(relation.as_set() for relation in relations))
        if read.brackets == "cup":
            return sympy.Union(*(_points(part, letters) for part in read.parts))
        ends = [parse(part) for part in read.parts]
        if read.brackets in ("", "{}"):
            return sympy.FiniteSet(*ends)
        return sympy.Interval(*ends, left_open=read.brackets[0] == "(", right_open=read.brackets[1] == ")")
    except (AttributeError, NotImplementedError, ValueError, TypeError):
        return None


def _same_value(reference: str, answer: str) -> bool:
    """Compares texts that are no lists."""
    if _same_text(reference, answer):
        return True
    if (same := same_number(reference, answer)) is not None:
        return same
    ours, theirs = _split(reference, _EQUALS), _split(answer, _EQUALS)
    if len(ours) > 2 or not all(ours):
        return False
    if len(ours) == 2:
        if len(theirs) == 2 and _same_equation(ours, theirs):
            return True
        if not _NAME.fullmatch(ours[0]) or (
            len(theirs) > 1 and theirs[0].replace(" ", "") != ours[0].replace(" ", "")
        ):
            return False
    if len(theirs) > 1:
        value = _last_side(theirs, answer)
        return value is not None and _same_value(ours[-1], value)
    return _same_value(ours[-1], answer) if len(ours) == 2 else same_expression(reference, answer)


def _same_equation(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    """Tells whether one equation is a multiple of the other."""
    sides = [parse(side) for side in (*ours, *theirs)]
    if not all(isinstance(side, sympy.Expr) for side in sides):
        return False
    left, right = sides[0] - sides[1], sides[2] - sides[3]
    return any(equal_values(left, sign * right) for sign in (1, -1))


def _last_side(sides: Sequence[str], answer: str) -> str | None:
    r"""Returns the value of ``x = 3 + 4 = 7``; None if two sides differ: ``x = 11 = 12`` is not 12."""
    name, *values = sides
    if len(sides) == 2 and "=" in answer and _VARIABLE.fullmatch(sides[1]) and not _VARIABLE.fullmatch(name):
        return name  # 5 = x
    if not name and not answer.startswith(r"\approx"):
        return None
    if name and not _NAME.fullmatch(name):
        values = list(sides)
    parsed = [constant(value) for value in values]
    known = [k for k, value in enumerate(parsed) if value is not None and not value.free_symbols]
    first = known[0] if known else len(values) - 1
    named = [value for value in parsed[:first] if value is None or name in map(str, value.free_symbols)]
    if named or len(values) - first > max(len(known), 1):
        return None  # x = 11 x = 12
    rough = r"\approx" in answer
    agree = [
        bool(close(parsed[k], parsed[-1], _ROUGHLY)) if rough else _same_value(values[-1], values[k])
        for k in known[:-1]
    ]
    return values[-1] if all(agree) else None
