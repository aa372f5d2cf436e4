"""The ledger: all verdicts as Markdown, as HTML and as a file of every number."""

import hashlib
import html
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from troll.analysis.claims.rule import VERDICTS, PairedDifferences
from troll.analysis.claims.verdicts import Claim, ClaimVerdict
from troll.analysis.claims.wording import average, label, looks_of, measure, show_difference, why
from troll.analysis.data.provenance import DIGESTS
from troll.analysis.statistics import LEVEL
from troll.common.files import atomic_path, write_json

_MARKS = {
    "supported everywhere": "✓",
    "supported on average": "✓",
    "depends": "◐",
    "the contrary holds": "✗",
    "not shown": "✗",
    "inconclusive": "?",
}


def counts(judged: Sequence[ClaimVerdict]) -> str:
    """How many claims got which verdict, as one sentence."""
    return f"{_count(judged)}: {', '.join(_tallies(judged).values())}."


def _tallies(judged: Sequence[ClaimVerdict]) -> dict[str, str]:
    """How many claims got each verdict that was given, in words."""
    counts = {name: sum(entry.verdict == name for entry in judged) for name in VERDICTS}
    return {name: f"{number} {_told(name, number)}" for name, number in counts.items() if number}


def _told(verdict: str, number: int) -> str:
    if verdict == "the contrary holds":
        return "where the contrary holds"
    return "depend" if verdict == "depends" and number != 1 else verdict


def _count(judged: Sequence[ClaimVerdict]) -> str:
    return f"{len(judged)} claim{'' if len(judged) == 1 else 's'}"


def _split(judged: Sequence[ClaimVerdict]) -> tuple[list[ClaimVerdict], list[ClaimVerdict]]:
    """Claims with a verdict, and those without runs."""
    return [e for e in judged if e.verdict != "not run"], [e for e in judged if e.verdict == "not run"]


