"""Numbers in prose are build outputs: blocks between markers of a Markdown file come from the tables.

A block is everything between ``<!-- generated:NAME -->`` and ``<!-- /generated -->``. What a sentence says
about a difference follows from its interval by ``Interval.verdict``; nobody types "better".
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from troll.analysis.aggregates import aggregate_table
from troll.analysis.claims import Judged
from troll.analysis.formats import percent, points, significant, to_markdown
from troll.analysis.ledger import to_short_markdown
from troll.analysis.statistics import Interval
from troll.analysis.summaries import BASELINE, Cell, cells, difference
from troll.analysis.tables import comparison_table
from troll.errors import UserError
from troll.files import write_text

_OPEN = re.compile(r"^<!-- generated:(?P<name>[a-z0-9-]+) -->$")
_CLOSE = "<!-- /generated -->"
_ORDER = ("higher", "lower", "no clear difference", "one seed only")
_FEW_SEEDS = 5


def blocks(
    main: pd.DataFrame,
    items: pd.DataFrame,
    *,
    judged: Sequence[Judged] = (),
    method: str = "troll",
    baseline: str = BASELINE,
) -> dict[str, str]:
    """The generated blocks of a README.

    Args:
        main: the result of ``main_table``.
        items: the table of test problems.
        judged: the verdicts on the claims.
        method: whose results are told.
        baseline: what it is compared with.

    Returns:
        Markdown by name: ``verdicts``, ``results-table`` (a row per setting), ``results-sentences`` and
        ``results-full-table``.
    """
    return {
        "verdicts": to_short_markdown(judged),
        "results-table": to_markdown(comparison_table(main, method=method, baseline=baseline)),
        "results-sentences": "\n".join(sentences(main, items, method=method, baseline=baseline)) + "\n",
        "results-full-table": to_markdown(main),
    }


def sentences(
    main: pd.DataFrame, items: pd.DataFrame, *, method: str = "troll", baseline: str = BASELINE
) -> list[str]:
    """What the main table says, as a Markdown list derived by rule.

    Returns:
        One line per statement: how many settings read higher, lower or unclear, the range of differences by
        condition, all settings of a condition together, which methods end below or not clearly above the
        base model, KL, and what few seeds mean.
    """
    table = comparison_table(main, method=method, baseline=baseline)
    table = table if len(table) else pd.DataFrame({"difference": [], "condition": [], "reading": []})
    known = table.dropna(subset=["difference"])
    if known.empty:
        return [f"- No comparison of {method} with {baseline} has been run."]
    lines = [_overall(known, method, baseline)]
    for condition, rows in known.groupby("condition", sort=True):
        lines.append(_condition(str(condition), rows, method, baseline))
    lines += _together(items, method, baseline)
    lines += _against_base(items, known, (baseline, method))
    missing = len(table) - len(known)
    if missing:
        lines.append(f"- {missing} of {len(table)} comparisons have not been run.")
    seeds = int(known["seeds"].min())
    if seeds < _FEW_SEEDS:
        lines.append(
            f"- {_count(seeds, 'seed')} per setting: the intervals are wide. No clear difference means that "
            "these runs cannot tell, not that the methods are equal."
        )
    return lines


def _overall(known: pd.DataFrame, method: str, baseline: str) -> str:
    counts = [(reading, int((known["reading"] == reading).sum())) for reading in _ORDER]
    told = ", ".join(f"{reading} in {count}" for reading, count in counts if count)
    return (
        f"- Test pass@1 of {method} against {baseline} in {_count(len(known), 'setting')} "
        f"(task × condition × estimator): {told}."
    )


def _condition(condition: str, rows: pd.DataFrame, method: str, baseline: str) -> str:
    best, worst = (
        rows.iloc[int(place)] for place in (rows["difference"].argmax(), rows["difference"].argmin())
    )
    text = f"- **{condition}**: {_difference(best)}"
    if len(rows) > 1:
        text += f" at the most and {_difference(worst)} at the least"
    old, new = rows["baseline_kl"].mean(), rows["kl"].mean()
    if old == old and new == new:
        text += (
            f"; late KL to the old policy {significant(new)} ({method}) and {significant(old)} ({baseline})"
        )
    return text + "."


def _together(items: pd.DataFrame, method: str, baseline: str) -> Iterator[str]:
    """All settings of a condition at once, where there are several."""
    table = aggregate_table(items, baseline=baseline)
    for _, row in table.iterrows():
        if row["trust_region"] == method and row["settings"] > 1:
            yield (
                f"- All {row['settings']} settings of **{row['condition']}** together: interquartile mean "
                f"{_share(row, 'iqm')} % of {method} against {_share(row, 'iqm_baseline')} % of {baseline}; "
                f"a run of {method} ends above one of {baseline} with a chance of "
                f"{_share(row, 'improvement')} %."
            )


def _share(row: "pd.Series[Any]", name: str) -> str:
    low, high = percent(row[f"{name}_low"]), percent(row[f"{name}_high"])
    return f"{percent(row[name])} [{low}, {high}]"


def _difference(row: "pd.Series[str]") -> str:
    low, high = points(float(row["difference_low"])), points(float(row["difference_high"]))
    return (
        f"{points(float(row['difference']))} points [{low}, {high}] on {row['task']} with {row['estimator']} "
        f"({percent(float(row['method']))} % against {percent(float(row['baseline']))} %, "
        f"base {percent(float(row['base']))} %)"
    )


def _against_base(items: pd.DataFrame, known: pd.DataFrame, methods: tuple[str, ...]) -> Iterator[str]:
    """Names the methods that did not end clearly above the base model: the collapses a reader has to know."""
    chosen = [cell for cell in cells(items) if cell.trust_region in methods]
    conditions = sorted(set(known["condition"]))
    for name in methods:
        for condition in conditions:
            found = [
                interval
                for cell in chosen
                if cell.trust_region == name and cell.condition == condition
                for interval in [_to_base(items, cell)]
                if interval is not None
            ]
            below = sum(interval.verdict() == "lower" for interval in found)
            unclear = sum(interval.verdict() == "no clear difference" for interval in found)
            if below or unclear:
                parts = [f"below it in {below}"] if below else []
                parts += [f"not clearly different from it in {unclear}"] if unclear else []
                yield (
                    f"- Against the base model, {name} under {condition} ends {' and '.join(parts)} "
                    f"of {_count(len(found), 'setting')}."
                )


def _to_base(items: pd.DataFrame, cell: Cell) -> Interval | None:
    return difference(items, cell, cell.base())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def render(text: str, generated: Mapping[str, str], name: str = "README.md") -> str:
    """Replaces the blocks of a Markdown text.

    Args:
        text: the whole file.
        generated: Markdown by block name.
        name: of the file, for messages.

    Returns:
        The text with new blocks; everything else is untouched.

    Raises:
        UserError: a marker names no known block, is not closed, or closes nothing.
    """
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
                raise UserError(f"{name}:{number}: no generated block {match['name']!r}; there are {valid}")
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


def check(path: Path, generated: Mapping[str, str]) -> str:
    """The difference between a file and what it should be, as a unified diff; empty when there is none."""
    old = _read(path)
    new = render(old, generated, path.name)
    return "".join(
        difflib.unified_diff(
            old.splitlines(keepends=True),
            new.splitlines(keepends=True),
            path.name,
            f"{path.name} (generated)",
        )
    )


def update(path: Path, generated: Mapping[str, str]) -> bool:
    """Writes the blocks into a file; returns whether that changed it."""
    old = _read(path)
    new = render(old, generated, path.name)
    if new != old:
        write_text(path, new)
    return new != old


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
