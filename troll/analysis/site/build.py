"""Sources of the web site: adapted Markdown from git, and the generator's configuration.

Pages are README.md, CHANGELOG.md, docs/ and the pages of results/ with their figures;
`troll.analysis.site.markdown` adapts them.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path, PurePosixPath

from troll.analysis.render.html import asset
from troll.analysis.report.questions import OTHERS, QUESTIONS
from troll.analysis.site.links import Links
from troll.analysis.site.markdown import adapt, text_of
from troll.common.errors import UserError
from troll.common.files import write_text

CONFIGURATION, PAGES, HTML = "zensical.toml", "pages", "html"
_ASSETS = files(__package__) / "assets"
_SCRIPT, _STYLE = "sort.js", "site.css"
# In reading order; further pages follow by name.
_DOCUMENTS = (
    "findings",
    "leaderboard",
    "results",
    "trainer",
    "adding",
    "algorithms",
    "configuration",
    "cluster",
    "rehearsal",
    "troubleshooting",
)
_PICTURES = {
    "forest": "Differences from PPO-clip",
    "contrasts": "Differences of the duel",
    "differences": "Differences from the tuned baseline",
    "budget": "What fewer trials would have found",
    "profile": "How soon each rule is there",
}
"""Titles, by file name, of figures that are shown with the tables in their directory."""
_TABLES = {
    "approximation": "How exact the projection of few tokens is",
    "board": "The board",
    "claims": "Verdicts",
    "cost": "Time and memory of the passes",
    "cost_step": "Time of an optimiser step",
    "coverage": "How often intervals hold the truth",
    "difficulty": "What the base models leave to learn",
    "levels": "Success by level of difficulty",
    "looks": "Errors of a decision after every seed",
    "trials": "Trials of the tuning",
}
"""Headings, by file name, of tables without one."""
_WIDE = ("index.md", "results/index.md")
"""Pages with wide tables, which hide the table of contents."""


@dataclass(frozen=True)
class Page:
    """A page of the site."""

    path: str  # relative to the site's pages, such as ``results/testbed/index.md``
    title: str
    text: str  # Markdown for the generator


def write_site(
    root: Path,
    out: Path,
    *,
    repository: str | None = None,
    revision: str = "main",
    address: str | None = None,
) -> list[Page]:
    """Writes ``out/zensical.toml`` and ``out/pages``, from which ``zensical build`` generates ``out/html``.

    Args:
        root: a checkout of the repository.
        out: directory of the sources.
        repository: web address of the repository, for links to files that are not part of the site.
        revision: branch, tag or commit of these links.
        address: URL of the site.
    """
    tracked = tracked_files(root)
    directory = out / PAGES
    if directory.exists():
        if not (out / CONFIGURATION).exists():
            raise UserError(
                f"{directory}: exists and was not written by `troll release site`; choose another directory"
            )
        shutil.rmtree(directory)
    sources = {path: _target(path) for path in sorted(tracked) if _is_page(path)}
    shown = dict(sources)
    for path, target in sources.items():  # links to a directory lead to its page
        if PurePosixPath(path).name == "README.md":
            shown[str(PurePosixPath(path).parent)] = target
    for name, other in OTHERS.items():
        if (first := f"results/{name}/{other.file}") in sources:
            shown.setdefault(f"results/{name}", sources[first])
    shown["docs"] = "index.md"
    links = Links(tracked, shown, repository, revision)
    pages = {path: _page(root, path, target, links) for path, target in sources.items()}
    for page in pages.values():
        write_text(directory / page.path, page.text)
    for path in sorted(links.copied):
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, directory / path)
    write_text(directory / "assets" / _SCRIPT, asset(_SCRIPT))
    write_text(directory / "assets" / _STYLE, (_ASSETS / _STYLE).read_text(encoding="utf-8"))
    write_text(out / CONFIGURATION, configuration(pages, address))
    return [*pages.values()]


def tracked_files(root: Path) -> frozenset[str]:
    """Paths of all existing files that git tracks."""
    command = ["git", "ls-files", "-z"]
    try:
        listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout
    except OSError as error:  # no such directory, or no git
        raise UserError(f"{root}: the files that git tracks cannot be listed ({error})") from None
    files = frozenset(path for path in listed.split("\0") if path and (root / path).is_file())
    if "README.md" not in files:
        raise UserError(f"{root}: not a checkout of the repository; the site is built from tracked files")
    return files


def _is_page(path: str) -> bool:
    return path in ("README.md", "CHANGELOG.md") or (
        path.startswith(("docs/", "results/")) and path.endswith(".md")
    )


def _target(path: str) -> str:
    """The site path of a file in the repository; a README.md becomes the index of its directory."""
    if path == "CHANGELOG.md":
        return "changes.md"
    name = PurePosixPath(path)
    return str(name.with_name("index.md") if name.name == "README.md" else name)


def _page(root: Path, source: str, target: str, links: Links) -> Page:
    """A page of the site; tables without a heading get one, and the figures in their directory."""
    text = (root / source).read_text(encoding="utf-8")
    heading = next((line for line in text.splitlines() if line.startswith("# ")), "")
    path = PurePosixPath(source)
    rows = path.stem if not re.search("^#", text, re.MULTILINE) else ""  # prefix of the rows' anchors
    other = OTHERS.get(path.parts[1]) if path.parts[0] == "results" and len(path.parts) == 3 else None
    if other and path.name != other.file:
        other = None  # the directory's main page is another file
    if other and not heading:
        heading = f"# {other.question}"
        answer = other.answer(root / path.parent)
        opening = [heading, f"{answer}."] if answer else [heading]
        text = "\n\n".join([*opening, *_pictures(path, links.tracked), text])
    elif not heading:
        heading = f"# {_TABLES.get(path.stem) or path.stem.replace('_', ' ').capitalize()}"
        text = "\n\n".join([heading, *_asked(path, links.tracked), text])
    if other:
        beside = [f"- [{name.name}]({name.name})" for name in _beside(path, links.tracked)]
        text += "\n".join(["", "## Further tables and data", "", *beside, ""]) if beside else ""
    title = other.question if other else text_of(heading.removeprefix("# "))
    adapted = adapt(text, links.of(target, source), name=rows)
    without_toc = target in _WIDE or len(re.findall("^## ", text, re.MULTILINE)) < 2
    return Page(target, title, f"---\nhide: [toc]\n---\n\n{adapted}" if without_toc else adapted)


def _asked(path: PurePosixPath, tracked: frozenset[str]) -> Iterator[str]:
    """The question to which a table's directory belongs, as a link to its page."""
    name = path.parts[1]
    if name in QUESTIONS:
        question, first = QUESTIONS[name].text, "README.md"
    elif name in OTHERS:
        question, first = OTHERS[name].question, OTHERS[name].file
    else:
        return
    if f"results/{name}/{first}" in tracked:
        yield f"[{question}]({'../' * (len(path.parts) - 3)}{first})"


