"""Writes the sources of the site: pages in Markdown, figures, and the generator's configuration."""

import json
import shutil
import subprocess
from collections.abc import Collection, Sequence
from importlib.resources import files
from pathlib import Path

import pandas as pd

from troll.analysis.captions import caption
from troll.analysis.data.results import PLAN, Results, read_results, read_tables
from troll.analysis.data.tidy import BASE
from troll.analysis.figures.forest import forest_figure
from troll.analysis.leaderboard.figures import budget_figure, differences_figure, profile_figure
from troll.analysis.render.html import paragraphs
from troll.analysis.site.experiment import Page, experiment_pages, parts_of
from troll.analysis.site.figures import Figures
from troll.analysis.site.links import Links, relative
from troll.analysis.site.markdown import adapt, figure, text_of
from troll.common.errors import UserError
from troll.common.files import read_json, write_text

CONFIGURATION, PAGES, HTML = "zensical.toml", "pages", "html"
_ASSETS = files(__package__) / "assets"
_SCRIPTS = ("sortable.js", "sortable.a11y.js")
_STYLE = "site.css"
# In the order of a reader's questions; further pages follow by name.
_DOCUMENTS = (
    "findings",
    "results",
    "adding",
    "algorithms",
    "configuration",
    "cluster",
    "rehearsal",
    "troubleshooting",
)
_FOREST = "results/statistics/forest.png"
_STATISTICS = {
    "comparisons": "Every comparison, once",
    "coverage": "How often intervals cover the truth",
    "looks": "Looking after every seed",
}
_BOARD = {
    "differences": "Differences from the tuned baseline",
    "budget": "What fewer trials would have found",
    "profile": "How soon each rule is there",
}
_GRADERS = {"audit": "Audit of the graders", "benchmarks": "Reference solutions and base models"}


def write_site(
    root: Path,
    out: Path,
    *,
    repository: str | None = None,
    revision: str = "main",
    address: str | None = None,
    draw: Collection[str] | None = None,
) -> list[Page]:
    """Writes ``out/zensical.toml`` and ``out/pages``, from which ``zensical build`` makes ``out/html``.

    Args:
        draw: names of the figures that are drawn again as SVG; all if None. Of others the PNG is shown.
    """
    tracked = tracked_files(root)
    pages_directory = out / PAGES
    if pages_directory.exists():
        if not (out / CONFIGURATION).exists():
            raise UserError(
                f"{pages_directory}: there already, and not written by `troll site`; name another"
            )
        shutil.rmtree(pages_directory)
    figures = Figures(root, pages_directory, draw)
    names = sorted(path.split("/")[1] for path in tracked if path.endswith(f"/{PLAN}"))
    links = Links(tracked, _shown(names, tracked), figures.written, repository, revision)
    site = _Site(root, links, figures, {name: read_results(root / "results" / name) for name in names})
    groups = [("Results", site.results()), ("Documentation", site.documents())]
    home = site.home()
    for page in (home, *(page for _, group in groups for page in group)):
        write_text(pages_directory / page.path, page.text)
    for path in sorted(links.copied):
        (pages_directory / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, pages_directory / path)
    for name in (*_SCRIPTS, _STYLE):
        write_text(pages_directory / "assets" / name, (_ASSETS / name).read_text(encoding="utf-8"))
    write_text(out / CONFIGURATION, configuration(home, groups, address))
    return [home, *(page for _, group in groups for page in group)]


def tracked_files(root: Path) -> frozenset[str]:
    """Paths of all files that git tracks and that are there."""
    command = ["git", "ls-files", "-z"]
    try:
        listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout
    except OSError as error:  # no such directory, or no git
        raise UserError(f"{root}: the files that git tracks cannot be listed ({error})") from None
    files = frozenset(path for path in listed.split("\0") if path and (root / path).is_file())
    if "README.md" not in files:
        raise UserError(f"{root}: no checkout of the repository; the site is made of files that git tracks")
    return files


def _shown(names: Sequence[str], tracked: frozenset[str]) -> dict[str, str]:
    """Where files of the repository are shown: site path by repository path."""
    shown = {"README.md": "index.md", ".": "index.md", "docs": "index.md", "CHANGELOG.md": "changes.md"}
    shown |= {path: path for path in tracked if path.startswith("docs/") and path.endswith(".md")}
    shown["results"] = "results/index.md"
    for name in names:
        shown |= parts_of(name, tracked)
    for group, parts in (("statistics", _STATISTICS), ("graders", _GRADERS)):
        page = f"results/{group}/index.md"
        present = {f"results/{group}/{name}.md": f"{page}#{name}" for name in parts} if parts else {}
        present = {path: target for path, target in present.items() if path in tracked}
        shown |= {f"results/{group}": page, **present} if present else {}
    if "results/leaderboard/board.csv" in tracked:
        page = "results/leaderboard/index.md"
        shown |= {"results/leaderboard": page, "results/leaderboard/board.md": page}
    return shown


