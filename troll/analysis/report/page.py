"""The HTML report of an experiment: answer and figure, verdicts, tables, figures, methods and provenance."""

import html
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pandas as pd

from troll.analysis.captions import caption
from troll.analysis.claims import ledger
from troll.analysis.claims.verdicts import ClaimVerdict
from troll.analysis.data.provenance import DIGESTS
from troll.analysis.data.results import Results
from troll.analysis.data.summaries import planned_seeds, require_one
from troll.analysis.data.tidy import BASE, PROVENANCE
from troll.analysis.registry import Entry, Kind, entries, stems
from troll.analysis.render.formats import to_html
from troll.analysis.render.html import (
    Section,
    bullets,
    cells_of,
    figure_section,
    folded,
    joined,
    paragraphs,
    sortable,
    write_page,
)
from troll.analysis.report import readme
from troll.analysis.report.make import make, table
from troll.analysis.report.questions import answer, heading, opening_figure
from troll.experiment.published.ledger import DIFFERENCE, differences, read_ledger


def make_page(
    results: Results,
    judged: Sequence[ClaimVerdict],
    directory: Path,
    out: Path,
    *,
    commands: Sequence[str] = (),
    replication: Sequence[str] = (),
) -> None:
    """Writes the report of one experiment to ``out``.

    The page begins with the question, the answer and the figure that shows it (`questions`), followed by the
    verdicts and whether the runs replicate a release (``replication``). Tables are computed from the results;
    figures are taken from ``figures/``. The Markdown tables under ``cost/`` and ``public/`` and the audit
    under ``audit/`` are included if they exist.
    """
    require_one(results.runs)
    name = str(results.runs["experiment"].iloc[0])
    figures = directory / "figures"
    first = opening_figure(name, [path.stem for path in figures.glob("*.png")])
    sections = [
        _verdicts(results, judged, replication),
        _chapter("Tables", _tables(results)),
        _chapter("Figures", _figures(results, figures, first)),
        _chapter("Cost", _written(directory / "cost")),
        _chapter("Public data", _public_data(directory)),
        _published(results, figures),
        Section("Methods", paragraphs(caption("methods"))),
        _deviations(),
        provenance(results.runs, commands),
    ]
    sections = [section for section in sections if section.body]
    write_page(out, heading(name, results.summary), sections, _opening(name, results, judged, figures, first))


def _opening(name: str, results: Results, judged: Sequence[ClaimVerdict], figures: Path, first: str) -> str:
    """The answer in a sentence, the figure that shows it, and the experiment's summary."""
    answer_text = answer(name, map(ledger.record, judged))
    text = paragraphs(f"{answer_text}.").replace("<p>", '<p class="answer">') if answer_text else ""
    if first:
        entry = entries("figure")[first]
        shown, _, rest = caption(entry.caption).partition("\n\n")
        text += figure_section(entry.title, figures / f"{first}.png", shown).body
        text += folded("More on the picture", paragraphs(rest)) if rest else ""
    summary = f" {html.escape(results.summary)}." if results.summary else ""
    return (
        f'<div class="opening">\n{text}</div>\n'
        f'<p class="note"><code>{html.escape(name)}</code>:{summary} {size(results)}</p>\n'
    )


def _chapter(title: str, parts: Iterable[Section]) -> Section:
    """A section with sections as its parts."""
    return Section(title, joined(parts, title.lower().replace(" ", "-"), "h3", after="\n"))


def _verdicts(results: Results, judged: Sequence[ClaimVerdict], replication: Sequence[str]) -> Section:
    first, *others = map(str.strip, replication or [""])
    repeated = f"<p><strong>{html.escape(first)}.</strong></p>\n" if first else ""
    repeated += bullets(others) if others else ""
    lines = readme.sentences(make(entries("table")["main"], results), results.items)
    return Section(
        "Verdicts", f"{repeated}{ledger.to_html(judged)}<h3>The differences in words</h3>\n{bullets(lines)}"
    )


def size(results: Results) -> str:
    """The size of an experiment as HTML: number of runs, coordinates, and hours of training."""
    runs = results.runs[results.runs["trust_region"] != BASE]
    finished = runs["run_id"].nunique()
    planned = sum(planned_seeds(results.expected).values()) if results.expected else finished
    seconds = float(runs.loc[runs["metric"] == "wall_s", "value"].sum())
    text = f"{finished} of {planned} planned runs" if planned != finished else f"{finished} runs"
    return (
        f"{text} of {_list(runs, 'trust_region', ' trust regions')} on {_list(runs, 'task')}; "
        f"conditions: {_list(runs, 'condition')}; estimators: {_list(runs, 'estimator')}; "
        f"seeds: {spans(sorted(set(runs['seed'])))}; {seconds / 3600:.1f} hours of training in all."
    )


def _list(runs: pd.DataFrame, name: str, noun: str = "") -> str:
    """The names in a column, or only their number if there are more than eight."""
    names = sorted(set(runs[name].dropna()))
    return f"{len(names)}{noun}" if len(names) > 8 else html.escape(", ".join(names))


