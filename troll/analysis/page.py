"""The report of an experiment as one page: verdicts, tables, figures, methods, provenance and cost."""

import html
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pandas as pd

from troll.analysis import ledger, readme
from troll.analysis.artefacts import FIGURES, TABLES, TASK_FIGURES, Evidence, table
from troll.analysis.audit_table import audit_sections, title_of
from troll.analysis.claims import Judged
from troll.analysis.formats import to_html
from troll.analysis.provenance import DIGESTS
from troll.analysis.report import Section, bullets, caption, figure_section, paragraphs, write_page
from troll.analysis.runs import BASE, PROVENANCE
from troll.analysis.summaries import planned_seeds, require_one
from troll.files import read_json

CAPTIONS = Path(__file__).parents[2] / "workflow" / "report"
_FIRST_TABLES = ("comparison", "main", "speed", "stability", "test", "certificate", "ablation", "power")
_FIRST_FIGURES = ("main", "final", "hours", "sensitivity", "ablation")
_PUBLISHED = "published_"
_TITLES = {
    "main": "Success over training",
    "final": "Success after training",
    "hours": "Success over time",
    "sensitivity": "How much settings matter",
    "ablation": "Learning curves of variants",
    "learning": "Learning",
    "projection": "What the trust regions did",
}


def make_page(
    evidence: Evidence,
    judged: Sequence[Judged],
    artefacts: Path,
    out: Path,
    *,
    commands: Sequence[str] = (),
    captions: Path = CAPTIONS,
) -> None:
    """Writes the report of one experiment.

    Tables are made from the evidence; figures are those under ``artefacts/figures`` that exist. The tables
    under ``artefacts/cost`` and ``artefacts/public`` (Markdown, as other commands write them), and the audit
    under ``artefacts/audit``, are shown if there are any.

    Args:
        evidence: the tidy tables, and what was planned.
        judged: the verdicts.
        artefacts: results/<experiment>.
        out: the page.
        commands: shell lines that made the results.
        captions: directory of the captions.

    Raises:
        UserError: a caption is missing, or the tables hold more than one experiment.
    """
    require_one(evidence.runs)
    name = str(evidence.runs["experiment"].iloc[0])
    sections = [
        _verdicts(evidence, judged),
        _chapter("Tables", _tables(evidence, captions)),
        _chapter("Figures", _figures(evidence, artefacts / "figures", captions)),
        _chapter("Cost", _written(artefacts / "cost")),
        _chapter("Public data", _public_data(artefacts, captions)),
        _published(evidence, artefacts / "figures", captions),
        Section("Methods", paragraphs(caption(captions / "methods.rst"))),
        Section("Deviations", paragraphs(caption(captions / "deviations.rst"))),
        _provenance(evidence.runs, commands),
    ]
    sections = [section for section in sections if section.body]
    write_page(out, f"Trust regions on {name}", sections)


def _chapter(title: str, parts: Iterable[Section]) -> Section:
    """Sections as parts of one, with links to them at its head when there are several."""
    prefix = title.lower().replace(" ", "-")
    named = [(f"{prefix}-{index}", part) for index, part in enumerate(parts, start=1)]
    links = "".join(f'<a href="#{name}">{html.escape(part.title)}</a>\n' for name, part in named)
    body = "".join(
        f'<section id="{name}">\n<h3>{html.escape(part.title)}</h3>\n{part.body}</section>\n'
        for name, part in named
    )
    return Section(title, (f"<nav>{links}</nav>\n" if len(named) > 1 else "") + body)


def _verdicts(evidence: Evidence, judged: Sequence[Judged]) -> Section:
    lines = readme.sentences(evidence.main(), evidence.items)
    return Section("Verdicts", f"{ledger.to_html(judged)}{bullets(lines)}<p>{_size(evidence)}</p>\n")


def _size(evidence: Evidence) -> str:
    runs = evidence.runs[evidence.runs["trust_region"] != BASE]
    found = runs["run_id"].nunique()
    planned = sum(planned_seeds(evidence.expected).values()) if evidence.expected else found
    seconds = float(runs.loc[runs["metric"] == "wall_s", "value"].sum())
    text = f"{found} of {planned} planned runs" if planned != found else f"{found} runs"
    return (
        f"{text}: {_list(runs, 'task')}; {_list(runs, 'condition')}; {_list(runs, 'estimator')}; "
        f"{_list(runs, 'trust_region')}; seeds {_list(runs, 'seed')}. "
        f"{seconds / 3600:.1f} hours of training in all."
    )


def _list(runs: pd.DataFrame, name: str) -> str:
    return html.escape(", ".join(map(str, sorted(set(runs[name].dropna())))))


def _tables(evidence: Evidence, captions: Path) -> Iterator[Section]:
    for name in _FIRST_TABLES:
        title, frame = table(name, evidence)
        if len(frame):
            yield Section(title, to_html(frame) + _folded(captions / f"{name}_table.rst"))


def _folded(path: Path) -> str:
    return f"<details><summary>How to read this</summary>\n{paragraphs(caption(path))}</details>\n"


