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
from troll.analysis.data.provenance import made_from_commits
from troll.analysis.data.summaries import BASELINE, cells, difference
from troll.analysis.data.tidy import BASE
from troll.analysis.leaderboard.protocol import early_in_words
from troll.analysis.render.formats import (
    Style,
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
_SIGNIFICANT = 0.05
_FINDINGS = 4
"""Number of the testbed's claims in the README; the benchmark shows more."""
_TOP = 5
"""Number of the leaderboard's rules in the README, for each task."""


def blocks(
    main: pd.DataFrame,
    items: pd.DataFrame,
    *,
    judged: Sequence[ClaimVerdict] = (),
    family: pd.DataFrame | None = None,
    runs: pd.DataFrame | None = None,
    board: pd.DataFrame | None = None,
    waiting: int = 0,
    early: Mapping[str, float] | None = None,
    benchmark: Sequence[ClaimVerdict] = (),
    others: Sequence[ClaimVerdict] = (),
    places: Mapping[tuple[str, str], tuple[int, int]] | None = None,
    method: str = "troll",
    baseline: str = BASELINE,
) -> dict[str, str]:
    """The generated blocks of the README and docs/findings.md: Markdown by name.

    ``early`` are rules with trials chosen before they ended, with the share of completed optimiser steps;
    ``benchmark`` are the verdicts shown with the board; ``others`` are verdicts of all other experiments,
    which are only counted, together with those ``judged``.
    """
    if family is not None:
        main = read_in_family(main, family)
    return {
        "findings": "\n".join(findings(judged, _FINDINGS, others)) + "\n",
        "board": top_of(board, waiting, early, benchmark, method, places) if board is not None else "",
        "verdicts": to_short_markdown(judged),
        "results-table": to_markdown(comparison_table(main, method=method, baseline=baseline)),
        "results-sentences": "\n".join(sentences(main, items, method=method, baseline=baseline)) + "\n",
        "results-full-table": to_markdown(main),
        "provenance": "\n".join(provenance(runs) if runs is not None else []) + "\n",
    }


def top_of(
    board: pd.DataFrame,
    waiting: int = 0,
    early: Mapping[str, float] | None = None,
    benchmark: Sequence[ClaimVerdict] = (),
    method: str = "troll",
    places: Mapping[tuple[str, str], tuple[int, int]] | None = None,
) -> str:
    """The leaderboard's results for a method, and a table of each task's best rules, method and baseline."""
    tasks = [(str(task), rows) for task, rows in board.groupby("task", sort=False)]
    lines = [_tuned(task, rows, method) for task, rows in tasks if method in set(rows["trust_region"])]
    decided = [line for line in findings(benchmark)[:-1] if line]
    parts = [_best_of(task, rows, method, places or {}) for task, rows in tasks]
    ranked = board["trust_region"].nunique()
    which = f"All {ranked} rules that have results"
    if ranked > _TOP:
        always = board["difference"].isna() | (board["trust_region"] == method)
        named = listed(sorted(board.loc[always, "trust_region"].unique(), key=lambda name: name != method))
        which = f"The first {_TOP} of {ranked} rules, {named} in any case"
    others = f" {ranked} of {ranked + waiting} rules of the protocol have results." if waiting else ""
    early = {name: share for name, share in (early or {}).items() if name in {*board["trust_region"]}}
    mistake = (
        f" **{early_in_words(early, ranked)}, by mistake** "
        "([how](#how-trials-are-chosen)); this tuning is to be repeated."
        if early
        else ""
    )
    ranges = " Places in brackets: 95 % of 10,000 draws of the seeds with replacement." if places else ""
    note = (
        f"{which}; each was tuned with the same number of trials and then run on fresh seeds. "
        "Δ is the difference from the tuned baseline, paired by seed, with an interval of its own; p is "
        f"corrected by Holm for all differences of the board.{ranges}{mistake}{others} The whole board: "
        "[`results/released/leaderboard/board.md`](../results/released/leaderboard/board.md)."
    )
    return "\n".join([*lines, *decided, "", *parts, note]) + "\n"


def _tuned(task: str, rows: pd.DataFrame, method: str) -> str:
    """A sentence on the difference between a method and the baseline, both tuned, on a task."""
    row = rows[rows["trust_region"] == method].iloc[0]
    baseline = rows[rows["difference"].isna()].iloc[0]
    p, side = float(row["p_holm"]), "higher" if row["difference"] > 0 else "lower"
    reading = f"{method} is {side}" if p < _SIGNIFICANT else "no clear difference"
    corrected = f" (p = {significant(p)} after Holm's correction over the board)" if p == p else ""
    return (
        f"- Both tuned, on {task}: {method} ends at {percent(row['pass@1'])} %, "
        f"{baseline['trust_region']} at {percent(baseline['pass@1'])} %, "
        f"{points(row['difference'])} points {bracketed(row, 'difference')} over {int(row['seeds'])} seeds; "
        f"**{reading}**{corrected}."
    )


def _best_of(
    task: str, rows: pd.DataFrame, method: str, places: Mapping[tuple[str, str], tuple[int, int]]
) -> str:
    """A table of the best rules of a task, and in any case of a method and the baseline, with their ranks."""
    rows = rows.reset_index(drop=True)
    # The baseline's row has no difference.
    always = rows["difference"].isna() | (rows["trust_region"] == method)
    top = rows[(rows.index < _TOP) | always].copy()
    ranks = [str(place) for place in top.index + 1]
    for index, name in enumerate(top["trust_region"]):
        if (task, name) in places:
            low, high = places[task, name]
            ranks[index] += f" ({low} to {high})" if high > low else f" ({low})"
    top.insert(0, "place", ranks)
    top["task"] = task
    columns = ["task", "place", "trust_region", "seeds", "pass@1", "difference", "p_holm"]
    columns += [f"{name}_{end}" for name in ("pass@1", "difference") for end in ("low", "high")]
    best = top[[name for name in columns if name in top]]
    best.attrs["styles"] = {"place": Style("Place"), "pass@1": Style("Test pass@1 (%)", percent)}
    return to_markdown(best)


def provenance(runs: pd.DataFrame) -> list[str]:
    """Commits, time and memory of each experiment's runs, as a Markdown list."""
    trained = runs[runs["trust_region"] != BASE]
    return [
        f"- `results/released/{name}`: {_made(rows)}; {_took(rows)}."
        for name, rows in trained.groupby(trained["experiment"].astype(str), sort=False)
    ]


def _made(rows: pd.DataFrame) -> str:
    commits = made_from_commits(rows)
    parts = []
    for commit, group in commits.groupby("git_commit"):
        at = f"commit `{str(commit)[:7]}`" if commit else "no known commit"
        changed = " (with changes that were not committed)" if group["changed"].iloc[0] else ""
        parts.append(f"{len(group)} at {at}{changed}")
    return f"{counted(len(commits), 'run')}: {listed(parts)}"


def _took(rows: pd.DataFrame) -> str:
    """Time and memory of training from the manifests."""
    values = rows[rows["source"] == "manifest"].groupby("metric", observed=True)["value"]
    seconds = values.get_group("wall_s") if "wall_s" in values.groups else pd.Series(dtype=float)
    text = f"{seconds.sum() / 3600:.1f} hours of training, {seconds.mean():.0f} seconds a run"
    if "peak_gib" in values.groups:
        text += f", the largest process {values.get_group('peak_gib').max():.2f} GiB"
    return text


def sentences(
    main: pd.DataFrame, items: pd.DataFrame, *, method: str = "troll", baseline: str = BASELINE
) -> list[str]:
    """Sentences derived from the main table, as a Markdown list.

    The number of settings by reading, the range of differences by condition with KL, the aggregate over the
    settings of a condition, methods that end below or not clearly above the base model, and a warning about
    few seeds.
    """
    table = comparison_table(main, method=method, baseline=baseline)
    table = table if len(table) else pd.DataFrame({"difference": [], "condition": [], "reading": []})
    compared = table.dropna(subset=["difference"])
    if compared.empty:
        return [f"- No comparison of {method} with {baseline} has been run."]
    lines = [
        _overall(compared, method, baseline),
        *(_condition(str(name), rows, method, baseline) for name, rows in compared.groupby("condition")),
        *_together(items, method, baseline),
        *_against_base(items, compared, (baseline, method)),
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


def _overall(compared: pd.DataFrame, method: str, baseline: str) -> str:
    counts = [(reading, int((compared["reading"] == reading).sum())) for reading in _ORDER]
    readings = ", ".join(f"{reading} in {count}" for reading, count in counts if count)
    return (
        f"- Test pass@1 of {method} against {baseline} in {counted(len(compared), 'setting')} "
        f"(task × condition × estimator): {readings}."
    )


def _condition(condition: str, rows: pd.DataFrame, method: str, baseline: str) -> str:
    differences = rows["difference"]
    text = f"- **{condition}**: {_difference(rows.iloc[int(differences.argmax())])}"
    if len(rows) > 1:
        text += f" at the most and {_difference(rows.iloc[int(differences.argmin())])} at the least"
    old, new = rows["baseline_late_kl"].mean(), rows["late_kl"].mean()
    if old == old and new == new:
        text += (
            f"; late KL to the old policy {significant(new)} ({method}) and {significant(old)} ({baseline})"
        )
    return text + "."


def _together(items: pd.DataFrame, method: str, baseline: str) -> Iterator[str]:
    """Sentences on all settings of a condition together, if there are several."""
    table = aggregate_table(items, baseline=baseline)
    for _, row in table.iterrows():
        if row["trust_region"] == method and row["settings"] > 1:
            yield (
                f"- All {row['settings']} settings of **{row['condition']}** together, on the way from the "
                f"base model (0 %) to every sample right (100 %): interquartile mean {_share(row, 'iqm')} % "
                f"of {method} against {_share(row, 'iqm_baseline')} % of {baseline}; a run of {method} ends "
                f"above one of {baseline} with a chance of {_share(row, 'improvement')} %."
            )


def _share(row: "pd.Series[Any]", name: str) -> str:
    return f"{percent(row[name])} {bracketed(row, name, percent)}"


def _difference(row: "pd.Series[Any]") -> str:
    return (
        f"{points(row['difference'])} points {bracketed(row, 'difference')} on {row['task']} with "
        f"{row['estimator']} ({percent(row['method'])} % against {percent(row['baseline'])} %, "
        f"base {percent(row['base'])} %)"
    )


def _against_base(items: pd.DataFrame, compared: pd.DataFrame, methods: tuple[str, ...]) -> Iterator[str]:
    """Sentences on methods that did not end clearly above the base model."""
    for name in methods:
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
    """The tables that a page includes by file name, by these names."""
    names = [match["name"] for line in text.splitlines() if (match := _OPEN.match(line.strip()))]
    return {name: _section(page.parent, name) for name in names if ".md" in name}


def _section(directory: Path, name: str) -> str:
    """A file's text, or with ``page.md#the-heading`` the section below that heading."""
    file, _, anchor = name.partition("#")
    text = _read(directory / file)
    if not anchor:
        return text
    for heading, body in re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL):
        if re.sub(r"[^\w-]+", "-", heading.lower()) == anchor:
            return f"{_FOLDED.sub('', body).strip()}\n"
    raise UserError(f"{directory / file}: no heading #{anchor}")


def _old_and_new(path: Path, generated: Mapping[str, str]) -> tuple[str, str]:
    old = _read(path)
    return old, render(old, {**generated, **included(old, path)}, path.name)


def check(path: Path, generated: Mapping[str, str]) -> str:
    """A unified diff from a file to its generated version; empty if it is up to date."""
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