class _Site:
    def __init__(self, root: Path, links: Links, figures: Figures, known: dict[str, Results]):
        self._root, self._links, self._figures, self._known = root, links, figures, known

    def _read(self, path: str) -> str:
        return (self._root / path).read_text(encoding="utf-8")

    def _document(self, source: str, path: str, title: str = "") -> Page:
        text = self._read(source)
        first = next((line for line in text.splitlines() if line.startswith("# ")), f"# {Path(source).stem}")
        return Page(
            path, title or text_of(first.removeprefix("# ")), adapt(text, self._links.of(path, source))
        )

    def home(self) -> Page:
        return self._document("README.md", "index.md", "Home")

    def documents(self) -> list[Page]:
        documents = [path for path in self._links.pages if path.startswith("docs/")]
        order = {f"docs/{name}.md": index for index, name in enumerate(_DOCUMENTS)}
        pages = [
            self._document(path, path)
            for path in sorted(documents, key=lambda path: (order.get(path, len(order)), path))
        ]
        changes = [self._document("CHANGELOG.md", "changes.md")] if self._has("CHANGELOG.md") else []
        return pages + changes

    def _has(self, path: str) -> bool:
        return path in self._links.tracked

    def results(self) -> list[Page]:
        pages: list[Page] = []
        if self._has("results/leaderboard/board.csv"):
            pages.append(self._leaderboard())
        if self._has("results/statistics/comparisons.md"):
            pages.append(self._statistics())
        for name, results in self._known.items():
            own, verdicts = experiment_pages(name, self._root, results, self._figures, self._links)
            pages += [own] if verdicts is None else [own, verdicts]
        if self._has("results/graders/audit.md"):
            pages.append(self._graders())
        return [self._overview(pages), *pages]

    def _overview(self, pages: Sequence[Page]) -> Page:
        path = "results/index.md"
        lines = [
            "# Released results",
            "",
            "Tables, figures and verdicts of experiments whose tidy tables are in the repository. Every",
            "table sorts by the column that is clicked, and every row has a link of its own.",
            "",
            "| Experiment | Runs | Tasks | Conditions | Seeds | Verdicts |",
            "| --- | ---: | --- | --- | ---: | --- |",
        ]
        for name, results in self._known.items():
            runs = results.runs[results.runs["trust_region"] != BASE]
            cells = (
                f"[{name}]({name})",
                str(runs["run_id"].nunique()),
                ", ".join(sorted(map(str, runs["task"].unique()))),
                ", ".join(sorted(map(str, runs["condition"].unique()))),
                str(runs["seed"].nunique()),
                self._counts(name),
            )
            lines.append(f"| {' | '.join(cells)} |")
        named = {page.path: page.title for page in pages}
        for other in ("leaderboard", "statistics", "graders"):
            if (target := f"results/{other}/index.md") in named:
                lines += ["", f"- [{named[target]}]({other})"]
        # Links of the table are those of a file that would lie in results/.
        text = adapt("\n".join(lines), self._links.of(path, "results/README.md"), name="experiment")
        return Page(path, "Overview", text)

    def _counts(self, name: str) -> str:
        """How many claims got which verdict, those not run left out."""
        if not self._has(f"results/{name}/claims.json"):
            return "–"
        verdicts = [
            entry["verdict"] for entry in read_json(self._root / f"results/{name}/claims.json")["claims"]
        ]
        counts = {word: verdicts.count(word) for word in dict.fromkeys(verdicts) if word != "not run"}
        return ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or "none yet"

    def _statistics(self) -> Page:
        path = "results/statistics/index.md"
        text = ["# Statistics of all released experiments", ""]
        if self._has(_FOREST):
            # The benchmark, with claims of its own, is a family of its own.
            family = [name for name, results in self._known.items() if not results.claims]
            tables = read_tables([self._root / "results" / name for name in family])
            drawn = self._figures.drawn(_FOREST, "forest", lambda: forest_figure(*tables))
            shown = paragraphs(caption("forest_figure"))
            text += [figure(relative(path, drawn), "Differences from PPO-clip", shown), ""]
        return Page(path, "Statistics", "\n".join(text) + self._parts(path, "statistics", _STATISTICS))

    def _graders(self) -> Page:
        path = "results/graders/index.md"
        text = "# Can the graders be trusted?\n\n" + self._parts(path, "graders", _GRADERS)
        return Page(path, "Graders", text)

    def _parts(self, path: str, group: str, parts: dict[str, str]) -> str:
        """Tables of a directory, each under a heading of its own; its own headings go down a level."""
        text = ""
        for name, title in parts.items():
            source = f"results/{group}/{name}.md"
            if self._has(source):
                lines = self._read(source).splitlines()
                below = "\n".join(f"#{line}" if line.startswith("#") else line for line in lines)
                adapted = adapt(below, self._links.of(path, source), name="" if "\n## " in below else name)
                text += f"\n## {title} {{#{name}}}\n\n{adapted}"
        return text

    def _leaderboard(self) -> Page:
        path, home = "results/leaderboard/index.md", "results/leaderboard"
        board = pd.read_csv(self._root / home / "board.csv")
        link = self._links.of(path, "README.md")
        text = "# Leaderboard\n\nEvery rule with the same number of trials, then compared on fresh seeds.\n"
        if self._has("docs/leaderboard.md"):
            text += f"[How it is made, and what its columns mean]({link('docs/leaderboard.md')})\n"
        if self._has(f"{home}/board.md"):
            text += adapt(
                self._read(f"{home}/board.md"), self._links.of(path, f"{home}/board.md"), name="board"
            )
        drawn = {
            "differences": lambda: differences_figure(board),
            "budget": lambda: budget_figure(pd.read_csv(self._root / home / "trials.csv"), board),
            "profile": lambda: profile_figure(board),
        }
        for name, draw in drawn.items():
            if self._has(f"{home}/{name}.png"):
                found = self._figures.drawn(f"{home}/{name}.png", name, draw)
                text += f"\n## {_BOARD[name]} {{#{name}}}\n\n"
                text += figure(relative(path, found), _BOARD[name], "") + "\n"
        text += self._parts(path, "leaderboard", {"levels": "Success by level of difficulty"})
        data = [name for name in ("board.csv", "levels.csv", "trials.csv") if self._has(f"{home}/{name}")]
        text += "\n" + ", ".join(f"[{name}]({link(f'{home}/{name}')})" for name in data) + "\n"
        return Page(path, "Leaderboard", text)


