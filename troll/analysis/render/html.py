"""Self-contained HTML pages: text, tables, figures with embedded images, and captions."""

import base64
import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from troll.common.errors import UserError
from troll.common.files import write_text

_ASSETS = files(__package__) / "assets"
_NUMBER = re.compile(r"[<>≤≥]?\s*([+\N{MINUS SIGN}-]?\d[\d,]*(?:\.\d+)?(?:e[+\N{MINUS SIGN}-]?\d+)?)")


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    title: str
    body: str  # HTML


def figure_section(title: str, image: Path, caption: str = "") -> Section:
    """A section with an embedded PNG and its caption."""
    try:
        data = base64.b64encode(image.read_bytes()).decode()
    except FileNotFoundError:
        raise UserError(f"{image}: no such file") from None
    picture = f'<img alt="{html.escape(title, quote=True)}" src="data:image/png;base64,{data}">'
    below = f"<figcaption>{paragraphs(caption)}</figcaption>"
    return Section(title, f'<figure><div class="figure">{picture}</div>{below}</figure>\n')


def asset(name: str) -> str:
    """The text of a style sheet or script: ``page.css`` or ``sort.js``."""
    return (_ASSETS / name).read_text(encoding="utf-8")


def sort_key(text: str) -> str:
    """The sort key of a numeric cell: the number at its beginning, or empty."""
    match = _NUMBER.match(text)
    return match[1].replace("\N{MINUS SIGN}", "-").replace(",", "") if match else ""


def sortable(head: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> str:
    """A table in a scrollable box, sortable by ``sort.js``; cells are HTML."""
    kinds = ["number" if right else "text" for right in numeric]
    titles = "".join(
        f'<th scope="col" class="{kind}">{cell}</th>' for kind, cell in zip(kinds, head, strict=True)
    )
    lines = []
    for row in rows:
        cells = [
            f'<td class="{kind}"{_key(cell) if right else ""}>{cell}</td>'
            for kind, right, cell in zip(kinds, numeric, row, strict=True)
        ]
        lines.append(f"<tr>{''.join(cells)}</tr>\n")
    return (
        '<div class="scroll">\n<table class="sortable">\n'
        f"<thead><tr>{titles}</tr></thead>\n<tbody>\n{''.join(lines)}</tbody>\n</table>\n</div>\n"
    )


def _key(cell: str) -> str:
    """The ``data-sort`` attribute of a numeric cell."""
    return f' data-sort="{sort_key(html.unescape(cell))}"'


def cells_of(line: str) -> list[str]:
    """The cells of a row of a Markdown pipe table."""
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def bullets(markdown: Sequence[str]) -> str:
    """The Markdown list of ``readme.sentences`` as an HTML list."""
    points = "".join(f"<li>{_inline(line.removeprefix('- '))}</li>\n" for line in markdown)
    return f"<ul>\n{points}</ul>\n"


def paragraphs(text: str) -> str:
    """Plain text as HTML paragraphs, with support for ``code`` and **strong**."""
    parts = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip()) if part.strip()]
    return "".join(f"<p>{_inline(part)}</p>\n" for part in parts)


def _inline(text: str) -> str:
    escaped = html.escape(text, quote=False)
    escaped = re.sub(r"``?([^`]+)``?", r"<code>\1</code>", escaped)
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", escaped)


def joined(sections: Iterable[Section], prefix: str, heading: str, after: str = "") -> str:
    """Sections with their headings, preceded by links (each followed by ``after``) if there are several."""
    named = [(f"{prefix}-{index}", section) for index, section in enumerate(sections, start=1)]
    links = "".join(f'<a href="#{name}">{html.escape(part.title)}</a>{after}' for name, part in named)
    body = "".join(
        f'<section id="{name}">\n<{heading}>{html.escape(part.title)}</{heading}>\n{part.body}</section>\n'
        for name, part in named
    )
    return (f"<nav>{links}</nav>\n" if len(named) > 1 else "") + body


def folded(summary: str, body: str, *, opened: bool = False) -> str:
    """HTML below a summary, folded unless ``opened``."""
    return f"<details{' open' * opened}><summary>{summary}</summary>\n{body}</details>\n"


def write_page(path: Path, title: str, sections: Sequence[Section], opening: str = "") -> None:
    """Writes a self-contained HTML document; ``opening`` is HTML before the links to the sections."""
    write_text(
        path,
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{asset('page.css')}</style>\n</head>\n<body>\n"
        f"<h1>{html.escape(title)}</h1>\n{opening}{joined(sections, 'part', 'h2')}"
        f"<script>\n{asset('sort.js')}</script>\n</body>\n</html>\n",
    )
