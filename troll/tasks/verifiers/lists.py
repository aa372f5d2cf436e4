r"""Compares answers that consist of several values: alternatives, named solutions, systems.

Every value counts: ``x = 11 \text{ or } x = 12`` is not 12. Values with different names (``x=1, y=2``) are a
tuple in the order of the names; values with the same name or none are compared in any order.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

Same = Callable[[str, str], bool]
"""Tells whether (reference, answer) are equal, for answers without outer commas."""

_BRACKETS = re.compile(
    r"\\begin(?![a-zA-Z])|\\end(?![a-zA-Z])|\\[lr](?:floor|ceil|brace|brack|angle|paren)(?![a-zA-Z])|\\.|[()\[\]{}]",
    re.DOTALL,
)
_OPEN = ("(", "[", "{", r"\{", r"\begin")
_CLOSED = (")", "]", "}", r"\}", r"\end")
_TEXT = r"\\(?:text|mathrm|textrm|mbox|operatorname)\s*\{\s*[,~]*\s*(?i:%s)\s*[,~]*\s*\}"
_WORD = r"(?<![a-zA-Z\\])(?i:%s)(?![a-zA-Z])"
_OR = re.compile(rf"([\s,;]*(?:{_TEXT % 'or'}|{_WORD % 'or'}|\\(?:lor|vee)(?![a-zA-Z])|;)[\s,;]*)")
_AND = re.compile(
    rf"([\s,]*(?:{_TEXT % 'and'}|{_WORD % 'and'}|\\(?:land|wedge)(?![a-zA-Z])|\\\\|(?<!\\)&)[\s,]*|\s*,\s*)"
)
_COMMA = re.compile("(,)")
_EITHER = re.compile(_TEXT % "either|both" + r"|(?<![a-zA-Z\\])(?:either|both)(?![a-zA-Z])")
_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d]|,\d)")
_EQUALS = re.compile(r"(?<![<>!:\\=])(=)(?!=)")
_INEQUALITY = re.compile(
    r"[<>]|\\(?:le|ge|leq|geq|leqslant|geqslant|lt|gt|neq?|in|subset\w*|cup)(?![a-zA-Z])"
)
_NO_LETTERS = re.compile(
    r"\\(?:sqrt|[dtc]?frac|cdot|times|div|pm|pi|binom|sin|cos|tan|log|ln|exp|lfloor|rfloor|left|right)(?![a-zA-Z])"
)
_LETTER = re.compile(r"[a-zA-Z]|\\[a-z]+")
_VALUE_LAST = re.compile(r"[a-zA-Z](?:_(?:\w|\{\w+\}))?|\\(?!pi(?![a-zA-Z]))[a-z]+")
_INDEX = re.compile(r"_(?:\{[^{}]*\}|\w)|'+$")


class Item(NamedTuple):
    """One value of a list and its name, which is empty if it has none."""

    name: str
    value: str


def split(text: str, mark: re.Pattern[str]) -> list[str]:
    """Splits at the marks outside of brackets; returns parts and marks in turn."""
    brackets = list(_depths(text))
    start, at, depth, parts = 0, 0, 0, list[str]()
    for match in mark.finditer(text):
        while at < len(brackets) and brackets[at][0] <= match.start():
            depth = brackets[at][1]
            at += 1
        if depth == 0:
            parts += [text[start : match.start()], match[1]]
            start = match.end()
    return [*parts, text[start:]]


def _depths(text: str) -> Iterator[tuple[int, int]]:
    """Yields the end of each bracket and the number of brackets that are open from there on."""
    depth = 0
    for match in _BRACKETS.finditer(text):
        token = match[0]
        change = (token in _OPEN or token.startswith(r"\l")) - (token in _CLOSED or token.startswith(r"\r"))
        if len(token) > 2 or token in (*_OPEN, *_CLOSED):
            depth += change
            yield match.end(), depth


def _without(opened: str, closed: str, text: str) -> str | None:
    """Returns what is between two brackets that enclose the whole text; None if they do not."""
    text = text.strip()
    if not (text.startswith(opened) and text.endswith(closed)):
        return None
    encloses = all(depth > 0 for end, depth in _depths(text) if end < len(text))
    return text[len(opened) : -len(closed)] if encloses else None


def same_list(reference: str, answer: str, same: Same) -> bool | None:
    """Tells whether two respelled answers are lists of the same values.

    Returns None if `same` has to compare the whole texts: neither is a list, or one is a set or tuple.
    """
    ours, theirs = _items(reference), _items(answer)
    named, other_names = _by_name(ours), _by_name(theirs)
    if named and other_names:
        return named.keys() == other_names.keys() and all(
            same(named[name], other_names[name]) for name in named
        )
    if named or other_names:
        left = list(named.values()) if named else _in_order(ours, reference)
        right = list(other_names.values()) if other_names else _in_order(theirs, answer)
        return len(left) == len(right) and all(map(same, left, right))
    if len(ours) == len(theirs) == 1:
        return None
    if is_relational(reference) or is_relational(answer):
        return min(len(ours), len(theirs)) > 1 and _same_values(ours, theirs, same)
    if 1 in (len(ours), len(theirs)):
        single, several = (ours, theirs) if len(ours) == 1 else (theirs, ours)
        if (ordered := _by_index(several)) and (inside := _inside(single[0].value)):
            pairs = (inside, ordered) if single is ours else (ordered, inside)
            return len(inside) == len(ordered) and all(map(same, *pairs))
        is_set = single[0].value.startswith(("(", "[", r"\begin")) and not any(item.name for item in several)
        return None if is_set and not _OR.search(reference + answer) else False
    return _same_values(ours, theirs, same)


def is_relational(text: str) -> bool:
    """Tells whether a text contains an inequality or membership in a set."""
    return _INEQUALITY.search(text) is not None


def groups(text: str) -> list[list[str]]:
    """Returns the alternatives of an answer, each as a list of the parts that hold together."""
    text = _EITHER.sub(" ", text).strip()
    if _THOUSANDS.fullmatch(text):
        return [[text]]
    if ", " in text:
        text = _THOUSANDS.sub(lambda number: number[0].replace(",", ""), text)
    return [[part.strip() for part in split(group, _AND)[::2]] for group in split(text, _OR)[::2]]


def _items(text: str) -> list[Item]:
    inner = _without(r"\{", r"\}", text)
    parts = [[part for part in group if part] for group in groups(inner or text)]
    several = sum(map(len, parts)) > 1
    found = [[item for part in group for item in _item(part, several)] for group in parts if group]
    if len(found) > 1 and any(_by_name(group) for group in found):
        found = [[_tuple(group)] if _by_name(group) else group for group in found]
    items = [item for group in found for item in group]
    names = {item.name for item in items} - {""}
    if len(names) == 1 and any(not item.name for item in items):  # x = 1, 2
        items = [Item("", item.value) for item in items]
    return items or [Item("", text)]


def _item(text: str, several: bool) -> list[Item]:
    r"""Returns the value of a part, or the values of ``(x,y) = (1,2)`` or of ``x = 1 \pm 2``."""
    left, *rest = (part.strip() for part in split(text, _EQUALS))
    if not rest or not left or _INEQUALITY.search(text):
        return _both_signs("", text)
    value = text[text.index("=", text.index(left) + len(left)) + 1 :].strip()
    if len(rest) == 2 and _VALUE_LAST.fullmatch(value) and not _has_letters(left):
        left, value = value, left
    elif not _has_letters(left):
        return [Item("", text)]
    if "=" in value and re.search(rf"(?<![a-zA-Z\\]){re.escape(left)}(?![a-zA-Z])", value):
        return [Item("", text)]  # x = 11 x = 12
    names, values = _inside(left), _inside(value)
    if names and len(names) == len(values):
        items = [Item(_squeezed(name), part) for name, part in zip(names, values, strict=True)]
        return [_tuple(items)] if several and _by_name(items) else items
    return _both_signs(_squeezed(left), value)


def _tuple(items: Sequence[Item]) -> Item:
    return Item("", f"({', '.join(_by_name(items).values())})")


def _both_signs(name: str, value: str) -> list[Item]:
    if value.count(r"\pm") != 1 or "=" in value:
        return [Item(name, value)]
    before, after = (part.strip() for part in value.split(r"\pm"))
    return [Item(name, f"{before}{'+' if before else ''}{after}"), Item(name, f"{before}-{after}")]


def _has_letters(text: str) -> bool:
    return re.search(r"[a-zA-Z]", _NO_LETTERS.sub("", text)) is not None


def _squeezed(name: str) -> str:
    return re.sub(r"\\(?:text|mathrm|textrm|mbox|left|right)(?![a-zA-Z])|\\[,;: ]|[\s{}]", "", name)


def _inside(text: str) -> list[str]:
    """Returns the parts of a tuple; empty for anything else."""
    inner = _without("(", ")", text)
    parts = [part.strip() for part in split(inner, _COMMA)[::2]] if inner else []
    return parts if len(parts) > 1 else []


def _in_order(items: Sequence[Item], text: str) -> list[str]:
    """Returns the values of a tuple or list; empty if they have names or no order."""
    if any(item.name for item in items) or text.strip().startswith(r"\{"):
        return []
    return _inside(items[0].value) if len(items) == 1 else [item.value for item in items]


def _by_name(items: Sequence[Item]) -> dict[str, str]:
    """Returns values by name, letters in alphabetical order; empty unless all have different names.

    Names that differ only in their index, as those of two roots, are the same.
    """
    names = {_INDEX.sub("", item.name) for item in items}
    if len(items) < 2 or "" in names or len(names) < len(items):
        return {}
    if all(_LETTER.fullmatch(name) for name in names):
        items = sorted(items, key=lambda item: (item.name.startswith("\\"), item.name))
    return {item.name: item.value for item in items}


def _by_index(items: Sequence[Item]) -> list[str]:
    """Returns the values of ``x_1 = 1, x_2 = 2`` in the order of the indices; empty for anything else."""
    names = {item.name for item in items}
    one_letter = len({_INDEX.sub("", name) for name in names}) == 1
    if not one_letter or len(names) < len(items) or not all(map(_INDEX.search, names)):
        return []
    return [item.value for item in sorted(items, key=lambda item: (len(item.name), item.name))]


def _same_values(ours: Sequence[Item], theirs: Sequence[Item], same: Same) -> bool:
    left = list(theirs)
    if len(ours) != len(theirs):
        return False
    for item in ours:
        for other in left:
            names = {_INDEX.sub("", name) for name in (item.name, other.name) if name}
            if len(names) < 2 and same(item.value, other.value):
                left.remove(other)
                break
        else:
            return False
    return True