def configuration(home: Page, groups: Sequence[tuple[str, Sequence[Page]]], address: str | None) -> str:
    """The generator's configuration: no font, script or style is asked for from elsewhere."""

    def entry(page: Page) -> str:
        return f"{{ {json.dumps(page.title)} = {json.dumps(page.path)} }}"

    navigation = [entry(home)]
    for title, pages in groups:
        below = ",\n    ".join(map(entry, pages))
        navigation.append(f"{{ {json.dumps(title)} = [\n    {below},\n  ] }}")
    scripts = ", ".join(f'"assets/{name}"' for name in _SCRIPTS)
    url = f"site_url = {json.dumps(address)}\n" if address else ""
    return _TEMPLATE.format(
        url=url, navigation=",\n  ".join(navigation), scripts=scripts, style=_STYLE, pages=PAGES, html=HTML
    )


_TEMPLATE = """# Written by `troll site`.
[project]
site_name = "TROLL, reproduced"
site_description = "Trust regions for reinforcement learning of language models: results and documentation"
{url}docs_dir = "{pages}"
site_dir = "{html}"
use_directory_urls = false
extra_css = ["assets/{style}"]
extra_javascript = [{scripts}]
nav = [
  {navigation},
]

[project.theme]
language = "en"
font = false
features = [
  "content.code.copy", "navigation.footer", "navigation.indexes", "navigation.sections", "navigation.top",
  "search.highlight", "toc.follow",
]

[[project.theme.palette]]
media = "(prefers-color-scheme)"
toggle.icon = "lucide/sun-moon"
toggle.name = "Switch to light mode"

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "Switch to dark mode"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "Follow the system"

[project.markdown_extensions]
attr_list = {{}}
tables = {{}}
toc.permalink = true
pymdownx.highlight.pygments_lang_class = true
pymdownx.inlinehilite = {{}}
pymdownx.superfences = {{}}
"""
