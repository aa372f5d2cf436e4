"""Generated blocks of Markdown files: numbers in prose come from the tables.

A block is the text between ``<!-- generated:NAME -->`` and ``<!-- /generated -->``. A name that ends in
``.md`` is the path of a table's file, relative to the page. The wording about a difference is derived from
its interval by ``Interval.reading``.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from troll.analysis.claims.ledger import findings, to_short_markdown
from troll.analysis.claims.verdicts import ClaimVerdict
from troll.analysis.data.provenance import commits_of
from troll.analysis.data.summaries import BASELINE, METHOD, cells, difference
from troll.analysis.data.tidy import BASE
from troll.analysis.render.formats import (
    bracketed,
    counted,
    listed,
    percent,
    points,
    significant,
    to_markdown,
)
from troll.analysis.tables.aggregates import aggregate_table
from troll.analysis.tables.comparisons import read_in_family
from troll.analysis.tables.results import comparison_table
from troll.common.errors import UserError
from troll.common.files import write_text

_OPEN = re.compile(r"^<!-- generated:(?P<name>[a-z0-9-]+|[\w./-]+\.md(#[\w-]+)?) -->$")
_CLOSE = "<!-- /generated -->"
_FOLDED = re.compile(r"<details>.*?</details>", re.DOTALL)  # explanations, which the including page replaces
_ORDER = ("higher", "lower", "no clear difference", "one seed only")
_FEW_SEEDS = 5
_FINDINGS = 4
"""Number of the testbed's claims in the README; the benchmark shows more."""


def blocks(
    main: pd.DataFrame,
    items: pd.DataFrame,
    *,
    judged: Sequence[ClaimVerdict] = (),
    family: pd.DataFrame | None = None,
    runs: pd.DataFrame | None = None,
    benchmark: Sequence[ClaimVerdict] = (),
    others: Sequence[ClaimVerdict] = (),
) -> dict[str, str]:
    """Returns the generated blocks of the README and docs/findings.md: Markdown by name.

    ``benchmark`` are the verdicts shown beside the leaderboard; ``others`` are verdicts of all other
    experiments, which are only counted, together with those ``judged``.
    """
    if family is not None:
        main = read_in_family(main, family)
    return {
        "findings": "\n".join(findings(judged, _FINDINGS, others)) + "\n",
        "benchmark": "\n".join(line for line in findings(benchmark)[:-1] if line) + "\n",
        "verdicts": to_short_markdown(judged),
        "results-table": to_markdown(comparison_table(main)),
        "results-sentences": "\n".join(sentences(main, items)) + "\n",
        "provenance": "\n".join(provenance(runs) if runs is not None else []) + "\n",
    }


def provenance(runs: pd.DataFrame) -> list[str]:
    """Commits, time and memory of each experiment's runs, as a Markdown list."""
    trained = runs[runs["trust_region"] != BASE]
    return [
        f"- `results/released/{name}`: {_commits(rows)}; {_training_effort(rows)}."
        for name, rows in trained.groupby(trained["experiment"].astype(str), sort=False)
    ]


def _commits(rows: pd.DataFrame) -> str:
    commits = commits_of(rows)
    parts = []
    for commit, group in commits.groupby("git_commit"):
        at = f"commit `{str(commit)[:7]}`" if commit else "no known commit"
        changed = " (with changes that were not committed)" if group["changed"].iloc[0] else ""
        parts.append(f"{len(group)} at {at}{changed}")
    return f"{counted(len(commits), 'run')}: {listed(parts)}"


def _training_effort(rows: pd.DataFrame) -> str:
    """Time and memory of training from the manifests."""
    values = rows[rows["source"] == "manifest"].groupby("metric", observed=True)["value"]
    seconds = values.get_group("wall_s") if "wall_s" in values.groups else pd.Series(dtype=float)
    text = f"{seconds.sum() / 3600:.1f} hours of training, {seconds.mean():.0f} seconds a run"
    if "peak_gib" in values.groups:
        text += f", the largest process {values.get_group('peak_gib').max():.2f} GiB"
    return text


def sentences(main: pd.DataFrame, items: pd.DataFrame) -> list[str]:
    """Returns sentences derived from the main table, as a Markdown list.

    The number of settings by reading, the range of differences by condition with KL, the aggregate over the
    settings of a condition, methods that end below or not clearly above the base model, and a warning about
    few seeds.
    """
    table = comparison_table(main)
    table = table if len(table) else pd.DataFrame({"difference": [], "condition": [], "reading": []})
    compared = table.dropna(subset=["difference"])
    if compared.empty:
        return [f"- No comparison of {METHOD} with {BASELINE} has been run."]
    lines = [
        _overall(compared),
        *(_condition(str(name), rows) for name, rows in compared.groupby("condition")),
        *_together(items),
        *_against_base(items, compared),
    ]
    missing = len(table) - len(compared)
    if missing:
        lines.append(f"- {missing} of {len(table)} comparisons have not been run.")
    seeds = int(compared["seeds"].min())
    if seeds < _FEW_SEEDS:
        lines.append(
            f"- {counted(seeds, 'seed')} per setting: the intervals are wide. No clear difference means that "
            "these runs cannot tell, not that the methods are equal."
        )
    return lines


def _overall(compared: pd.DataFrame) -> str:
    counts = [(reading, int((compared["reading"] == reading).sum())) for reading in _ORDER]
    readings = ", ".join(f"{reading} in {count}" for reading, count in counts if count)
    return (
        f"- Test pass@1 of {METHOD} against {BASELINE} in {counted(len(compared), 'setting')} "
        f"(task × condition × estimator): {readings}."
    )