def _pictures(path: PurePosixPath, tracked: frozenset[str]) -> Iterator[str]:
    for name, title in _PICTURES.items():
        if str(path.with_name(f"{name}.png")) in tracked:
            yield f"## {title}\n\n![{title}]({name}.png)"
    yield "## Table"


def _beside(path: PurePosixPath, tracked: frozenset[str]) -> list[PurePosixPath]:
    """The other tables and data files of the directory."""
    names = (PurePosixPath(name) for name in tracked if name.endswith((".md", ".csv")))
    return sorted(name for name in names if name.parent == path.parent and name != path)


def configuration(pages: dict[str, Page], address: str | None) -> str:
    """The generator's configuration, without external fonts, scripts or styles."""

    def listed(paths: Sequence[str]) -> str:
        chosen = [pages[path] for path in paths if path in pages]
        return ",\n    ".join(
            f"{{ {json.dumps(title)} = {json.dumps(page.path)} }}"
            for page in chosen
            for title in ["All results" if page.path == "results/index.md" else page.title]
        )

    experiments = [f"results/{name}/README.md" for name in QUESTIONS]
    others = [f"results/{name}/{other.file}" for name, other in OTHERS.items()]
    answered = ["results/README.md", *experiments, *others]
    rest = sorted(path for path in pages if path.endswith("/README.md") and path not in answered)
    documents = [f"docs/{name}.md" for name in _DOCUMENTS]
    documents += sorted(path for path in pages if path.startswith("docs/") and path not in documents)
    groups = {"Questions": [*answered, *rest], "Documentation": [*documents, "CHANGELOG.md"]}
    navigation = ['{ "Home" = "index.md" }']
    for title, paths in groups.items():
        if below := listed(paths):
            navigation.append(f"{{ {json.dumps(title)} = [\n    {below},\n  ] }}")
    return _TEMPLATE.format(
        url=f"site_url = {json.dumps(address)}\n" if address else "",
        navigation=",\n  ".join(navigation),
        script=_SCRIPT,
        style=_STYLE,
        pages=PAGES,
        html=HTML,
    )


_TEMPLATE = """# Written by `troll release site`.
[project]
site_name = "TROLL, reproduced"
site_description = "Trust regions for reinforcement learning of language models: results and documentation"
{url}docs_dir = "{pages}"
site_dir = "{html}"
use_directory_urls = false
extra_css = ["assets/{style}"]
extra_javascript = ["assets/{script}"]
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
