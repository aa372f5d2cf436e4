"""The Markdown report of an experiment, from the template ``report.md``.

Code hosts show it as the README.md of a released directory; `troll.analysis.render.html` renders the
complete one as ``page.html``.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import pandas as pd
from jinja2 import Environment, StrictUndefined

from troll.analysis.captions import caption
from troll.analysis.claims import ledger
from troll.analysis.claims.verdicts import ClaimVerdict
from troll.analysis.data.provenance import DIGESTS
from troll.analysis.data.results import Results
from troll.analysis.data.summaries import planned_seeds, require_one
from troll.analysis.data.tidy import BASE, PROVENANCE
from troll.analysis.registry import Entry, Kind, entries, stems
from troll.analysis.render.formats import folded, pipe_row, to_markdown
from troll.analysis.report.make import make, table
from troll.analysis.report.questions import answer, behind, heading, opening_figure
from troll.analysis.report.readme import sentences
from troll.experiment.published.ledger import DIFFERENCE, differences, read_ledger

PAGE = "README.md"
"""File name of the report in ``results/released/<experiment>``, which code hosts show below the files."""

_TEMPLATE = "report.md"


@dataclass(frozen=True)
class Section:
    """A section of the report; the texts are Markdown."""

    title: str
    body: str = ""
    parts: Sequence["Section"] = field(default=())


@dataclass(frozen=True)
class Run:
    """What the complete report tells of the runs' own machine.

    Attributes:
        commands: those that made the runs, for the report's last section.
        replication: lines on whether the runs replicate a release; empty where there is none.
    """

    commands: Sequence[str] = ()
    replication: Sequence[str] = ()


def report(results: Results, judged: Sequence[ClaimVerdict], directory: Path, run: Run | None = None) -> str:
    """Returns an experiment's report in Markdown: question, answer, its figure, verdicts, figures, tables.

    Tables are computed from the results; figures are those in ``directory/figures``. Without ``run`` this is
    the page of a released directory, with the tables in ``directory/tables``. With it the report is complete:
    all tables, the Markdown files under ``cost/``, ``public/`` and ``audit/``, the paper's tables and
    figures, methods, deviations and provenance.
    """
    require_one(results.runs)
    name = str(results.runs["experiment"].iloc[0])
    drawn = dict(_drawn(results, directory / "figures"))
    first = opening_figure(name, list(drawn))
    answer_text = answer(name, map(ledger.record, judged), directory, results.runs)
    sections = [
        _verdicts(results, judged, run),
        Section("Figures", parts=[drawn[stem] for stem in drawn if stem != first]),
        Section("Tables", parts=list(_tables(results, directory))),
        *(_complete(results, directory, run) if run else _released(directory)),
    ]
    template = files(__package__).joinpath(_TEMPLATE).read_text(encoding="utf-8")
    text = (
        Environment(undefined=StrictUndefined, autoescape=False)
        .from_string(template)
        .render(
            heading=heading(name, results.summary),
            answer=f"{answer_text}." if answer_text else behind(name, directory, picture=not first),
            opening=drawn[first].body if first else "",
            about=f"`{name}`: " + (f"{results.summary}. " if results.summary else "") + size(results),
            sections=sections,
        )
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _verdicts(results: Results, judged: Sequence[ClaimVerdict], run: Run | None) -> Section:
    if run is None:
        with_runs = [entry for entry in judged if entry.verdict != "not run"]
        link = "Numbers behind them: [`claims.md`](claims.md)."
        return Section("Verdicts", f"{ledger.to_short_markdown(with_runs)}\n{link}" if with_runs else "")
    first, *others = map(str.strip, run.replication or [""])
    lines = sentences(make(entries("table")["main"], results), results.items)
    parts = [
        *([f"**{first}.**"] if first else []),
        "\n".join(f"- {foreign(line)}" for line in others),
        ledger.to_folded_markdown(judged),
        "### The differences in words",
        "\n".join(lines),
    ]
    return Section("Verdicts", "\n\n".join(part.strip() for part in parts if part))


def size(results: Results) -> str:
    """Returns the size of an experiment: numbers of runs, coordinates, and hours of training."""
    runs = results.runs[results.runs["trust_region"] != BASE]
    finished = runs["run_id"].nunique()
    planned = sum(planned_seeds(results.expected).values()) if results.expected else finished
    seconds = float(runs.loc[runs["metric"] == "wall_s", "value"].sum())
    text = f"{finished:,} of {planned:,} planned runs" if planned != finished else f"{finished:,} runs"
    return (
        f"{text} of {_list(runs, 'trust_region', ' trust regions')} on {_list(runs, 'task')}; "
        f"conditions: {_list(runs, 'condition')}; estimators: {_list(runs, 'estimator')}; "
        f"seeds: {spans(sorted(set(runs['seed'])))}; {seconds / 3600:.1f} hours of training in all."
    )


def _list(runs: pd.DataFrame, name: str, noun: str = "") -> str:
    """Returns the names in a column, or only their number if there are more than eight."""
    names = sorted(set(runs[name].dropna()))
    return f"{len(names)}{noun}" if len(names) > 8 else ", ".join(names)


def spans(numbers: Sequence[int]) -> str:
    """Ascending whole numbers with consecutive ones as a span: "0 to 4, 7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def _with_caption(body: str, name: str) -> str:
    """Returns a figure or table above the first paragraph of its caption, with the rest folded."""
    first, _, rest = caption(name).partition("\n\n")
    return "\n\n".join([body.strip(), first, *([folded("How to read this", rest)] if rest else [])])