def _figures(evidence: Evidence, directory: Path, captions: Path) -> Iterator[Section]:
    tasks = sorted({str(name) for name in evidence.runs["task"]})
    named = [
        (name, name, _TITLES.get(name, name))
        for name in (*_FIRST_FIGURES, *sorted(set(FIGURES) - set(_FIRST_FIGURES)))
    ]
    named += [
        (name, f"{name}_{task}", f"{_TITLES.get(name, name)}: {task}")
        for task in tasks
        for name in TASK_FIGURES
    ]
    for name, stem, title in named:
        image = directory / f"{stem}.png"
        if image.exists():
            yield figure_section(title, image, caption(captions / f"{name}_figure.rst"))


def _public_data(artefacts: Path, captions: Path) -> Iterator[Section]:
    """Benchmarks and the graders' audit, where the experiment made them."""
    for part in _written(artefacts / "public"):
        yield Section(part.title, part.body + _folded(captions / f"{part.title.lower()}_table.rst"))
    audit = artefacts / "audit/audit.json"
    if audit.exists():
        result = read_json(audit)
        yield Section(title_of(result), _folded(captions / "audit_table.rst"))
        yield from audit_sections(result)


def _written(directory: Path) -> Iterator[Section]:
    """Tables that other commands have written as Markdown."""
    for path in sorted(directory.glob("*.md")):
        title = path.stem.replace("_", " ")
        yield Section(title[:1].upper() + title[1:], markdown_table(path.read_text(encoding="utf-8")))


def markdown_table(text: str) -> str:
    """A pipe table and the paragraphs around it, as HTML; for tables that other commands have written."""
    rows, rest = [], []
    for line in text.splitlines():
        if line.startswith("|"):
            rows.append([cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        else:
            rest.append(line)
    if len(rows) < 2:
        return paragraphs(text)
    kinds = ["number" if cell.endswith(":") else "text" for cell in rows[1]]
    lines = []
    for index, row in enumerate([rows[0], *rows[2:]]):
        tag = "td" if index else "th"
        cells = (f'<{tag} class="{k}">{html.escape(c)}</{tag}>' for k, c in zip(kinds, row, strict=True))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    table = f"<table>\n<thead>{lines[0]}</thead>\n<tbody>\n" + "\n".join(lines[1:]) + "\n</tbody>\n</table>"
    notes = paragraphs("\n".join(rest)).replace("<p>", '<p class="note">')
    return f'<div class="scroll">\n{table}\n</div>\n{notes}'


def _published(evidence: Evidence, figures: Path, captions: Path) -> Section:
    """The paper's tables and figures: folded away where this experiment has none of the runs."""
    parts = []
    for name in (name for name in TABLES if name.startswith(_PUBLISHED)):
        title, frame = table(name, evidence)
        ran = int((frame["status"] == "run").sum())
        body = paragraphs(caption(captions / f"{name}_table.rst")) + to_html(frame)
        heading = f"{html.escape(title.removeprefix('Published: '))} ({ran} of {len(frame)} run here)"
        opened = " open" if ran else ""
        parts.append(f"<details{opened}><summary>{heading}</summary>\n{body}</details>\n")
    drawn = ""
    for name in (name for name in FIGURES if name.startswith(_PUBLISHED)):
        if (figures / f"{name}.png").exists():
            title = name.removeprefix(_PUBLISHED)
            drawn += figure_section(
                title, figures / f"{name}.png", caption(captions / f"{name}_figure.rst")
            ).body
    if drawn:
        parts.append(f"<details><summary>the paper's figures</summary>\n{drawn}</details>\n")
    return Section("The paper's tables", "".join(parts))


def _provenance(runs: pd.DataFrame, commands: Sequence[str]) -> Section:
    """What made the runs: commands, commits, digests, versions and machines, with how many runs of each."""
    rows = runs.drop_duplicates("run_id")
    lines = [("Commands", [f"<code>{html.escape(command)}</code>" for command in commands])]
    for name in (*PROVENANCE[:1], *(f"digest_{name}" for name in DIGESTS), *PROVENANCE[1:]):
        counted = rows[rows[name].astype(str) != ""].groupby(name, observed=True).size()
        told = [f"{_readable(str(value))} ({count} runs)" for value, count in counted.items()]
        lines.append((name.replace("digest_", "digest of ").replace("_", " "), told))
    body = "".join(
        f"<dt>{html.escape(key[:1].upper() + key[1:])}</dt>\n"
        + "".join(f"<dd>{value}</dd>\n" for value in values)
        for key, values in lines
        if values
    )
    return Section("Provenance", f"<dl>\n{body}</dl>\n")


def _readable(value: str) -> str:
    if value.startswith("{"):
        parts = json.loads(value)
        return html.escape("; ".join(f"{key} {_plain(part)}" for key, part in parts.items()))
    return f"<code>{html.escape(value)}</code>"


def _plain(part: object) -> str:
    return (", ".join(map(str, part)) or "none") if isinstance(part, list) else str(part)
