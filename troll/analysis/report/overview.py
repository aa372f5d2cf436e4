"""Markdown pages of ``results/``: one for each experiment, and the index of all."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from troll.analysis.captions import caption
from troll.analysis.claims.ledger import record, to_short_markdown
from troll.analysis.claims.verdicts import ClaimVerdict
from troll.analysis.data.results import Results
from troll.analysis.data.tidy import BASE, GROUP
from troll.analysis.registry import Entry, entries
from troll.analysis.render.formats import listed, pipe_row, to_markdown
from troll.analysis.render.html import folded, paragraphs
from troll.analysis.report.make import table
from troll.analysis.report.questions import (
    OTHERS,
    QUESTIONS,
    Question,
    answer,
    behind,
    heading,
    opening_figure,
)
from troll.common.files import read_json

PAGE = "README.md"
"""File name of the page in ``results/<experiment>``, which code hosts show below the list of files."""


def page(results: Results, judged: Sequence[ClaimVerdict], directory: Path) -> str:
    """The page of an experiment: question, answer, verdicts, and all figures and tables in ``directory``."""
    runs = results.runs
    name = str(runs["experiment"].iloc[0])
    drawn = {stem: (entry, title) for stem, entry, title in _drawn(directory)}
    first = opening_figure(name, list(drawn))
    answer_text = answer(name, map(record, judged))
    about = f"`{name}`: {results.summary}. " if results.summary else ""
    parts = [
        f"# {heading(name, results.summary)}",
        f"{answer_text}." if answer_text else behind(name, directory, picture=not first),
        *(_figure(first, *drawn[first]) if first else ()),
        about + _size(runs),
        _verdicts(judged),
    ]
    for stem, (entry, title) in drawn.items():
        if stem != first:
            parts += [f"## {title}", *_figure(stem, entry, title)]
    parts += _tables(results, directory)
    if further := [f"- [{title}]({path})" for path, title in _further(directory)]:
        parts.append("\n".join(["## Further measurements", "", *further]))
    parts.append(
        "## Data\n\nThe tables as CSV are in [`tables/`](tables); the runs behind them in [`tidy/`](tidy), "
        'which `pandas.read_parquet("tidy")` reads.'
    )
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _size(runs: pd.DataFrame) -> str:
    trained = runs[runs["trust_region"] != BASE]
    seeds = trained.drop_duplicates("run_id")["seed"].nunique()
    return f"{trained['run_id'].nunique():,} runs of {seeds} seeds on {listed(sorted(set(trained['task'])))}."


def _verdicts(judged: Sequence[ClaimVerdict]) -> str:
    with_runs = [entry for entry in judged if entry.verdict != "not run"]
    return (
        f"## Verdicts\n\n{to_short_markdown(with_runs)}\nNumbers behind them: [`claims.md`](claims.md)."
        if with_runs
        else ""
    )


def _drawn(directory: Path) -> Iterator[tuple[str, Entry, str]]:
    """The existing figures with their headings, in registry order."""
    for name, entry in entries("figure").items():
        for path in sorted((directory / "figures").glob(f"{name}*.png")):
            task = path.stem.removeprefix(name).removeprefix("_")
            if path.stem == name or (entry.per_task and path.stem == f"{name}_{task}"):
                yield path.stem, entry, f"{entry.title}: {task}" if task else entry.title


def _figure(stem: str, entry: Entry, title: str) -> Iterator[str]:
    """A figure and the first paragraph of its caption, whose only markup is literals."""
    yield f"![{title}](figures/{stem}.png)"
    yield caption(entry.caption).partition("\n\n")[0].replace("``", "`")


def _tables(results: Results, directory: Path) -> Iterator[str]:
    for name, entry in entries("table").items():
        if (directory / "tables" / f"{name}.csv").exists():
            yield f"## {entry.title}"
            yield to_markdown(table(name, results))
            yield folded("How to read this", paragraphs(caption(entry.caption)))


def _further(directory: Path) -> Iterator[tuple[str, str]]:
    """Paths and titles of the tables that other commands wrote to the directory."""
    paths = [path.relative_to(directory) for path in directory.glob("*.md")]
    paths += [path.relative_to(directory) for name in _FURTHER for path in (directory / name).rglob("*.md")]
    for path in sorted(paths):
        if str(path) not in (PAGE, "claims.md"):
            words = dict.fromkeys(" ".join(path.with_suffix("").parts).replace("_", " ").split())
            yield path.as_posix(), " ".join(words).capitalize()


_FURTHER = ("approximation", "cost", "public")


def index(root: Path, experiments: Mapping[str, Results]) -> str:
    """The index of all released results in Markdown: results that answer a question, then their runs."""
    first = {name: question for name, question in QUESTIONS.items() if name in experiments and question.claim}
    rows = [_answered(root, name, question, experiments[name]) for name, question in first.items()]
    rows += [
        _row(f"{name}/{other.file}", other.question, other.answer(root / name), "", other.command)
        for name, other in OTHERS.items()
        if (root / name / other.file).exists()
    ]
    lines = ["| Question | Answer | Runs | Make it again |", "| --- | --- | ---: | --- |", *rows]
    if rest := [name for name in experiments if name not in first]:
        lines += ["", "Runs behind the leaderboard and the duel:", ""]
        lines += ["| Question | Directory | Runs | Make it again |", "| --- | --- | ---: | --- |"]
    for name in rest:
        question = QUESTIONS.get(name, Question(experiments[name].summary, ""))
        lines.append(
            _row(f"{name}/{PAGE}", question.text, f"`{name}`", _runs(experiments[name]), question.command)
        )
    return "\n".join(lines) + "\n"


def _answered(root: Path, name: str, question: Question, results: Results) -> str:
    """The row of an experiment that answers a question."""
    path = root / name / "claims.json"
    claims = read_json(path)["claims"] if path.exists() else []
    return _row(f"{name}/{PAGE}", question.text, answer(name, claims), _runs(results), question.command)


def _row(target: str, question: str, *cells: str) -> str:
    return pipe_row([f"[{question}]({target})", *cells])


def _runs(results: Results) -> str:
    """The number of runs of an experiment, and of seeds in each setting."""
    runs = results.runs[results.runs["trust_region"] != BASE].drop_duplicates("run_id")
    seeds = sorted(set(runs.groupby(list(GROUP), observed=True).size()))
    count = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
    return f"{len(runs):,} ({count} seeds)"
