"""Finds the program in what a model wrote: raw completions, fenced blocks, chat answers."""

import re

# At most three spaces, as in Markdown: a deeper fence is inside a docstring.
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^\n]*$", re.MULTILINE)
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
    found = _blocks(text)
    if not found:
        return text
    python = [code for language, code in found if language.lower() in _PYTHON]
    blocks = python or [code for _, code in found]
    if entry_point:
        name = re.compile(rf"^(?:async\s+)?(?:def|class)\s+{re.escape(entry_point)}\b", re.MULTILINE)
        defining = [code for code in blocks if name.search(code)]
        blocks = defining or blocks
    code = blocks[-1]
    # The body alone continues the prompt; a whole program starts on a line of its own.
    return code if code.startswith((" ", "\t")) else "\n" + code


def _blocks(text: str) -> list[tuple[str, str]]:
    """Fenced blocks as (language, code); the last may lack its end."""
    blocks = []
    opening: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        mark, language = fence.groups()
        if opening is None:
            opening = fence
        elif mark[0] == opening[1][0] and len(mark) >= len(opening[1]) and not language:
            blocks.append((opening[2], text[opening.end() + 1 : fence.start()]))
            opening = None
    if opening is not None:
        blocks.append((opening[2], text[opening.end() + 1 :]))
    return blocks
