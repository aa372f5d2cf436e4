"""Formatting and writing of tables: CSV with full numbers, and rounded Markdown, HTML and LaTeX.

A table is a DataFrame of numbers. Columns that belong together are recognised by name: ``x`` with ``x_sd`` is
shown as "x ± sd", with ``x_low`` and ``x_high`` as "x [low, high]". In ``attrs``, ``notes`` is a list of
sentences below the table, ``headings`` renames columns, ``styles`` adds styles by column, and ``quoted``
names columns that do not come from runs and are therefore also shown in rows that are "not run".
"""

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from troll.analysis.metrics import METRICS, SUMMARIES, Show
from troll.common.errors import check_known
from troll.common.files import write_text

MINUS = "\N{MINUS SIGN}"
MISSING = "\N{EN DASH}"
_PARTS = ("_sd", "_low", "_high")
_HIDDEN = ("status", "planned", "mixed")


def percent(value: float) -> str:
    """Returns a share as a percentage with one decimal, without the percent sign."""
    return _signed(f"{100 * value:.1f}")


def points(value: float, digits: int = 1) -> str:
    """Returns a difference of shares in percentage points, with its sign."""
    return _signed(f"{100 * value:+.{digits}f}")


def points_tick(value: float, _: object) -> str:
    """Tick label of a difference of shares, in percentage points."""
    return f"{100 * value:+g}".replace("-", MINUS) if value else "0"


def percent_tick(value: float, _: object) -> str:
    """Tick label of a share, in percent."""
    return f"{100 * value:g}"


def significant(value: float) -> str:
    """Returns a number with three significant digits, or in scientific notation below 0.001."""
    if math.isinf(value):
        return str(value)
    if value == 0:
        return "0"
    if abs(value) >= 1e-3:
        digits = max(0, 2 - math.floor(math.log10(abs(value))))
        return _signed(f"{value:.{digits}f}")
    return _signed(f"{value:.1e}".replace("e-0", "e-"))


def scientific(value: float) -> str:
    """Returns a setting, such as a learning rate, in scientific notation: 3e-5."""
    return np.format_float_scientific(value, trim="-", exp_digits=1)


def probability(value: float) -> str:
    """Returns a p-value with three decimals."""
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def whole(value: float) -> str:
    """Returns a whole number."""
    return _signed(f"{value:.0f}")


def listed(items: Sequence[str]) -> str:
    """Words joined as a list in a sentence: a, b and c."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun in singular or plural: 1 seed, 2 seeds."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def pipe_row(cells: Iterable[str]) -> str:
    """Returns a row of a Markdown pipe table; each cell is put on one line, and its bars are escaped."""
    escaped = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def folded(summary: str, text: str, *, opened: bool = False) -> str:
    """Markdown below a summary, which is plain text; folded unless ``opened``."""
    start = f"<details{' open' * opened}><summary>{html.escape(summary, quote=False)}</summary>"
    return f"{start}\n\n{text.strip()}\n\n</details>"


def bracketed(
    row: "Mapping[str, Any] | pd.Series[Any]", name: str, show: Callable[[float], str] = points
) -> str:
    """Returns the interval of a column in a row, as [low, high]."""
    return f"[{show(row[f'{name}_low'])}, {show(row[f'{name}_high'])}]"


def _signed(text: str) -> str:
    """Returns a number with a minus sign instead of a hyphen, except in the exponent; zero has no sign."""
    if not text.strip("+-0."):
        return text.lstrip("+-")
    return f"{MINUS}{text[1:]}" if text.startswith("-") else text


@dataclass(frozen=True)
class Style:
    """Heading and number format of a column."""

    heading: str
    show: Callable[[float], str] = significant


_SHOW: Mapping[Show, Callable[[float], str]] = {
    "number": significant,
    "percent": percent,
    "whole": whole,
    "five decimals": lambda value: f"{value:.5f}",
}
STYLES: Mapping[str, Style] = {
    "model": Style("Model"),
    "task": Style("Task"),
    "condition": Style("Condition"),
    "estimator": Style("Estimator"),
    "trust_region": Style("Trust region"),
    "seeds": Style("Seeds", whole),
    "official_base": Style("Base, official (%)", percent),
    "official_baseline": Style("Baseline, official (%)", percent),
    "official_method": Style("Method, official (%)", percent),
    "disagreements": Style("Disagreements", whole),
    "base": Style("Base (%)", percent),
    "baseline": Style("Baseline (%)", percent),
    "baseline_auc": Style("Mean height, baseline (%)", percent),
    "method": Style("Method (%)", percent),
    "difference": Style("Δ pass@1 (points)", points),
    "reading": Style("Reading"),
    "p": Style("p", probability),
    "p_holm": Style("p (Holm)", probability),
    **{name: Style(entry.heading, _SHOW[entry.show]) for name, entry in METRICS.items() if entry.heading},
    **{name: Style(entry.heading, _SHOW[entry.show]) for name, entry in SUMMARIES.items() if entry.heading},
}


def table(
    rows: Sequence[Mapping[str, Any]],
    styles: Mapping[str, Style],
    *sentences: str,
    empty: str = "",
    columns: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Returns a table of these rows with its styles and notes; without rows, ``empty`` replaces the notes."""
    frame = pd.DataFrame(rows, columns=None if columns is None else list(columns))
    frame.attrs["styles"] = styles
    frame.attrs["notes"] = [empty] if empty and frame.empty else list(sentences)
    return frame