def _condition(condition: str, rows: pd.DataFrame) -> str:
    differences = rows["difference"]
    text = f"- **{condition}**: {_difference(rows.iloc[int(differences.argmax())])}"
    if len(rows) > 1:
        text += f" at the most and {_difference(rows.iloc[int(differences.argmin())])} at the least"
    old, new = rows["baseline_late_kl"].mean(), rows["late_kl"].mean()
    if old == old and new == new:
        text += (
            f"; late KL to the old policy {significant(new)} ({METHOD}) and {significant(old)} ({BASELINE})"
        )
    return text + "."


def _together(items: pd.DataFrame) -> Iterator[str]:
    """Yields sentences on all settings of a condition together, if there are several."""
    table = aggregate_table(items)
    for _, row in table.iterrows():
        if row["trust_region"] == METHOD and row["settings"] > 1:
            yield (
                f"- All {row['settings']} settings of **{row['condition']}** together, on the way from the "
                f"base model (0 %) to every sample right (100 %): interquartile mean {_share(row, 'iqm')} % "
                f"of {METHOD} against {_share(row, 'iqm_baseline')} % of {BASELINE}; a run of {METHOD} ends "
                f"above one of {BASELINE} with a chance of {_share(row, 'improvement')} %."
            )


def _share(row: "pd.Series[Any]", name: str) -> str:
    return f"{percent(row[name])} {bracketed(row, name, percent)}"


def _difference(row: "pd.Series[Any]") -> str:
    return (
        f"{points(row['difference'])} points {bracketed(row, 'difference')} on {row['task']} with "
        f"{row['estimator']} ({percent(row['method'])} % against {percent(row['baseline'])} %, "
        f"base {percent(row['base'])} %)"
    )


def _against_base(items: pd.DataFrame, compared: pd.DataFrame) -> Iterator[str]:
    """Yields sentences on methods that did not end clearly above the base model."""
    for name in (BASELINE, METHOD):
        for condition in sorted(set(compared["condition"])):
            intervals = [
                difference(items, cell, cell.base_model())
                for cell in cells(items)
                if (cell.trust_region, cell.condition) == (name, condition)
            ]
            readings = [interval.reading() for interval in intervals if interval is not None]
            counts = {
                "below it": readings.count("lower"),
                "not clearly different from it": readings.count("no clear difference"),
            }
            if parts := [f"{what} in {count}" for what, count in counts.items() if count]:
                yield (
                    f"- Against the base model, {name} under {condition} ends {' and '.join(parts)} "
                    f"of {counted(len(readings), 'setting')}."
                )


def render(text: str, generated: Mapping[str, str], name: str = "README.md") -> str:
    """Replaces the generated blocks of a Markdown text."""
    lines: list[str] = []
    opened: tuple[int, str] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        match = _OPEN.match(line.strip())
        if match and opened:
            raise UserError(
                f"{name}:{number}: block {opened[1]} of line {opened[0]} is not closed by {_CLOSE}"
            )
        if match:
            if match["name"] not in generated:
                valid = ", ".join(sorted(generated))
                raise UserError(f"{name}:{number}: unknown block {match['name']!r}; valid: {valid}")
            opened = number, match["name"]
            lines += [line, "", generated[match["name"]].strip("\n"), ""]
        elif line.strip() == _CLOSE:
            if not opened:
                raise UserError(f"{name}:{number}: {_CLOSE} without an opening marker")
            opened = None
            lines.append(line)
        elif not opened:
            lines.append(line)
    if opened:
        raise UserError(f"{name}:{opened[0]}: block {opened[1]} is not closed by {_CLOSE}")
    return "\n".join(lines) + "\n"


def included(text: str, page: Path) -> dict[str, str]:
    """Returns the tables that a page includes by file name, by these names."""
    names = [match["name"] for line in text.splitlines() if (match := _OPEN.match(line.strip()))]
    return {name: _section(page.parent, name) for name in names if ".md" in name}


def _section(directory: Path, name: str) -> str:
    """Returns a file's text, or with ``page.md#the-heading`` the section below that heading."""
    file, _, anchor = name.partition("#")
    text = _read(directory / file)
    if not anchor:
        return text
    for heading, body in re.findall(r"^##+ ([^\n]+)\n(.*?)(?=^##+ |\Z)", text, re.MULTILINE | re.DOTALL):
        if re.sub(r"[^\w-]+", "-", heading.lower()) == anchor:
            return f"{_FOLDED.sub('', body).strip()}\n"
    raise UserError(f"{directory / file}: no heading #{anchor}")


def _old_and_new(path: Path, generated: Mapping[str, str]) -> tuple[str, str]:
    old = _read(path)
    return old, render(old, {**generated, **included(old, path)}, path.name)


def check(path: Path, generated: Mapping[str, str]) -> str:
    """Returns a unified diff from a file to its generated version; empty if it is up to date."""
    old, new = _old_and_new(path, generated)
    return "".join(
        difflib.unified_diff(
            old.splitlines(keepends=True),
            new.splitlines(keepends=True),
            path.name,
            f"{path.name} (generated)",
        )
    )


def update(path: Path, generated: Mapping[str, str]) -> bool:
    """Updates the generated blocks of a file; returns whether it changed."""
    old, new = _old_and_new(path, generated)
    if new != old:
        write_text(path, new)
    return new != old


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