def _drawn(results: Results, figures: Path) -> Iterator[tuple[str, Section]]:
    """Yields the existing figures of the experiment by file name, in registry order."""
    tasks = sorted({str(name) for name in results.runs["task"]})
    for entry in entries("figure").values():
        for stem in stems([entry], tasks) if entry.when != "published" else ():
            if (figures / f"{stem}.png").exists():
                task = stem.removeprefix(f"{entry.name}_")
                title = f"{entry.title}: {task}" if entry.per_task else entry.title
                yield stem, Section(title, _with_caption(_image(title, stem), entry.caption))


def _image(title: str, stem: str) -> str:
    return f"![{title}](figures/{stem}.png)"


def _tables(results: Results, directory: Path) -> Iterator[Section]:
    for name, entry in entries("table").items():
        if entry.when != "published" and (directory / "tables" / f"{name}.csv").exists():
            frame = table(name, results)
            if len(frame):
                yield Section(entry.title, _with_caption(to_markdown(frame), entry.caption))


def _released(directory: Path) -> list[Section]:
    """Returns the last sections of a released directory's page: links to its other files."""
    paths = [path.relative_to(directory) for path in directory.glob("*.md")]
    paths += [path.relative_to(directory) for name in _FURTHER for path in (directory / name).rglob("*.md")]
    links = []
    for path in sorted(paths):
        if str(path) not in (PAGE, "claims.md"):
            words = dict.fromkeys(" ".join(path.with_suffix("").parts).replace("_", " ").split())
            links.append(f"- [{' '.join(words).capitalize()}]({path.as_posix()})")
    data = (
        "The tables as CSV are in [`tables/`](tables); the runs behind them in [`tidy/`](tidy), "
        'which `pandas.read_parquet("tidy")` reads.'
    )
    return [Section("Further measurements", "\n".join(links)), Section("Data", data)]


_FURTHER = ("approximation", "cost", "public")


def _complete(results: Results, directory: Path, run: Run) -> list[Section]:
    """Returns the last sections of the complete report."""
    return [
        Section("Cost", parts=list(_written(directory / "cost"))),
        Section("Public data", parts=list(_public_data(directory))),
        _published(results, directory / "figures"),
        Section("Methods", caption("methods")),
        _deviations(),
        provenance(results.runs, run.commands),
    ]


