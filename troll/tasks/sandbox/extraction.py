"""Finds the program in a completion: a raw continuation, fenced blocks or a chat answer.

Completions are hostile input, and a parser is a large attack surface: this runs inside the sandbox, in the
process that runs the program afterwards, within its limits. Standard library only.
"""

import __future__

import ast
import re
import textwrap
from collections.abc import Iterator
from types import CodeType
from typing import Any

# At most three spaces before it, as in Markdown: a deeper fence is inside a docstring or a list.
_FENCE = re.compile(r"^( {0,3})(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^\n]*$", re.MULTILINE)
_FENCE_IN_LIST = re.compile(r"^([ \t]*)(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^\n]*$", re.MULTILINE)
_LIST = re.compile(r"^[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+\S", re.MULTILINE)
# Comments, perhaps a docstring, then imports from ``__future__``; possessive, so that no text takes long.
_BLANK = r"(?:\s++|\#[^\n]*+\n)*+"
_FUTURE_START = re.compile(
    rf"""{_BLANK}(?:(?P<quote>\"{{3}}|'{{3}}).*?(?P=quote){_BLANK})?+
        (?P<imports>(?:from[ ]__future__[ ]import[ ](?:\([^)]*+\)|[^\n(]++(?=\n|\Z)){_BLANK})++)""",
    re.DOTALL | re.VERBOSE,
)
_THOUGHTS = re.compile(r"^.*</think(?:ing)?>", re.DOTALL)
_PYTHON = ("", "python", "py", "python3")
# End markers that engines may leave in a text.
_END = re.compile(r"<[|｜][^|｜\s<>]{1,40}[|｜]>|</s>|<end_of_turn>|<eos>")
_ANSWER = re.compile(r"^[ \t]+(?:return|yield)\b", re.MULTILINE)
# Where Python may start again after prose.
_START = re.compile(r"(?:async\s+def|def|class|import|from)\s|@\w|[A-Za-z_]\w*\s*=[^=]")
_TRIES = 200
_FUTURE_FLAGS = 0
for _feature in __future__.all_feature_names:
    _FUTURE_FLAGS |= getattr(__future__, _feature).compiler_flag


def extract_code(completion: str, entry_point: str | None = None) -> str:
    """Returns the text that belongs after the prompt.

    A completion without a fenced block is code as it is, as base models write it. It is cut before it defines
    the function again, for example because it repeats the prompt. From a chat answer, thoughts (up to
    ``</think>``) are dropped, and the last fenced Python block that defines the entry point is taken, else
    the last one. A block without a closing fence extends to the end of the text. A block may define the
    function anew: the prompt before it ends with a complete docstring.
    """
    text, name = _without_thoughts(completion), _definition(entry_point) if entry_point else None
    fenced = _fenced(text, name)
    return _first_answer(text, name) if fenced is None else fenced


def _fenced(text: str, name: re.Pattern[str] | None) -> str | None:
    """Returns the fenced block that `extract_code` takes; None if there is none."""
    fenced = _blocks(text, _FENCE)
    if not fenced and name and _LIST.search(text):
        fenced = [block for block in _blocks(text, _FENCE_IN_LIST) if name.search(block[1])]
    if not fenced:
        return None
    python = [code for language, code in fenced if language.lower() in _PYTHON]
    blocks = python or [code for _, code in fenced]
    if name:
        blocks = [code for code in blocks if name.search(code)] or blocks
    # A body alone continues the prompt; a whole program starts on a line of its own.
    return blocks[-1] if blocks[-1].startswith((" ", "\t")) else "\n" + blocks[-1]


def own_definition(completion: str, entry_point: str) -> str | None:
    """Returns the fenced block, or the text, that defines the function; None if it continues the prompt."""
    text, name = _without_thoughts(completion), _definition(entry_point)
    block = _fenced(text, name)
    if block is not None and name.search(block):
        return block
    continues = text.lstrip("\r\n").startswith((" ", "\t"))
    return text if block is None and not continues and name.search(text) else None


