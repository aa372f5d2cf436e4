"""Figures of released experiments for the site: drawn again as SVG, or the PNG files that git tracks."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from troll.analysis.data.results import Results
from troll.analysis.registry import Entry, entries
from troll.analysis.render.style import write_figure
from troll.analysis.report.make import make


class Figures:
    """Writes the figures of the site, each when a page first asks for it.

    Attributes:
        written: site path by repository path of the PNG.
    """

    def __init__(self, root: Path, pages: Path, only: Collection[str] | None = None):
        """Draws into the pages of a site.

        Args:
            only: names of the figures that are drawn; of the others the tracked PNG is copied. None: all.
        """
        self.written: dict[str, str] = {}
        self._root, self._pages, self._only = root, pages, only

    def of_experiment(self, png: str, results: Results) -> str:
        """A figure of the registry, identified by the name of its tracked PNG; returns its site path."""
        entry, task = _entry(Path(png).stem, {str(name) for name in results.runs["task"].unique()})
        if entry is None:
            return self.tracked(png)
        return self.drawn(png, entry.name, lambda: make(entry, results, task))

    def drawn(self, png: str, name: str, draw: Callable[[], Any]) -> str:
        """A figure that a function draws, in place of a tracked PNG; returns its site path."""
        if self._only is not None and name not in self._only:
            return self.tracked(png)
        stem = png.removesuffix(".png")
        write_figure(draw(), self._pages / stem, ["svg"])
        return self._note(png, f"{stem}.svg")

    def tracked(self, png: str) -> str:
        """The tracked PNG itself; returns its site path."""
        target = self._pages / png
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((self._root / png).read_bytes())
        return self._note(png, png)

    def _note(self, png: str, drawn: str) -> str:
        self.written[png] = drawn
        return drawn


def _entry(stem: str, tasks: Collection[str]) -> tuple[Entry | None, str | None]:
    """The entry of the registry that a file is of, and its task where there is one for each."""
    figures = entries("figure")
    if stem in figures and not figures[stem].per_task:
        return figures[stem], None
    name, _, task = stem.partition("_")
    entry = figures.get(name)
    return (entry, task) if entry and entry.per_task and task in tasks else (None, None)