def to_markdown(judged: Sequence[ClaimVerdict]) -> str:
    """The ledger as Markdown: counts, a table of verdicts, what is behind each, and what is not judged."""
    looked = any(entry.seen is not None for entry in judged)
    with_runs, rest = _split(judged)
    heads = ["Claim", "Verdict", "Why", *(["Decided"] if looked else []), "Source"]
    lines = [counts(judged)]
    lines += ["", f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"] if with_runs else []
    for entry in with_runs:
        claim = entry.claim
        row = [f"{claim.sentence} (`{claim.id}`)", f"**{label(entry)}**", why(entry)]
        row += [looks_of(entry)] if looked else []
        lines.append(f"| {' | '.join(map(_cell, [*row, claim.source]))} |")
    for entry in with_runs:
        if entry.decision.settings:
            claim = entry.claim
            lines += ["", f"**{claim.id}** ({measure(claim)})", ""]
            lines += [f"- {text}" for text in _numbers(entry)]
            lines += [f"- history: {text}" for text in _history(claim)]
            if claim.note:
                lines += ["", claim.note]
    if rest:
        lines += ["", f"{_count(rest)} that these runs cannot judge, and what is missing:", ""]
        lines += [f"- {entry.claim.sentence} (`{entry.claim.id}`): {_missing(entry)}" for entry in rest]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Text inside of a table: on one line, no bar in it."""
    return " ".join(text.split()).replace("|", "\\|")


def _numbers(entry: ClaimVerdict) -> list[str]:
    """A line for each setting, and one for the average."""
    lines = [
        f"{setting.name}: {show_difference(entry.claim, setting.interval())}, {_seeds(setting)}"
        f"{_level(setting.level)}"
        for setting in entry.decision.settings
    ]
    return lines + ([average(entry) + _level(_pooled_level(entry))] if entry.decision.pooled else [])


def _pooled_level(entry: ClaimVerdict) -> float:
    looked = entry.looks is not None and entry.seen is not None and entry.seen.seeds
    return entry.looks.level_at(entry.seen.seeds) if looked and entry.looks and entry.seen else LEVEL


def _level(level: float) -> str:
    return "" if level == LEVEL else f" (interval of {100 * level:.1f} %: one of several looks)"


def _history(claim: Claim) -> list[str]:
    former = [f"called {' and '.join(claim.aliases)} before"] if claim.aliases else []
    return [*claim.history, *former]


def to_short_markdown(judged: Sequence[ClaimVerdict]) -> str:
    """The verdicts of a README: claims that were judged, and how many others were not run."""
    with_runs, rest = _split(judged)
    lines = ["| Claim | Verdict | Why |", "| --- | --- | --- |"]
    lines += [
        f"| {_cell(entry.claim.sentence)} | **{label(entry)}** | {_cell(why(entry))} |" for entry in with_runs
    ]
    others = f"{len(rest)} further claim{'' if len(rest) == 1 else 's'}: **not run**."
    return "\n".join([*lines, "", *([others] if rest else [])] if with_runs else [others]) + "\n"


def _seeds(setting: PairedDifferences) -> str:
    return f"{setting.seeds} seed{'' if setting.seeds == 1 else 's'}"


def to_html(judged: Sequence[ClaimVerdict]) -> str:
    """The ledger for the report: counts as tiles, judged claims as a table, the others folded away."""
    with_runs, rest = _split(judged)
    text = ""
    if with_runs:
        tiles = "".join(
            f'<span class="verdict {_css(name)}">{_MARKS[name]} {text}</span>\n'
            for name, text in _tallies(with_runs).items()
        )
        text = f'<p class="tiles">{tiles}</p>\n'
        body = "".join(_row(entry) for entry in with_runs)
        text += f'<table class="ledger">\n<tbody>\n{body}</tbody>\n</table>\n'
    if rest:
        told = [(entry.claim.sentence, _sentence(_missing(entry))) for entry in rest]
        items = "".join(
            f"<li>{html.escape(claimed)}. <em>{html.escape(missing)}</em></li>\n" for claimed, missing in told
        )
        summary = f"{_count(rest)} that these runs cannot judge, and what is missing"
        text += f"<details><summary>{summary}</summary>\n<ul>\n{items}</ul></details>\n"
    return text


def _missing(entry: ClaimVerdict) -> str:
    """What a claim without a verdict lacks: runs where it applies, or why those there do not count."""
    if entry.no_data_reason:
        return entry.no_data_reason
    claim = entry.claim
    methods = [claim.trust_region, *([claim.baseline] if isinstance(claim.baseline, str) else [])]
    places = [
        f"{word} {' or '.join(patterns)}"
        for word, patterns in zip(_PLACES, claim.where.model_dump().values(), strict=True)
        if patterns != ["*"]
    ]
    return " ".join([f"missing: runs of {' and '.join(methods)}", *places])


_PLACES = ("in experiment", "with", "on", "under", "and")
"""Words before the patterns of `Where`: experiment, model, task, condition and estimator."""


def _row(entry: ClaimVerdict) -> str:
    claim = entry.claim
    lines = [*([f"Decided: {looks_of(entry)}"] if entry.seen else []), *_numbers(entry)]
    lines += [*(f"History: {text}" for text in _history(claim))]
    parts = "".join(f"<li>{html.escape(line)}</li>\n" for line in lines)
    note = f"<p>{html.escape(claim.note)}</p>" if claim.note else ""
    word = f"{_MARKS[entry.verdict]} {label(entry)}"
    return (
        f'<tr><td><span class="verdict {_css(entry.verdict)}">{word}</span></td>'
        f"<td><strong>{html.escape(claim.sentence)}.</strong> {html.escape(_sentence(why(entry)))}\n"
        f"<details><summary>Numbers</summary><p>{html.escape(measure(claim))}. Source: "
        f"{html.escape(claim.source)}.</p><ul>\n{parts}</ul>{note}</details></td></tr>\n"
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _css(verdict: str) -> str:
    return verdict.replace(" ", "-")


def write_claims(
    judged: Sequence[ClaimVerdict], runs: pd.DataFrame, inputs: Sequence[Path], stem: Path
) -> list[Path]:
    """Writes ``<stem>.md`` and ``<stem>.json``; the second holds every number and the inputs' SHA-256."""
    paths = [stem.with_name(stem.name + suffix) for suffix in (".md", ".json")]
    numbers = {
        "inputs": _digests(inputs),
        "numerics": sorted({int(version) for version in runs["numerics"].dropna()}),
        "digests": {
            name: sorted({str(value) for value in runs[f"digest_{name}"]} - {""}) for name in DIGESTS
        },
        "claims": [record(entry) for entry in judged],
    }
    # Both are complete before either takes its place: one of them alone would belong to another judgement.
    with atomic_path(paths[0]) as markdown, atomic_path(paths[1]) as ledger:
        markdown.write_text(to_markdown(judged), encoding="utf-8")
        write_json(ledger, numbers)
    return paths


def _digests(paths: Sequence[Path]) -> dict[str, str]:
    """SHA-256 of files by name; of two files of one name, the second has its directory before it."""
    digests: dict[str, str] = {}
    for path in paths:
        name = f"{path.parent.name}/{path.name}" if path.name in digests else path.name
        digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests


def record(entry: ClaimVerdict) -> dict[str, Any]:
    """A claim, its verdict and every number behind it, as ``claims.json`` has them."""

    def number(value: float) -> float | None:
        return value if math.isfinite(value) else None

    decision, pooled = entry.decision, entry.decision.pooled
    return entry.claim.model_dump() | {
        "verdict": decision.label,
        "reason": why(entry),
        "pooled": {name: number(value) for name, value in asdict(pooled).items()} if pooled else None,
        "levels": {name: number(mean) for name, mean in (decision.levels or {}).items()} or None,
        "p_levels": number(decision.p),
        "seeds_needed": decision.seeds,
        **({"look": asdict(entry.seen)} if entry.seen else {}),
        "evidence": [
            {
                "setting": setting.name,
                "seeds": setting.seeds,
                "difference": number(interval.estimate),
                "low": number(interval.low),
                "high": number(interval.high),
                "level": interval.level,
            }
            for setting in decision.settings
            for interval in [setting.interval()]
        ],
    }
