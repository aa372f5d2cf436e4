"""Adaptation of the repository's Markdown for the site: anchors, links and sortable tables.

Pages are written for GitHub. Headings get the anchors that GitHub assigns, links between files become links
between pages, and tables become HTML with an anchor per row and columns that sort by value. The generator
handles everything else.
"""

import html
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from troll.analysis.render.html import cells_of, sort_key

Resolve = Callable[[str], str | None]
"""Maps the target of a link in the source to its target on the site; None if it has none."""

_FENCE = re.compile(r"^ {0,3}(```+|~~~+)")
_HEADING = re.compile(r"^(#{1,6}) +(.+?)(?: +\{#[\w.-]+\})? *$")
_RULE = re.compile(r"^\|[ :|-]+\|$")
_ITEM = re.compile(r"^ *(?:[-*+]|\d+[.)]) ")
_FIRST = re.compile(r"^ *(?:[-*+]|1[.)]) ")
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|!?\[[^\]]*\]\([^)]*\))*)\]\(([^()\s]+)\)")
_CODE = re.compile(r"(`+)(.+?)\1")
_NAMED = re.compile(r"\(\[?`([^`]+)`(?:\]\([^)]*\))?\)$")
_IMAGE = re.compile(r"!\[([^\[\]]*)\]\((?!https?:)([^()\s]+)\)")
_ATTRIBUTE = re.compile(r"\b(src|href)=\"([^\"]+)\"")
_VERDICTS = {
    "supported everywhere": "good",
    "supported on average": "good",
    "depends on": "mixed",
    "the contrary holds": "bad",
    "not shown": "bad",
    "inconclusive": "open",
    "not run": "open",
}
_LONGEST = 80
_WIDE, _SHORT, _SPAN = 60, 24, 32
"""Limits of a column's longest cell in characters: text columns above `_WIDE` are kept wide, up to `_SHORT`
never wrapped; number columns above `_SPAN` also contain words and are wrapped."""


def anchor(text: str) -> str:
    """The anchor that GitHub assigns to a heading."""
    plain = re.sub(r"[^\w\- ]", "", text_of(text).lower())
    return plain.replace(" ", "-")


def slug(text: str) -> str:
    """A text as part of an anchor: lower-case letters, digits, dots, plus signs, underscores and hyphens."""
    return re.sub(r"[^\w.+]+", "-", text_of(text).lower()).strip("-")[:_LONGEST]


def text_of(markdown: str) -> str:
    """Markdown without its markup."""
    return re.sub(r"[`*]", "", _LINK.sub(r"\2", markdown))


@dataclass
class Anchors:
    """Unique anchors of a page: repeated names get a number, as on GitHub."""

    taken: set[str] = field(default_factory=set)

    def take(self, name: str) -> str:
        """Reserves an anchor: the name, with the first free number if it is taken."""
        base, number = name or "part", 0
        anchor = base
        while anchor in self.taken:
            number += 1
            anchor = f"{base}-{number}"
        self.taken.add(anchor)
        return anchor


def inline(text: str, resolve: Resolve) -> str:
    """A line of Markdown as HTML: code, strong, emphasis and links; raw HTML is shown as text."""
    kept: list[str] = []

    def keep(element: str) -> str:
        kept.append(element)
        return f"\0{len(kept) - 1}\0"

    def link(match: re.Match[str]) -> str:
        image, shown, target = match.groups()
        address = resolve(target)
        if image:
            return keep(f'<img alt="{html.escape(shown)}" src="{html.escape(address or target)}">')
        return keep(f'<a href="{html.escape(address)}">') + shown + keep("</a>") if address else shown

    text = _CODE.sub(lambda match: keep(f"<code>{html.escape(match[2].strip())}</code>"), text)
    text = html.escape(_LINK.sub(link, text), quote=False)
    text = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", text)
    text = re.sub(r"(?<![\w*])\*([^*\s](?:[^*]*[^*\s])?)\*(?![\w*])", r"<em>\1</em>", text)
    while "\0" in text:
        text = re.sub(r"\0(\d+)\0", lambda match: kept[int(match[1])], text)
    return text


def table(lines: Sequence[str], name: str, anchors: Anchors, resolve: Resolve) -> str:
    """A pipe table as HTML in a scrollable box."""
    head, rule, *rows = map(cells_of, lines)
    numeric = [mark.endswith(":") for mark in rule]
    leading = next((index for index, number in enumerate(numeric) if number), len(numeric))
    columns = zip(*rows, strict=True) if rows else [()] * len(head)
    longest = [max((len(text_of(cell)) for cell in column), default=0) for column in columns]
    kinds = [f' class="{_kind(number, letters)}"' for number, letters in zip(numeric, longest, strict=True)]
    titles = "".join(
        f'<th scope="col"{kind}>{inline(cell, resolve)}</th>' for kind, cell in zip(kinds, head, strict=True)
    )
    body = []
    for row in rows:
        named = _NAMED.search(row[0])
        parts = [named[1]] if named else [cell for cell in row[: max(1, leading)] if cell]
        anchor = anchors.take(slug("-".join([name, *parts])))
        mark = f'<a class="row" href="#{anchor}" aria-label="link to this row">#</a>'
        shown = "".join(
            _cell(cell, kind, number, resolve, mark if index == 0 else "")
            for index, (cell, kind, number) in enumerate(zip(row, kinds, numeric, strict=True))
        )
        body.append(f'<tr id="{anchor}">{shown}</tr>')
    rows_html = "\n".join(body)
    return (
        '<div class="table"><table class="sortable">\n'
        f"<thead><tr>{titles}</tr></thead>\n<tbody>\n{rows_html}\n</tbody>\n</table></div>"
    )