def whole_program(prompt: str, completion: str, entry_point: str | None = None) -> str:
    """Returns the prompt followed by the program in the completion.

    The program is the text of `extract_code`, if that is Python and defines the function. Otherwise other
    readings are tried: the text before a fence, a body with another indentation, and the statements without
    the prose or cut-off statement before or after them. If none works, it is the text of `extract_code`.
    Imports from ``__future__`` at the start of the program are moved before the prompt.
    """
    return _find(prompt, completion, entry_point)[0]


def load(
    prompt: str | None,
    completion: str,
    entry_point: str | None,
    namespace: dict[str, Any],
    *,
    as_written: bool = False,
) -> None:
    """Runs the module made of a prompt and a completion, or of the completion alone if ``prompt`` is None.

    If a statement fails, such as a test that the model wrote, the imports and definitions after it are still
    run, and its exception is raised only if the function is missing then or there is no entry point (a
    script). With ``as_written``, the fenced block, or the completion if there is none, is run without
    searching further, and every exception is raised.
    """
    if prompt is None or as_written:
        source = completion
        if prompt is not None:
            text = _without_thoughts(completion)
            fenced = _fenced(text, _definition(entry_point) if entry_point else None)
            source = _joined(prompt, text if fenced is None else fenced)
        exec(_compiled(source), namespace)
        return
    source, code = _find(prompt, completion, entry_point)
    code = code or _compiled(source)
    try:
        exec(code, namespace)
    except MemoryError:
        raise
    except BaseException as error:
        if entry_point is None:
            raise
        _define_the_rest(source, code, error, namespace, entry_point)
        if not _is_there(namespace, entry_point):
            raise


def _find(prompt: str, completion: str, name: str | None) -> tuple[str, CodeType | None]:
    first = extract_code(completion, name)
    source = _joined(prompt, first)
    code = _parsed(source)
    if _defines(code, name):
        return source, code
    # A text that parses as statements after the prompt is not a body that lost its indentation.
    readings = [first, *_other_readings(prompt, _without_thoughts(completion), first, name, code is None)]
    sources = [_joined(prompt, text) for text in readings[1:]]
    tries = [_TRIES]
    for other in (*sources, *(_statements(prompt, text, tries) for text in readings)):
        if other.strip() != prompt.strip() and _defines(found := _parsed(other), name):
            return other, found
    return source, code


def _compiled(source: str) -> CodeType:
    code: CodeType = compile(source, "<candidate>", "exec", dont_inherit=True)
    return code


_STUB = _compiled("def f():\n    pass\n").co_consts[0].co_code[::2]


def _parsed(source: str) -> CodeType | None:
    """Returns the program's code; None if it is not Python."""
    try:
        return _compiled(source)
    except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError):
        return None


def _defines(code: CodeType | None, name: str | None) -> bool:
    """Tells whether a program seems to define the function, with a body."""
    if code is None or name is None:
        return code is not None
    inner = [part for part in code.co_consts if isinstance(part, CodeType) and part.co_name == name]
    return not _is_stub(inner[-1]) if inner else name in code.co_names


def _is_stub(code: CodeType) -> bool:
    """Tells whether a function only returns a constant, as one with nothing but a docstring does."""
    return code.co_code[::2] == _STUB


def _other_readings(prompt: str, text: str, code: str, name: str | None, indented: bool) -> Iterator[str]:
    """Yields further readings of a completion, likelier ones first; ``indented`` adds other indentations."""
    definition = _definition(name) if name else None
    fence = _FENCE.search(text)
    before = text[: fence.start()] if fence else ""
    bodies = [part for part in (before, code) if part.strip()]
    if before.strip():
        # A continuation of a fence that the prompt opened, or one followed by an explanation with an example.
        yield _first_answer(before, definition)
    for part in bodies:
        if (end := _END.search(part)) is not None:
            yield part[: end.start()]
    if indented and definition is not None and definition.search(prompt):
        indent = _indent_of(prompt)
        for body in (part.lstrip("\r\n") for part in bodies if not definition.search(part)):
            yield indent + body.lstrip(" \t")  # only the first line lost its indentation
            yield textwrap.indent(textwrap.dedent(body), indent)


