"""Markdown reports as self-contained HTML pages, with sortable tables and embedded images."""

import base64
import html
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from troll.common.errors import UserError
from troll.common.files import write_text

_LONG = 50  # characters of a cell from which on its lines are broken
_ASSETS = files(__package__) / "assets"
_NUMBER = re.compile(r"[<>≤≥]?\s*([+\N{MINUS SIGN}-]?\d[\d,]*(?:\.\d+)?(?:e[+\N{MINUS SIGN}-]?\d+)?)")


def write_page(path: Path, markdown: str, images: Path) -> None:
    """Writes a report as one HTML file.

    Links to the sections follow the opening, which ends at the first heading of the second level. HTML tags
    inside a paragraph or table are shown as text.

    Args:
        path: the file.
        markdown: the report, whose first heading is the title.
        images: the directory to which the paths of its images are relative; PNG files are embedded.

    Raises:
        UserError: an image does not exist.
    """
    parser = MarkdownIt("commonmark", {"xhtmlOut": False}).enable("table").disable("html_inline")
    parser.add_render_rule("table_open", lambda *_: '<div class="scroll">\n<table class="sortable">\n')
    parser.add_render_rule("table_close", lambda *_: "</table>\n</div>\n")
    tokens = parser.parse(markdown)
    title = next(tokens[i + 1].content for i, token in enumerate(tokens) if token.tag == "h1")
    for i, token in enumerate(tokens):
        if token.type in ("th_open", "td_open"):
            numeric = token.attrs.pop("style", None) == "text-align:right"
            content = tokens[i + 1].content
            token.attrSet("class", "number" if numeric else "text" if len(content) < _LONG else "long text")
            if numeric and token.type == "td_open":
                token.attrSet("data-sort", sort_key(content))
        for child in token.children or ():
            if child.type == "image":
                child.attrSet("src", _embedded(images / str(child.attrs["src"])))
    body = parser.renderer.render(_with_links(tokens), parser.options, {})
    write_text(
        path,
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{_asset('page.css')}</style>\n</head>\n<body>\n"
        f"{body}<script>\n{_asset('sort.js')}</script>\n</body>\n</html>\n",
    )


def _with_links(tokens: Sequence[Token]) -> list[Token]:
    """Returns the tokens with ids of headings, and links to sections and to the parts of each."""
    chapters: list[tuple[int, str, list[str]]] = []
    for i, token in enumerate(tokens):
        if token.type == "heading_open" and token.tag in ("h2", "h3"):
            if token.tag == "h2" or not chapters:
                chapters.append((i, tokens[i + 1].content, []))
                token.attrSet("id", f"part-{len(chapters)}")
            else:
                parts = chapters[-1][2]
                parts.append(tokens[i + 1].content)
                token.attrSet("id", f"part-{len(chapters)}-{len(parts)}")
    result = list(tokens)
    for number, (i, _, parts) in reversed([*enumerate(chapters, start=1)]):
        result[i + 3 : i + 3] = _links(f"part-{number}-", parts)
    first = chapters[0][0] if chapters else len(result)
    result[first:first] = _links("part-", [heading for _, heading, _ in chapters])
    return result


def _links(prefix: str, headings: Sequence[str]) -> list[Token]:
    named = enumerate(headings, start=1)
    links = "\n".join(f'<a href="#{prefix}{number}">{html.escape(text)}</a>' for number, text in named)
    return [Token("html_block", "", 0, content=f"<nav>{links}</nav>\n")] if len(headings) > 1 else []


def _embedded(image: Path) -> str:
    try:
        return "data:image/png;base64," + base64.b64encode(image.read_bytes()).decode()
    except FileNotFoundError:
        raise UserError(f"{image}: no such file") from None


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def sort_key(text: str) -> str:
    """Returns the sort key of a numeric cell: the number at its beginning, or empty."""
    match = _NUMBER.match(text)
    return match[1].replace("\N{MINUS SIGN}", "-").replace(",", "") if match else ""
