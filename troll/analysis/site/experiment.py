"""The pages of a released experiment: verdicts, figures, tables, provenance; the numbers of each claim."""

import html
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from troll.analysis.captions import caption, captions
from troll.analysis.data.results import Results
from troll.analysis.registry import Entry, Kind, entries, stems
from troll.analysis.render.formats import to_markdown
from troll.analysis.render.html import paragraphs
from troll.analysis.report.make import table
from troll.analysis.report.overview import PAGE
from troll.analysis.report.page import provenance, size
from troll.analysis.site.figures import Figures
from troll.analysis.site.links import Links, relative
from troll.analysis.site.markdown import Anchors, adapt, figure, slug

_IN_CODE = re.compile(r"\(`([\w.-]+)`\) \|")
_CLAIM = re.compile(r"^\*\*([\w.-]+)\*\* (\(.*\))$", re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """A page of the site.

    Attributes:
        path: below the site's pages, ``results/testbed/index.md``.
        title: in the navigation.
        text: Markdown as the generator reads it.
    """

    path: str
    title: str
    text: str


def parts_of(name: str, tracked: frozenset[str]) -> dict[str, str]:
    """Where the files of an experiment are shown: site path by repository path."""
    home, page = f"results/{name}", f"results/{name}/index.md"
    shown = {home: page, f"{home}/claims.md": f"{home}/verdicts.md"}
    shown[f"{home}/{PAGE}"] = page
    for path in tracked:
        if path.startswith(f"{home}/tables/") and path.endswith(".csv"):
            shown[path.removesuffix(".csv") + ".md"] = f"{page}#{Path(path).stem}"
    for directory in _other_directories(name, tracked):
        shown[f"{home}/{directory}"] = f"{page}#{slug(directory)}"
    return shown


def experiment_pages(
    name: str, root: Path, results: Results, figures: Figures, links: Links
) -> tuple[Page, Page | None]:
    """The page of an experiment, and the page of the numbers behind its verdicts if it has any."""
    writer = _Writer(name, root, figures, links)
    return writer.page(results), writer.verdicts()


class _Writer:
    def __init__(self, name: str, root: Path, figures: Figures, links: Links):
        self.name, self.home = name, f"results/{name}"
        self.path = f"{self.home}/index.md"
        self._root, self._figures, self._links = root, figures, links
        self._anchors = Anchors()

    def page(self, results: Results) -> Page:
        chapters = [
            ("Verdicts", self._ledger()),
            ("Figures", self._drawn(results)),
            ("Tables", self._tables(results)),
            *self._others(),
            ("Methods", [paragraphs(caption("methods"))]),
            ("Deviations", [paragraphs(caption("deviations"))]),
            ("Provenance", [provenance(results.runs, ()).body]),
        ]
        text = [f"# Trust regions on {self.name}", f"<p>{size(results)}</p>"]
        for title, parts in chapters:
            heading = self._heading(2, title)
            if body := [part for part in parts if part]:
                text += [heading, *body]
        return Page(self.path, self.name, "\n\n".join(text) + "\n")

    def verdicts(self) -> Page | None:
        """The ledger's numbers: a heading for each claim in place of its name in bold."""
        ledger = f"{self.home}/claims.md"
        if ledger not in self._links.tracked:
            return None
        path = f"{self.home}/verdicts.md"
        below = [line for line in self._read(ledger).splitlines() if not line.startswith("|")]
        text = _CLAIM.sub(r"## \1\n\n\2", "\n".join(below))
        head = f"# {self.name}: every claim with its numbers\n\n"
        body = adapt(head + text, self._links.of(path, ledger), name="claim")
        return Page(path, f"{self.name}: claims", body)

    def _heading(self, level: int, title: str, name: str = "") -> str:
        return f"{'#' * level} {title} {{#{self._anchors.take(name or slug(title))}}}"

    def _read(self, path: str) -> str:
        return (self._root / path).read_text(encoding="utf-8")

    def _adapted(self, text: str, source: str, name: str) -> str:
        return adapt(text, self._links.of(self.path, source), name=name, anchors=self._anchors).strip()

    def _ledger(self) -> list[str]:
        """Claims with a verdict; those not run folded away; the numbers are on a page of their own."""
        ledger = f"{self.home}/claims.md"
        if ledger not in self._links.tracked:
            return []
        text = self._read(ledger)
        ids = {match[1] for match in _CLAIM.finditer(text)}
        lines = _IN_CODE.sub(lambda match: _linked(match, ids), text).splitlines()
        count = next((line for line in lines if line and not line.startswith("|")), "")
        head, rule, *rows = [line for line in lines if line.startswith("|")] or ["", ""]
        absent = [row for row in rows if "| **not run** |" in row]
        judged = [row for row in rows if row not in absent]
        parts = [count]
        if judged:
            parts.append(self._adapted("\n".join([head, rule, *judged]), ledger, "verdict"))
        numbers = relative(self.path, f"{self.home}/verdicts.md")
        parts.append(f"[The numbers behind each verdict, and when each claim was asked]({numbers})")
        if absent:
            table = self._adapted("\n".join([head, rule, *absent]), ledger, "verdict")
            parts.append(_folded(f"{len(absent)} claims about runs that are not here", table))
        return parts

    def _drawn(self, results: Results) -> Iterator[str]:
        tasks = sorted({str(name) for name in results.runs["task"].unique()})
        for entry in entries("figure").values():
            for stem in stems([entry], tasks):
                png = f"{self.home}/figures/{stem}.png"
                if png in self._links.tracked:
                    task = stem.removeprefix(f"{entry.name}_") if entry.per_task else ""
                    title = f"{entry.title}: {task}" if task else entry.title
                    drawn = self._figures.of_experiment(png, results)
                    yield self._heading(3, title, f"figure-{slug(stem)}")
                    yield figure(relative(self.path, drawn), title, _caption(entry))

    def _tables(self, results: Results) -> Iterator[str]:
        for name, entry in entries("table").items():
            source = f"{self.home}/tables/{name}.md"
            if source.removesuffix(".md") + ".csv" in self._links.tracked:
                yield self._heading(3, entry.title, name)
                yield self._adapted(to_markdown(table(name, results)), source, name)
                yield _folded("How to read this", _caption(entry)) + self._file(source)

    def _file(self, source: str) -> str:
        """A link to the numbers of a table."""
        numbers = source.removesuffix(".md") + ".csv"
        link = self._links.of(self.path, "README.md")(numbers) if numbers in self._links.tracked else None
        return f'\n<p class="file"><a href="{link}">{Path(numbers).name}</a></p>' if link else ""

    def _others(self) -> Iterator[tuple[str, list[str]]]:
        """Tables that other commands wrote, by directory, each with the figure beside it."""
        for directory in _other_directories(self.name, self._links.tracked):
            parts: list[str] = []
            for source in _markdown_below(f"{self.home}/{directory}", self._links.tracked):
                path = PurePosixPath(source)
                own = path.relative_to(self.home).with_suffix("").parts
                # approximation/task/chains/approximation is told by what lies between.
                title = " ".join(own[1:-1]) or path.stem.replace("_", " ")
                name = slug("-".join(own))
                parts.append(self._heading(3, title[:1].upper() + title[1:], name))
                parts.append(self._adapted(self._read(source), source, name))
                parts.append(self._beside(path) + self._file(source))
            yield directory[:1].upper() + directory[1:], parts

    def _beside(self, path: PurePosixPath) -> str:
        """The figure of the same name and the captions, where there are any."""
        kinds: tuple[Kind, ...] = ("figure", "table")
        shown = {kind: paragraphs(captions().get(f"{path.stem}_{kind}", "")) for kind in kinds}
        folded = _folded("How to read this", shown["table"]) if shown["table"] else ""
        png = str(path.with_suffix(".png"))
        if png not in self._links.tracked:
            return folded
        address = relative(self.path, self._figures.tracked(png))
        return folded + figure(address, path.stem, shown["figure"])


def _linked(match: re.Match[str], ids: Collection[str]) -> str:
    """The id of a claim, with a link to its numbers where there are any."""
    name = match[1]
    return f"([`{name}`](claims.md#{name})) |" if name in ids else match[0]


def _other_directories(name: str, tracked: frozenset[str]) -> list[str]:
    """Directories of an experiment, but for tables and figures, that hold Markdown."""
    home = f"results/{name}/"
    below = {path.removeprefix(home).split("/")[0] for path in _markdown_below(home, tracked)}
    return sorted(part for part in below if part not in ("tables", "figures") and not part.endswith(".md"))


def _markdown_below(directory: str, tracked: frozenset[str]) -> Sequence[str]:
    home = directory.rstrip("/") + "/"
    return sorted(path for path in tracked if path.startswith(home) and path.endswith(".md"))


def _caption(entry: Entry) -> str:
    return paragraphs(caption(entry.caption))


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{html.escape(title)}</summary>\n{body}\n</details>"