def _indent_of(prompt: str) -> str:
    lines = [line for line in prompt.split("\n") if line.strip()]
    last = lines[-1] if lines else ""
    return last[: len(last) - len(last.lstrip(" \t"))] or "    "


def _statements(prompt: str, text: str, tries: list[int]) -> str:
    """Returns the prompt and the statements of a text that Python can parse, without prose between them."""
    lines = text.split("\n")
    count = _readable(prompt, lines, tries)
    source = prompt
    if not count and _parsed(prompt) is None:  # its last function has no body yet
        start = prompt.split("\n")
        source = "\n".join([*start[: _readable("", start, tries)], ""])
        count = _readable(source, lines, tries)
    while True:
        source += "".join(f"{line}\n" for line in lines[:count])
        position = max(count, 1)
        while position < len(lines) and not _START.match(lines[position]):
            position += 1
        if position >= len(lines) or tries[0] <= 0:
            return source
        lines = lines[position:]
        source += "" if source.endswith("\n") else "\n"
        count = _readable(source, lines, tries)


def _readable(before: str, lines: list[str], tries: list[int]) -> int:
    """Returns how many of the first lines are Python when they follow the text ``before``."""
    offset, count = before.count("\n"), len(lines)
    while count > 0 and tries[0] > 0:
        tries[0] -= 1
        try:
            _compiled(before + "\n".join([*lines[:count], ""]))
        except SyntaxError as error:
            # The fault begins at this line or earlier; the next round finds out where.
            count = min(max((error.lineno or 0) - offset, 1), count) - 1
        except (ValueError, MemoryError, RecursionError, OverflowError):
            return 0
        else:
            return count
    return 0


def _define_the_rest(
    source: str, code: CodeType, error: BaseException, namespace: dict[str, Any], name: str
) -> None:
    """Runs the imports and definitions after a failed statement, but keeps a function that exists already."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code is not code:
        trace = trace.tb_next
    if trace is None:
        return
    failed, there = trace.tb_lineno, _is_there(namespace, name)
    try:
        statements = ast.parse(source).body
    except RecursionError:
        return
    for node in statements:
        if node.lineno <= failed:
            continue
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if there and node.name == name:
                continue
        elif not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        flags = code.co_flags & _FUTURE_FLAGS
        try:
            exec(compile(ast.Module([node], []), "<candidate>", "exec", flags, dont_inherit=True), namespace)
        except MemoryError:
            raise
        except BaseException:  # further failures do not matter either
            continue


def _is_there(namespace: dict[str, Any], name: str) -> bool:
    code = getattr(namespace.get(name), "__code__", None)
    return name in namespace and not (isinstance(code, CodeType) and _is_stub(code))


def _without_thoughts(text: str) -> str:
    return _THOUGHTS.sub("", text, count=1) if "</think" in text else text


def _definition(name: str) -> re.Pattern[str]:
    return re.compile(rf"^(?:async\s+)?(?:def|class)\s+{re.escape(name)}\b", re.MULTILINE)


def _first_answer(text: str, definition: re.Pattern[str] | None) -> str:
    """Cuts a continuation before it defines the function again, as base models often do."""
    if definition is None or not text.lstrip("\r\n").startswith((" ", "\t")):
        return text
    answer = _ANSWER.search(text)
    again = definition.search(text, answer.end()) if answer else None
    return text[: again.start()] if again else text


def _joined(prompt: str, code: str) -> str:
    if not prompt or (start := _FUTURE_START.match(code)) is None:
        return prompt + code
    future = start["imports"]
    return f"{future.rstrip()}\n{prompt}{code[: start.start('imports')]}{code[start.end() :]}"


def _blocks(text: str, pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    """Returns fenced blocks as (language, code); the last may lack its closing fence."""
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
    """Removes up to as much indentation from each line as the fence has, as in Markdown."""
    if not indent:
        return code
    return re.sub(rf"^[ \t]{{1,{len(indent)}}}", "", code, flags=re.MULTILINE)