def heading(frame: pd.DataFrame, name: str) -> str:
    """Returns the heading of a column."""
    return _style(frame, name).heading


def _style(frame: pd.DataFrame, name: str) -> Style:
    styles: Mapping[str, Style] = frame.attrs.get("styles", {})
    renamed = frame.attrs.get("headings", {}).get(name)
    style = styles.get(name) or _default_style(name)
    return replace(style, heading=renamed) if renamed else style


def _default_style(name: str) -> Style:
    if name.startswith("status/"):
        return Style(f"{name.partition('/')[2].capitalize()} (% of samples)", percent)
    if name.startswith("official/pass@"):
        return Style(f"Official {name.partition('/')[2]} (%)", percent)
    if name.startswith("base/pass@"):
        return Style(f"{name.partition('/')[2]}, few tests (%)", percent)
    if name.startswith("pass@"):
        return Style(f"{name} (%)", percent)
    return STYLES.get(name, Style(name))


def shown(frame: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of a table as text; "not run" or "skipped" replaces the first number of a row."""
    names = _visible(frame)
    styles = {name: _style(frame, name) for name in names}
    quoted = frame.attrs.get("quoted", ())
    rows = []
    for _, row in frame.iterrows():
        state = str(row.get("status", "run"))
        cells, status_shown = [], state == "run"
        for name in names:
            value = row[name]
            if isinstance(value, str):
                cells.append(value)
            elif name in quoted:
                cells.append(_cell(row, name, styles[name].show))
            elif name == "seeds":
                cells.append(_seeds(row))
            elif not status_shown:
                cells.append(state)
                status_shown = True
            else:
                cells.append(_cell(row, name, styles[name].show) if state == "run" else MISSING)
        rows.append(cells)
    return [styles[name].heading for name in names], rows


def _seeds(row: "pd.Series[Any]") -> str:
    planned, seeds = row.get("planned"), row["seeds"]
    if pd.isna(seeds):
        return MISSING
    mark = " †" if row.get("mixed", False) else ""
    missing = planned is not None and pd.notna(planned) and planned > seeds
    return f"{seeds} of {planned}{mark}" if missing else f"{seeds}{mark}"


def _cell(row: "pd.Series[Any]", name: str, show: Callable[[float], str]) -> str:
    def number(key: str) -> float:
        value = row.get(key)
        return float(value) if isinstance(value, int | float) else math.nan

    value = number(name)
    if math.isnan(value):
        return MISSING
    text = show(value)
    deviation, low, high = (number(f"{name}{part}") for part in _PARTS)
    if not math.isnan(deviation):
        text += f" ± {_as_precise(deviation, text) if show is significant else show(deviation)}"
    if not math.isnan(low):
        text += f" [{show(low)}, {show(high)}]"
    return text


def _as_precise(value: float, like: str) -> str:
    """Returns the value with as many decimals as the text ``like`` of its mean."""
    if "e" in like:
        return significant(value)
    return f"{value:.{len(like.partition('.')[2])}f}"


def notes(frame: pd.DataFrame) -> list[str]:
    """Returns the sentences below a table: first, as one, what its visible columns mean."""
    explained: Mapping[str, str] = frame.attrs.get("explained", {})
    visible = set(_visible(frame))
    meanings = " ".join(text for name, text in explained.items() if name in visible)
    return [*([meanings] if meanings else []), *map(str, frame.attrs.get("notes", []))]


def to_markdown(frame: pd.DataFrame) -> str:
    """Returns a pipe table with notes; numeric columns are right-aligned."""
    headings, rows = shown(frame)
    if not rows:
        return "\n".join(notes(frame) or ["No runs."]) + "\n"
    rule = ["---:" if right else "---" for right in _numeric(frame)]
    text = "".join(f"{pipe_row(cells)}\n" for cells in (headings, rule, *rows))
    return text + "".join(f"\n{note}\n" for note in notes(frame))


def to_latex(frame: pd.DataFrame) -> str:
    r"""Returns a booktabs tabular with notes; requires ``\usepackage{booktabs}`` and UTF-8 input."""
    headings, rows = shown(frame)
    numeric = _numeric(frame) if rows else [False]
    lines = [r"\begin{tabular}{" + "".join("r" if right else "l" for right in numeric) + "}", r"\toprule"]
    lines += [" & ".join(map(_escape, headings)) + r" \\", r"\midrule"] if rows else [r"no runs \\"]
    for index, row in enumerate(rows):
        if index and row[0] != rows[index - 1][0]:
            lines.append(r"\midrule")
        lines.append(" & ".join(map(_escape, row)) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += ["", *(r"\par\footnotesize " + _escape(note) for note in notes(frame))] if notes(frame) else []
    return "\n".join(lines) + "\n"


def _numeric(frame: pd.DataFrame) -> list[bool]:
    """Returns which visible columns of a non-empty table are numeric and therefore right-aligned."""
    return [not isinstance(frame[name].iloc[0], str) for name in _visible(frame)]


def _visible(frame: pd.DataFrame) -> list[str]:
    hidden = set(_HIDDEN)
    if "model" in frame.columns and frame["model"].nunique() == 1:
        hidden.add("model")
    if {"rule", "trust_region"} <= {*frame.columns} and (frame["rule"] == frame["trust_region"]).all():
        hidden.add("rule")  # every method has the name of its rule
    return [
        str(name)
        for name in frame.columns
        if name not in hidden
        and not (str(name).endswith(_PARTS) and str(name).rpartition("_")[0] in frame.columns)
    ]


_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "$": r"\$",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    MINUS: "$-$",
    MISSING: "--",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "<": r"$<$",
    ">": r"$>$",
}


def _escape(text: str) -> str:
    escaped = "".join(_LATEX.get(character, character) for character in text)
    # A bracket after the end of a row would be parsed as its optional argument.
    return f"{{}}{escaped}" if escaped.startswith("[") else escaped


FORMATS: Mapping[str, tuple[str, Callable[[pd.DataFrame], str]]] = {
    "csv": (".csv", lambda frame: frame.to_csv(index=False, lineterminator="\n")),
    "markdown": (".md", to_markdown),
    "latex": (".tex", to_latex),
}
"""Suffix and writer by format of a table. CSV has full numbers, the other formats round them."""


def write_table(frame: pd.DataFrame, stem: Path, formats: Sequence[str] = ("csv", "markdown")) -> list[Path]:
    """Writes a table as ``<stem>.<suffix>`` in some of `FORMATS`, and returns the paths."""
    check_known("format", formats, FORMATS)
    written = {stem.with_name(stem.name + FORMATS[name][0]): FORMATS[name][1] for name in formats}
    for path, text in written.items():
        write_text(path, text(frame))
    return [*written]
