r"""The lenient reward of mathematics: the strict one, or the strict one without marks around the value.

It stands for the reward released with the paper for DAPO-Math (repository NiklasFreymuth/troll,
``verl/verl/utils/reward_score/entropy_math`` at d31aaab2), read there and written anew. That scorer reads the
last ``\boxed{}`` and accepts an answer if one of two normal forms equals that of the reference, or if sympy
simplifies the difference to 0, except that an integer is only accepted for an integer. Its normal forms drop
units and other listed words, currency and percent signs, degrees, ``\text{}``, brackets, and a name of at
most two characters before an equals sign. ``workflow/graders/lenient_answers.csv`` compares the two.
"""

import re

_SPACES = re.compile(r"\\[!,;: ]|~|\s+")
_STYLE = re.compile(r"\\(?:left|right|displaystyle)(?![a-zA-Z])")
_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox|boxed)\s*\{([^{}]*)\}")
_UNIT = re.compile(r"(?<=[\d)}])\s*\\(?:text|textrm|mathrm|mbox)\s*\{[^{}]*\}(?:\^\{?\d\}?)?\.?$")
_SIGNS = re.compile(r"\\?%|\\?\$|\^\s*(?:\\circ|\{\s*\\circ\s*\})|°|\\degree(?![a-zA-Z])")
_NAME = re.compile(r"^[^=]{1,2}=(?=[^=]+$)")
_WORDS = re.compile(r"(?<=[\d)}])\s+[a-zA-Z]+(?:\s+[a-zA-Z]+)*(?:\s*\^\s*\{?\d\}?)?\.?$")
# Words that change a number, which is not the value without them.
_CHANGES = re.compile(
    r"(?i)\b(?:or|and|to|hundreds?|thousands?|millions?|billions?|trillions?|dozens?|factorial|squared|cubed|pi)\b"
)
_BRACKETS = ("()", "[]", "{}")


def plain_value(text: str) -> str:
    r"""Returns an answer without marks around its value: units, signs, styles, brackets and a name.

    Takes ``x = 12\%``, ``\text{12 cm}`` or ``[12]`` to ``12``; ``12 or 13`` and ``3 million`` stay.
    """
    text = _UNIT.sub("", _STYLE.sub("", text).strip())
    text = _SIGNS.sub("", _WRAPPED.sub(r"\1", text)).strip()
    words = _WORDS.search(text)
    if words is not None and _CHANGES.search(words[0]) is None:
        text = text[: words.start()]
    text = _NAME.sub("", _SPACES.sub(" ", text).strip()).strip()
    while len(text) > 2 and text[0] + text[-1] in _BRACKETS and not re.search(r"[()\[\]{},]", text[1:-1]):
        text = text[1:-1].strip()
    return text.rstrip(".")
