"""Finds the program in what a model wrote: raw completions, fenced blocks, chat answers."""

import re

# At most three spaces, as in Markdown: a deeper fence is inside a docstring, or in a list.
_FENCE = re.compile(r"^( {0,3})(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^\n]*$", re.MULTILINE)
_FENCE_IN_LIST = re.compile(r"^([ \t]*)(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^\n]*$", re.MULTILINE)
_LIST = re.compile(r"^[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+\S", re.MULTILINE)
# Comments, then perhaps a docstring, then imports from the future; possessive, so that no text takes long.
_BLANK = r"(?:\s++|\#[^\n]*+\n)*+"
_FUTURE_START = re.compile(
    rf"""{_BLANK}(?:(?P<quote>\"{{3}}|'{{3}}).*?(?P=quote){_BLANK})?+
        (?P<imports>(?:from[ ]__future__[ ]import[ ](?:\([^)]*+\)|[^\n(]++(?=\n|\Z)){_BLANK})++)""",
    re.DOTALL | re.VERBOSE,
)
_THOUGHTS = re.compile(r"^.*</think(?:ing)?>", re.DOTALL)
_PYTHON = ("", "python", "py", "python3")


def extract_code(completion: str, entry_point: str | None = None) -> str:
    """The text that belongs after the prompt.

    A completion without a fenced block is code as it is: what base models write after a prompt. From a chat
    answer, thoughts (up to ``</think>``) are dropped, and among the fenced Python blocks the last that
    defines the entry point is taken, else the last. A block that was cut off is taken to its end. Since a
    prompt ends with a complete docstring, a block that defines the function anew may follow it.

    Args:
        completion: raw text of a model.
        entry_point: name of the function that is asked for.
    """
    text = _THOUGHTS.sub("", completion, count=1) if "</think" in completion else completion
    found = _blocks(text, _FENCE)
    name = entry_point and re.compile(
        rf"^(?:async\s+)?(?:def|class)\s+{re.escape(entry_point)}\b", re.MULTILINE
    )
    if not found and name and _LIST.search(text):
        found = [block for block in _blocks(text, _FENCE_IN_LIST) if name.search(block[1])]
    if not found:
        return text
    python = [code for language, code in found if language.lower() in _PYTHON]
    blocks = python or [code for _, code in found]
    if name:
        defining = [code for code in blocks if name.search(code)]
        blocks = defining or blocks
    code = blocks[-1]
    # The body alone continues the prompt; a whole program starts on a line of its own.
    return code if code.startswith((" ", "\t")) else "\n" + code


def _blocks(text: str, pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    """Fenced blocks as (language, code); the last may lack its end."""
    blocks = []
    opening: re.Match[str] | None = None
    for fence in pattern.finditer(text):
        _, mark, language = fence.groups()
        if opening is None:
            opening = fence
        elif mark[0] == opening[2][0] and len(mark) >= len(opening[2]) and not language:
            blocks.append((opening[3], _dedent(text[opening.end() + 1 : fence.start()], opening[1])))
            opening = None
    if opening is not None:
        blocks.append((opening[3], _dedent(text[opening.end() + 1 :], opening[1])))
    return blocks


def _dedent(code: str, indent: str) -> str:
    """As in Markdown: a block's lines lose as much indentation as its fence has, or what they have of it."""
    if not indent:
        return code
    return re.sub(rf"^[ \t]{{1,{len(indent)}}}", "", code, flags=re.MULTILINE)


def whole_program(prompt: str, completion: str, entry_point: str | None = None) -> str:
    """The prompt and, after it, what `extract_code` finds in the completion.

    A program that begins with ``from __future__ import`` keeps that at its beginning, before the prompt.

    Args:
        prompt: what the completion continues.
        completion: raw text of a model.
        entry_point: name of the function that is asked for.
    """
    code = extract_code(completion, entry_point)
    if not prompt or (start := _FUTURE_START.match(code)) is None:
        return prompt + code
    future = start["imports"]
    return f"{future.rstrip()}\n{prompt}{code[: start.start('imports')]}{code[start.end() :]}"
