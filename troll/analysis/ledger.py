"""The ledger in words: verdicts as Markdown and HTML, with differences in the units a reader expects."""

import hashlib
import html
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from troll.analysis.claims import VERDICTS, Claim, Evidence, Judged
from troll.analysis.formats import MINUS, points, significant
from troll.analysis.provenance import DIGESTS
from troll.files import write_json, write_text

_SHARES = ("pass@", "drop", "area", "final", "peak", "mean/success", "mean/outside")
"""Metrics that are shares: their differences are told in percentage points."""
_UNITS = {"kl": " nats", "entropy": " nats", "hours": " h", "peak_gib": " GiB"}
_MARKS = {"supported": "✓", "contradicted": "✗", "inconclusive": "?", "not run": "–"}


def counts(judged: Sequence[Judged]) -> str:
    """How many claims got which verdict, as one sentence."""
    told = ", ".join(f"{sum(one.verdict == name for one in judged)} {name}" for name in VERDICTS)
    return f"{_count(judged)}: {told}."


def _count(judged: Sequence[Judged]) -> str:
    return f"{len(judged)} claim{'' if len(judged) == 1 else 's'}"


def ordered(judged: Sequence[Judged]) -> list[Judged]:
    """Claims with a verdict first, those not run last; otherwise in the order of the files."""
    return sorted(judged, key=lambda one: one.verdict == "not run")


def _shown(claim: Claim) -> tuple[Callable[[float], str], str]:
    """How a claim's differences are written, and their unit."""
    if claim.relative:
        return points, " %"
    if claim.metric.startswith(_SHARES):
        return points, " points"
    return _signed, _UNITS.get(claim.metric, "")


def span(one: Judged) -> str:
    """The differences behind a verdict in a few words: from the least to the largest setting."""
    if not one.evidence:
        return ""
    show, unit = _shown(one.claim)
    found = sorted(part.interval.estimate for part in one.evidence)
    ends = list(dict.fromkeys((show(found[0]), show(found[-1]))))
    return " to ".join(ends) + unit


def why(one: Judged) -> str:
    """The reason of a verdict with the differences behind it."""
    return "; ".join(part for part in (one.reason, span(one)) if part)


def show_difference(claim: Claim, part: Evidence) -> str:
    """One interval in the unit of the claim's metric, such as "+3.1 [+0.2, +6.0] points"."""
    show, unit = _shown(claim)
    found = part.interval
    if math.isnan(found.low):
        return f"{show(found.estimate)}{unit}, no interval"
    return f"{show(found.estimate)} [{show(found.low)}, {show(found.high)}]{unit}"


def _signed(value: float) -> str:
    text = significant(value)
    return text if text.startswith(MINUS) or value == 0 else f"+{text}"


def measure(claim: Claim) -> str:
    """What a claim's intervals are of, and which side it claims."""
    how = "relative to" if claim.relative else "minus"
    baseline = claim.baseline if isinstance(claim.baseline, str) else f"{claim.baseline:g}"
    scale = 100 if claim.relative or claim.metric.startswith(_SHARES) else 1
    unit = " %" if claim.relative else " points" if scale == 100 else _UNITS.get(claim.metric, "")
    margin = f", margin {scale * claim.margin:g}{unit}" if claim.margin else ""
    return f"{claim.metric}, {claim.method} {how} {baseline}; claimed: {claim.direction}{margin}"


def to_markdown(judged: Sequence[Judged]) -> str:
    """The ledger as Markdown: counts, one table, and the intervals behind each verdict."""
    lines = [counts(judged), "", "| Claim | Verdict | Why | Place |", "| --- | --- | --- | --- |"]
    for one in ordered(judged):
        claim = one.claim
        lines.append(f"| {claim.sentence} (`{claim.id}`) | **{one.verdict}** | {why(one)} | {claim.place} |")
    for one in judged:
        if one.evidence:
            claim = one.claim
            lines += ["", f"**{claim.id}** ({measure(claim)})", ""]
            lines += [
                f"- {part.setting}: {show_difference(claim, part)}, {_seeds(part)}" for part in one.evidence
            ]
            if claim.note:
                lines += ["", claim.note]
    return "\n".join(lines) + "\n"


