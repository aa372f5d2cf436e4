"""One HTML page that opens offline: sentences, tables, figures and captions, images inside the file."""

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from troll.common.errors import UserError
from troll.common.files import write_text

_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; color: #1c1c1c; }
body { margin: 0 auto; max-width: 80rem; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .4rem; }
h2 { border-bottom: 1px solid #1c1c1c; } h3 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
p, ul, dl { max-width: 52rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .8rem; font-variant-numeric: tabular-nums; }
thead th { border-top: 2px solid #1c1c1c; border-bottom: 1px solid #1c1c1c; vertical-align: bottom; }
th, td { padding: .22rem .45rem; text-align: left; white-space: nowrap; overflow-wrap: normal; }
thead th { white-space: normal; }
th.number, td.number { text-align: right; }
tbody tr:last-child td { border-bottom: 2px solid #1c1c1c; }
tbody tr:nth-child(even) { background: #f6f6f6; }
img { max-width: 100%; height: auto; }
figure { margin: 0; }
.note, figcaption { color: #4a4a4a; font-size: .85rem; max-width: 52rem; }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: .9rem; }
a { color: #0b4f8a; }
details { margin: .4rem 0; } summary { cursor: pointer; color: #0b4f8a; }
.verdict { border-radius: .3rem; border: 1px solid; padding: .05rem .5rem; font-weight: 600; }
.verdict { white-space: nowrap; display: inline-block; }
.supported-everywhere, .supported-on-average { color: #0b4f8a; background: #e3eef8; }
.depends { color: #5b4300; background: #f6edd2; }
.the-contrary-holds, .not-shown { color: #8f3a00; background: #fdeadb; }
.inconclusive { color: #4a4a4a; background: #f0f0f0; } .not-run { color: #6b6b6b; background: #fff; }
.tiles { display: flex; flex-wrap: wrap; gap: .4rem; }
table.ledger { font-size: .95rem; } .ledger td { white-space: normal; vertical-align: top; padding: .4rem; }
.ledger ul, .ledger p { margin: .2rem 0; font-size: .85rem; } .ledger tr:nth-child(even) { background: none; }
.ledger td { border-top: 1px solid #d8d8d8; }
.ledger tbody tr:last-child td { border-bottom: 1px solid #d8d8d8; }
dt { font-weight: 600; margin-top: .5rem; } dd { margin-left: 1rem; font-size: .85rem; }
@media (max-width: 40rem) {
  .ledger td { display: block; border: 0; padding: .1rem 0; } .ledger tr { display: block; padding: .5rem 0; }
  .ledger tr { border-top: 1px solid #d8d8d8; } .ledger tbody tr:last-child td { border: 0; }
  body { padding: .7rem; } th, td { padding: .15rem .3rem; } table { font-size: .72rem; }
  table.ledger { font-size: .9rem; }
  .figure { overflow-x: auto; } .figure img { max-width: none; width: 46rem; }
}
@page { size: A4 landscape; margin: 12mm; }
@media print {
  body { max-width: none; font-size: 11px; padding: 0; } nav { display: none; }
  table { font-size: 7.5px; } th, td { padding: .1rem .25rem; white-space: normal; }
  table.ledger { font-size: 11px; } .scroll { overflow: visible; }
  tr, figure, .tiles { break-inside: avoid; } h2, h3 { break-after: avoid; } figure img { max-height: 165mm; }
}
"""


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        title: heading.
        body: HTML.
    """

    title: str
    body: str


def figure_section(title: str, image: Path, caption: str = "") -> Section:
    """A PNG, put into the page, with its caption."""
    try:
        data = base64.b64encode(image.read_bytes()).decode()
    except FileNotFoundError:
        raise UserError(f"{image}: no such file") from None
    picture = f'<img alt="{html.escape(title, quote=True)}" src="data:image/png;base64,{data}">'
    picture = f'<div class="figure">{picture}</div>'
    return Section(title, f"<figure>{picture}<figcaption>{paragraphs(caption)}</figcaption></figure>\n")


def bullets(markdown: Sequence[str]) -> str:
    """Sentences of ``readme.sentences`` as a list."""
    points = "".join(f"<li>{_inline(line.removeprefix('- '))}</li>\n" for line in markdown)
    return f"<ul>\n{points}</ul>\n"


def paragraphs(text: str) -> str:
    """Plain text as HTML paragraphs; ``code`` and **strong** are understood."""
    parts = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip()) if part.strip()]
    return "".join(f"<p>{_inline(part)}</p>\n" for part in parts)


def _inline(text: str) -> str:
    escaped = html.escape(text, quote=False)
    escaped = re.sub(r"``?([^`]+)``?", r"<code>\1</code>", escaped)
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", escaped)


def page(title: str, sections: Sequence[Section]) -> str:
    """A complete HTML document without links to anything outside it."""
    names = [f"part-{index}" for index, _ in enumerate(sections, start=1)]
    links = "".join(
        f'<a href="#{name}">{html.escape(section.title)}</a>'
        for name, section in zip(names, sections, strict=True)
    )
    body = "".join(
        f'<section id="{name}">\n<h2>{html.escape(section.title)}</h2>\n{section.body}</section>\n'
        for name, section in zip(names, sections, strict=True)
    )
    navigation = f"<nav>{links}</nav>\n" if len(sections) > 1 else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{html.escape(title)}</h1>\n{navigation}{body}</body>\n</html>\n"
    )


def write_page(path: Path, title: str, sections: Sequence[Section]) -> None:
    """Writes ``page``, atomically."""
    write_text(path, page(title, sections))