def spans(numbers: Sequence[int]) -> str:
    """Ascending whole numbers with consecutive ones as a span: "0 to 4, 7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def _tables(results: Results) -> Iterator[Section]:
    for name, entry in entries("table").items():
        if entry.when != "published" and len(frame := table(name, results)):
            yield Section(entry.title, to_html(frame) + _folded(entry.caption))


def _folded(name: str) -> str:
    return folded("How to read this", paragraphs(caption(name)))


def _figures(results: Results, directory: Path, first: str) -> Iterator[Section]:
    """The figures except the one at the beginning of the page."""
    tasks = sorted({str(name) for name in results.runs["task"]})
    for entry in entries("figure").values():
        for stem in stems([entry], tasks) if entry.when != "published" else ():
            image, task = directory / f"{stem}.png", stem.removeprefix(f"{entry.name}_")
            if image.exists() and stem != first:
                title = f"{entry.title}: {task}" if entry.per_task else entry.title
                yield figure_section(title, image, caption(entry.caption))


def _public_data(directory: Path) -> Iterator[Section]:
    """The benchmarks and the graders' audit, if the experiment has them."""
    for part in _written(directory / "public"):
        yield Section(part.title, part.body + _folded(f"{part.title.lower()}_table"))
    audit = directory / "audit/audit.md"
    if audit.exists():
        first, *tables = re.split(r"^#+ ", audit.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
        yield Section(first.strip(), _folded("audit_table"))
        for text in tables:
            title, _, body = text.partition("\n")
            yield Section(title, markdown_table(body))


def _written(directory: Path) -> Iterator[Section]:
    """The Markdown tables that other commands wrote to a directory."""
    for path in sorted(directory.glob("*.md")):
        title = path.stem.replace("_", " ")
        text = path.read_text(encoding="utf-8")
        yield Section(title[:1].upper() + title[1:], markdown_table(text, directory.name))


_LINK = re.compile(r"\[([^\[\]]+)\]\(([\w./%+-]+\.jsonl)\)")


def markdown_table(text: str, directory: str = ".") -> str:
    """A Markdown pipe table and the paragraphs around it as HTML."""
    rows, rest = [], []
    for line in text.splitlines():
        if line.startswith("|"):
            rows.append(cells_of(line))
        else:
            rest.append(line)
    if len(rows) < 2:
        return paragraphs(text)
    linked = [
        [_LINK.sub(rf'<a href="{directory}/\2">\1</a>', html.escape(cell)) for cell in row]
        for row in (rows[0], *rows[2:])
    ]
    table = sortable(linked[0], linked[1:], [cell.endswith(":") for cell in rows[1]])
    notes = paragraphs("\n".join(rest)).replace("<p>", '<p class="note">')
    return table + notes


def _deviations() -> Section:
    """What the experiments do otherwise than the paper, and the table of released settings that differ."""
    rows = [[html.escape(cell.replace("`", "")) for cell in cells] for cells in differences(read_ledger())]
    shown = sortable(list(DIFFERENCE), rows, [False] * len(DIFFERENCE))
    heading = f"{len(rows)} released settings that the runs of paper.yaml differ in, and why"
    return Section("Deviations", paragraphs(caption("deviations")) + folded(heading, shown))


def _published(results: Results, figures: Path) -> Section:
    """The paper's tables and figures; tables are folded if this experiment has none of their runs."""
    parts = []
    for name, entry in _published_entries("table"):
        frame = table(name, results)
        ran = int((frame["status"] == "run").sum())
        body = paragraphs(caption(entry.caption)) + to_html(frame)
        heading = f"{html.escape(entry.title)} ({ran} of {len(frame)} run here)"
        parts.append(folded(heading, body, opened=ran > 0))
    drawn = "".join(
        figure_section(entry.title, image, caption(entry.caption)).body
        for name, entry in _published_entries("figure")
        if (image := figures / f"{name}.png").exists()
    )
    if drawn:
        parts.append(folded("the paper's figures", drawn))
    return Section("The paper's tables", "".join(parts))


def _published_entries(kind: Kind) -> list[tuple[str, Entry]]:
    return [(name, entry) for name, entry in entries(kind).items() if entry.when == "published"]


def provenance(runs: pd.DataFrame, commands: Sequence[str]) -> Section:
    """The runs' provenance: commands, commits, digests, versions and machines, with their numbers of runs."""
    rows = runs.drop_duplicates("run_id")
    lines = [("Commands", [f"<code>{html.escape(command)}</code>" for command in commands])]
    for name in (*PROVENANCE[:1], *(f"digest_{name}" for name in DIGESTS), *PROVENANCE[1:]):
        counted = rows[rows[name].astype(str) != ""].groupby(name, observed=True).size()
        shown = [f"{_readable(str(value))} ({count} runs)" for value, count in counted.items()]
        lines.append((name.replace("digest_", "digest of ").replace("_", " "), shown))
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