def _public_data(directory: Path) -> Iterator[Section]:
    """Yields the benchmarks and the graders' audit, if the experiment has them."""
    for part in _written(directory / "public"):
        yield Section(part.title, _with_caption(part.body, f"{part.title.lower()}_table"))
    audit = directory / "audit/audit.md"
    if audit.exists():
        title, *parts = re.split(r"^#+ ", audit.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
        yield Section(foreign(title.strip()), _with_caption("", "audit_table"))
        for text in parts:
            heading_text, _, body = text.partition("\n")
            yield Section(foreign(heading_text), foreign(body))


def _written(directory: Path) -> Iterator[Section]:
    """Yields the Markdown tables that other commands wrote to a directory."""
    for path in sorted(directory.glob("*.md")):
        title = path.stem.replace("_", " ")
        text = path.read_text(encoding="utf-8")
        yield Section(title[:1].upper() + title[1:], foreign(text, directory.name))


_LINK = re.compile(r"\[([^\[\]]+)\]\(([\w./%+-]+\.jsonl)\)")


def foreign(text: str, directory: str = ".") -> str:
    """Markdown of another command in which nothing but links to its ``.jsonl`` files and tables is markup."""
    shown, end = "", 0
    for link in _LINK.finditer(text):
        shown += _escaped(text[end : link.start()]) + f"[{_escaped(link[1])}]({directory}/{link[2]})"
        end = link.end()
    return shown + _escaped(text[end:])


def _escaped(text: str) -> str:
    return re.sub(r"[<\[\]]", lambda found: f"&#{ord(found[0])};", text.replace("&", "&amp;"))


def _deviations() -> Section:
    """What the experiments do otherwise than the paper, and the table of released settings that differ."""
    rows = differences(read_ledger())
    lines = [pipe_row(cells) for cells in (DIFFERENCE, ["---"] * len(DIFFERENCE), *rows)]
    summary = f"{len(rows)} released settings that the runs of paper.yaml differ in, and why"
    return Section("Deviations", f"{caption('deviations')}\n\n{folded(summary, chr(10).join(lines))}")


def _published(results: Results, figures: Path) -> Section:
    """Returns the paper's tables and figures; tables are folded if this experiment has none of their runs."""
    parts = []
    for name, entry in _published_entries("table"):
        frame = table(name, results)
        ran = int((frame["status"] == "run").sum())
        summary = f"{entry.title} ({ran} of {len(frame)} run here)"
        parts.append(folded(summary, f"{caption(entry.caption)}\n\n{to_markdown(frame)}", opened=ran > 0))
    drawn = [
        f"{_image(entry.title, name)}\n\n{caption(entry.caption)}"
        for name, entry in _published_entries("figure")
        if (figures / f"{name}.png").exists()
    ]
    if drawn:
        parts.append(folded("the paper's figures", "\n\n".join(drawn)))
    return Section("The paper's tables", "\n\n".join(parts))


def _published_entries(kind: Kind) -> list[tuple[str, Entry]]:
    return [(name, entry) for name, entry in entries(kind).items() if entry.when == "published"]


def provenance(runs: pd.DataFrame, commands: Sequence[str]) -> Section:
    """Returns commands, commits, digests, versions and machines, with their numbers of runs."""
    rows = runs.drop_duplicates("run_id")
    lines = [("Commands", [f"`{command}`" for command in commands])]
    for name in (*PROVENANCE[:1], *(f"digest_{name}" for name in DIGESTS), *PROVENANCE[1:]):
        counts = rows[rows[name].astype(str) != ""].groupby(name, observed=True).size()
        shown = [f"{_readable(str(value))} ({count} runs)" for value, count in counts.items()]
        lines.append((name.replace("digest_", "digest of ").replace("_", " "), shown))
    body = "\n".join(
        "\n".join([f"- **{key[:1].upper() + key[1:]}**", *(f"  - {value}" for value in values)])
        for key, values in lines
        if values
    )
    return Section("Provenance", body)


def _readable(value: str) -> str:
    if value.startswith("{"):
        return foreign("; ".join(f"{key} {_plain(part)}" for key, part in json.loads(value).items()))
    return f"`{value}`"


def _plain(part: object) -> str:
    return (", ".join(map(str, part)) or "none") if isinstance(part, list) else str(part)