def to_short_markdown(judged: Sequence[Judged]) -> str:
    """The verdicts of a README: claims that were judged, and how many others were not run."""
    known = [one for one in judged if one.verdict != "not run"]
    lines = ["| Claim | Verdict | Why |", "| --- | --- | --- |"]
    lines += [f"| {one.claim.sentence} | **{one.verdict}** | {why(one)} |" for one in known]
    left = len(judged) - len(known)
    others = f"{left} further claim{'' if left == 1 else 's'} of the ledger: **not run**."
    return "\n".join([*lines, "", *([others] if left else [])] if known else [others]) + "\n"


def _seeds(part: Evidence) -> str:
    return f"{part.seeds} seed{'' if part.seeds == 1 else 's'}"


def to_html(judged: Sequence[Judged]) -> str:
    """The ledger for the report: counts as tiles, judged claims as a table, the others folded away."""
    tiles = "".join(
        f'<span class="verdict {_css(name)}">{_MARKS[name]} '
        f"{sum(one.verdict == name for one in judged)} {name}</span>\n"
        for name in VERDICTS
    )
    known = [one for one in judged if one.verdict != "not run"]
    rest = [one for one in judged if one.verdict == "not run"]
    text = f'<p class="tiles">{tiles}</p>\n'
    if known:
        body = "".join(_row(one) for one in known)
        text += f'<table class="ledger">\n<tbody>\n{body}</tbody>\n</table>\n'
    if rest:
        items = "".join(
            f"<li>{html.escape(one.claim.sentence)} ({html.escape(one.claim.place)})</li>\n" for one in rest
        )
        text += f"<details><summary>{_count(rest)} not run here</summary>\n<ul>\n{items}</ul></details>\n"
    return text


def _row(one: Judged) -> str:
    claim = one.claim
    parts = "".join(
        f"<li>{html.escape(part.setting)}: {html.escape(show_difference(claim, part))}, {_seeds(part)}</li>\n"
        for part in one.evidence
    )
    note = f"<p>{html.escape(claim.note)}</p>" if claim.note else ""
    return (
        f'<tr><td><span class="verdict {_css(one.verdict)}">{_MARKS[one.verdict]} {one.verdict}</span></td>'
        f"<td><strong>{html.escape(claim.sentence)}.</strong> {html.escape(_sentence(why(one)))}\n"
        f"<details><summary>Numbers</summary><p>{html.escape(measure(claim))}. Place: "
        f"{html.escape(claim.place)}.</p><ul>\n{parts}</ul>{note}</details></td></tr>\n"
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _css(verdict: str) -> str:
    return verdict.replace(" ", "-")


def write_claims(
    judged: Sequence[Judged], runs: pd.DataFrame, inputs: Sequence[Path], stem: Path
) -> list[Path]:
    """Writes ``<stem>.md`` and ``<stem>.json``; the second holds every number.

    Args:
        judged: the verdicts.
        runs: the table of metrics behind them, for the digests of what was run.
        inputs: files that the verdicts rest on; their SHA-256 go into the JSON file.
        stem: path without suffix.
    """
    paths = [stem.with_name(stem.name + suffix) for suffix in (".md", ".json")]
    write_text(paths[0], to_markdown(judged))
    write_json(
        paths[1],
        {
            "inputs": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in inputs},
            "digests": {
                name: sorted({str(value) for value in runs[f"digest_{name}"]} - {""}) for name in DIGESTS
            },
            "claims": [_record(one) for one in judged],
        },
    )
    return paths


def _record(one: Judged) -> dict[str, Any]:
    def number(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return one.claim.model_dump() | {
        "verdict": one.verdict,
        "reason": one.reason,
        "evidence": [
            {
                "setting": part.setting,
                "seeds": part.seeds,
                "difference": number(part.interval.estimate),
                "low": number(part.interval.low),
                "high": number(part.interval.high),
                "level": part.interval.level,
            }
            for part in one.evidence
        ],
    }