def _kind(number: bool, letters: int) -> str:
    if number:
        return "number long" if letters > _SPAN else "number"
    return "wide" if letters > _WIDE else "short" if letters <= _SHORT else "text"


def _cell(cell: str, kind: str, number: bool, resolve: Resolve, mark: str) -> str:
    key = sort_key(text_of(cell)) if number else text_of(cell)
    attribute = f' data-sort="{html.escape(key)}"' if number or mark else ""
    return f"<td{kind}{attribute}>{_verdict(cell) or inline(cell, resolve)}{mark}</td>"


def _verdict(cell: str) -> str | None:
    """A badge for a cell that is only a verdict; otherwise None."""
    match = re.fullmatch(r"\*\*(.+)\*\*", cell)
    kind = next((kind for text, kind in _VERDICTS.items() if match and match[1].startswith(text)), None)
    return f'<span class="verdict {kind}">{html.escape(match[1])}</span>' if match and kind else None


def figure(address: str, title: str, text: str = "") -> str:
    """A figure as HTML, linked to its image file, with an optional HTML caption."""
    shown = html.escape(title, quote=True)
    image = f'<img src="{address}" alt="{shown}" loading="lazy">'
    picture = f'<div class="picture"><a href="{address}" title="{shown}, by itself">{image}</a></div>'
    below = f"<figcaption>\n{text}\n</figcaption>\n" if text else ""
    return f"<figure>\n{picture}\n{below}</figure>"


def adapt(text: str, resolve: Resolve, *, name: str = "", anchors: Anchors | None = None) -> str:
    """Adapts a page for the generator; row anchors begin with ``name``, or with the preceding heading."""
    anchors = anchors or Anchors()
    return "\n".join(_adapted(text.splitlines(), resolve, name, anchors)) + "\n"


def _adapted(lines: Sequence[str], resolve: Resolve, name: str, anchors: Anchors) -> Iterator[str]:
    fence, section, index = "", "", 0
    plain: list[str] = []  # lines of one paragraph, as a link may span lines

    def flush() -> Iterator[str]:
        if plain:
            yield _links("\n".join(plain), resolve)
            plain.clear()

    while index < len(lines):
        line = lines[index]
        index += 1
        if match := _FENCE.match(line):
            yield from flush()
            fence = "" if fence and line.strip().startswith(fence) else fence or match[1]
            yield line
        elif fence:
            yield line
        elif match := _HEADING.match(line):
            yield from flush()
            section = anchors.take(anchor(match[2]))
            yield f"{match[1]} {_links(match[2], resolve)} {{#{section}}}"
        elif line.startswith("|") and index < len(lines) and _RULE.match(lines[index]):
            yield from flush()
            start = index - 1
            while index < len(lines) and lines[index].startswith("|"):
                index += 1
            yield from ("", table(lines[start:index], name or section or "row", anchors, resolve), "")
        elif not line.strip():
            yield from flush()
            yield line
        else:
            if plain and _begins_list(line, plain[-1]):
                yield from flush()
                yield ""
            plain.append(line)
    yield from flush()


def _begins_list(line: str, before: str) -> bool:
    """Whether a list begins directly below a paragraph, which GitHub allows; numbers must begin with 1."""
    return _FIRST.match(line) is not None and not _ITEM.match(before) and not before.startswith(" ")


def _links(text: str, resolve: Resolve) -> str:
    """A paragraph with resolved links; links without a target are replaced by their text."""

    def resolved(match: re.Match[str]) -> str:
        image, shown, target = match.groups()
        address = resolve(target)
        if image:
            return f"![{shown}]({address or target})"
        return f"[{_LINK.sub(resolved, shown)}]({address})" if address else shown

    if match := _IMAGE.fullmatch(text.strip()):
        return figure(resolve(match[2]) or match[2], match[1])
    if text.lstrip().startswith("<"):
        return _ATTRIBUTE.sub(lambda match: f'{match[1]}="{resolve(match[2]) or match[2]}"', text)
    parts = re.split(r"(`+[^`]+`+)", text)
    if len(parts) == 1:
        return _LINK.sub(resolved, text)
    kept = [part for part in parts if part.startswith("`")]
    marked = "".join(f"\0{kept.index(part)}\0" if part.startswith("`") else part for part in parts)
    return re.sub(r"\0(\d+)\0", lambda match: kept[int(match[1])], _LINK.sub(resolved, marked))
