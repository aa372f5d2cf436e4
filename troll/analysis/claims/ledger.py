"""The ledger in words: verdicts as Markdown and HTML, with differences in the units a reader expects."""

import hashlib
import html
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from troll.analysis.claims.rule import MOST_SEEDS, VERDICTS, Setting
from troll.analysis.claims.verdicts import Claim, Judged
from troll.analysis.data.divergence import WITHIN
from troll.analysis.data.provenance import DIGESTS
from troll.analysis.render.formats import MINUS, points, probability, significant
from troll.analysis.statistics import LEVEL, Interval
from troll.common.files import write_json, write_text

_SHARES = ("pass@", "drop", "area", "final", "peak", "mean/success", "mean/clip_fraction")
"""Metrics that are shares: their differences are told in percentage points."""
_UNITS = {"kl": " nats", "entropy": " nats", "hours": " h", "peak_gib": " GiB"}
_MARKS = {
    "supported everywhere": "✓",
    "supported on average": "✓",
    "depends": "◐",
    "contradicted": "✗",
    "inconclusive": "?",
    "not run": "–",
}
_WORDS = {"depends": "that depend"}
_NAMED = 4
"""Settings that a reason names one by one; the numbers below have all of them."""


def counts(judged: Sequence[Judged]) -> str:
    """How many claims got which verdict, as one sentence."""
    there = {name: sum(one.verdict == name for one in judged) for name in VERDICTS}
    parts = ", ".join(f"{there[name]} {_WORDS.get(name, name)}" for name in VERDICTS)
    return f"{_count(judged)}: {parts}."


def _count(judged: Sequence[Judged]) -> str:
    return f"{len(judged)} claim{'' if len(judged) == 1 else 's'}"


def ordered(judged: Sequence[Judged]) -> list[Judged]:
    """Claims with a verdict first, those not run last; otherwise in the order of the files."""
    return sorted(judged, key=lambda one: one.verdict == "not run")


def _shown(claim: Claim) -> tuple[Callable[[float], str], str]:
    """How a claim's differences are written, and their unit."""
    if claim.across is not None:
        shares = claim.across.statistic == "slope" and claim.metric.startswith(_SHARES)
        return points if shares else _signed, _unit(claim)
    return (points if claim.relative or claim.metric.startswith(_SHARES) else _signed), _unit(claim)


def span(one: Judged) -> str:
    """The differences behind a verdict in a few words: from the least to the largest setting."""
    if not one.decision.settings:
        return ""
    show, unit = _shown(one.claim)
    effects = sorted(setting.effect for setting in one.decision.settings)
    ends = list(dict.fromkeys((show(effects[0]), show(effects[-1]))))
    return " to ".join(ends) + unit


def why(one: Judged) -> str:
    """The reason of a verdict: the average and what settings say, or what is missing."""
    claim, decision = one.claim, one.decision
    if decision.verdict == "not run":
        equal = " with equal late KL" if claim.at_equal_kl else ""
        return f"no runs of {claim.method} and {_name(claim)}{equal} where the claim applies"
    few = [setting for setting in decision.settings if setting.seeds < claim.least_seeds]
    if few:
        least = min(setting.seeds for setting in few)
        where = f"{_of(len(few), len(decision.settings))}, the claim asks for {claim.least_seeds}"
        return f"{least} seed{'' if least == 1 else 's'} in {where}; {span(one)}"
    parts = [average(one), levels(one)] if decision.verdict == "depends" else [average(one)]
    parts += [_holding(one)]
    alone = decision.pooled is None and decision.verdict != "depends"
    parts += [span(one)] if alone or decision.verdict == "supported everywhere" else []
    parts += [_missing(one)] if decision.verdict == "inconclusive" else []
    return "; ".join(part for part in parts if part)


def average(one: Judged) -> str:
    """The average over settings with its interval and the prediction interval."""
    pooled = one.decision.pooled
    if pooled is None:
        return ""
    show, unit = _shown(one.claim)
    return (
        f"{show(pooled.estimate)} [{show(pooled.low)}, {show(pooled.high)}]{unit} on average, "
        f"a further setting within [{show(pooled.predicted_low)}, {show(pooled.predicted_high)}]"
    )


def levels(one: Judged) -> str:
    """The means at the levels that a verdict depends on."""
    show, unit = _shown(one.claim)
    means = [f"{name} {show(mean)}" for name, mean in (one.decision.levels or {}).items()]
    chance = "" if math.isnan(one.decision.p) else f" (p {_below(probability(one.decision.p))})"
    return f"{', '.join(means)}{unit}{chance}"


def _below(text: str) -> str:
    return text.replace("<", "< ") if text.startswith("<") else f"= {text}"


def _holding(one: Judged) -> str:
    """In how many settings the claim is shown by itself, and in which it is not."""
    decision, settings = one.decision, one.decision.settings
    held, wrong = sum(decision.held), sum(decision.wrong)
    text = f"holds in {'all ' if held == len(settings) > 1 else ''}{_of(held, len(settings))}"
    text += f", shown wrong in {wrong}" if wrong else ""
    if decision.verdict == "supported on average" and held:
        text += f", not shown in {_without(one)}"
    return text


def _without(one: Judged) -> str:
    """The settings that do not show the claim, by whole conditions where all of one do not."""
    settings, held = one.decision.settings, one.decision.held
    left = [setting for setting, flag in zip(settings, held, strict=True) if not flag]
    whole = [
        name
        for name, every in _by_condition(settings).items()
        if len(every) > 1 and every == _by_condition(left).get(name)
    ]
    names = [_all_of(name, len(_by_condition(left)[name])) for name in whole]
    rest = [setting for setting in left if setting.coordinates["condition"] not in whole]
    names += [_short(setting, settings) for setting in rest[:_NAMED]]
    names += [f"{len(rest) - _NAMED} more"] if len(rest) > _NAMED else []
    return ", ".join(names)


def _all_of(condition: str, settings: int) -> str:
    """All settings of a condition, or all lines between two conditions."""
    return f"any of {settings} {f'from {condition}' if ' to ' in condition else f'{condition} ones'}"


def _by_condition(settings: Sequence[Setting]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for setting in settings:
        names.setdefault(setting.coordinates["condition"], []).append(setting.name)
    return names


def _short(setting: Setting, others: Sequence[Setting]) -> str:
    """A setting by the coordinates in which the claim's settings differ."""
    own = [
        value
        for name, value in setting.coordinates.items()
        if len({other.coordinates[name] for other in others}) > 1
    ]
    return " / ".join(own) or setting.name


def _missing(one: Judged) -> str:
    settings, seeds = one.decision.settings, one.decision.seeds
    if seeds is not None:
        there = min(setting.seeds for setting in settings)
        return (
            f"about {seeds - there} more seeds in each setting would decide, if differences stay as they are"
        )
    more = "; more settings might" if len(settings) > 1 else ""
    return f"even {MOST_SEEDS:,} seeds in each setting might not decide{more}"


def _of(held: int, settings: int) -> str:
    if held == settings:
        return f"{settings} setting{'' if settings == 1 else 's'}"
    return f"{held or 'none'} of {settings} setting{'' if settings == 1 else 's'}"


def _name(claim: Claim) -> str:
    return claim.baseline if isinstance(claim.baseline, str) else f"{claim.baseline:g}"


def show_difference(claim: Claim, interval: Interval) -> str:
    """One interval in the unit of the claim's metric, such as "+3.1 [+0.2, +6.0] points"."""
    show, unit = _shown(claim)
    if math.isnan(interval.low):
        return f"{show(interval.estimate)}{unit}, no interval"
    return f"{show(interval.estimate)} [{show(interval.low)}, {show(interval.high)}]{unit}"


def _signed(value: float) -> str:
    text = significant(value)
    return text if text.startswith(MINUS) or value == 0 else f"+{text}"


def measure(claim: Claim) -> str:
    """What a claim's intervals are of, and which side it claims."""
    how = "relative to" if claim.relative else "minus"
    usable = claim.across is not None and claim.across.statistic == "usable"
    shares = claim.metric.startswith(_SHARES) and not usable
    margin = f", margin {(100 if claim.relative or shares else 1) * claim.margin:g}{_unit(claim)}"
    what = claim.metric
    if claim.across is not None:
        what = f"{what} across {claim.across.setting},{_unit(claim)}"
    if claim.across is not None and usable:
        what = (
            f"decades of {claim.across.setting} with {100 * claim.across.share:g} % "
            f"of the best gain in {claim.metric}"
        )
    equal = f", where late KL agrees within {100 * WITHIN:.0f} %" if claim.at_equal_kl else ""
    said = f"{what}, {claim.method} {how} {_name(claim)}{equal}; claimed: {claim.direction}"
    return said + (margin if claim.margin else "")


def _unit(claim: Claim) -> str:
    """The unit of a claim's differences, with the space before it."""
    if claim.relative:
        return " %"
    unit = " points" if claim.metric.startswith(_SHARES) else _UNITS.get(claim.metric, "")
    if claim.across is None:
        return unit
    return " decades" if claim.across.statistic == "usable" else f"{unit} {claim.across.unit}"


def to_markdown(judged: Sequence[Judged]) -> str:
    """The ledger as Markdown: counts, one table, and the intervals behind each verdict."""
    looked = any(one.seen is not None for one in judged)
    heads = ["Claim", "Verdict", "Why", *(["Decided"] if looked else []), "Place"]
    lines = [counts(judged), "", f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for one in ordered(judged):
        claim = one.claim
        row = [f"{claim.sentence} (`{claim.id}`)", f"**{one.decision.label}**", why(one)]
        row += [looks_of(one)] if looked else []
        lines.append(f"| {' | '.join([*row, claim.place])} |")
    for one in judged:
        if one.decision.settings:
            claim = one.claim
            lines += ["", f"**{claim.id}** ({measure(claim)})", ""]
            lines += [f"- {text}" for text in _numbers(one)]
            lines += [f"- history: {text}" for text in _history(claim)]
            if claim.note:
                lines += ["", claim.note]
    return "\n".join(lines) + "\n"


def looks_of(one: Judged) -> str:
    """At which look a claim was decided, or what the next one lacks; a dash where there are no looks."""
    seen, looks = one.seen, one.looks
    if seen is None or looks is None or one.verdict == "not run":
        return "–"
    if seen.decided:
        return f"at {seen.seeds} seeds"
    if seen.last:
        return f"not by {looks.most} seeds"
    lacking = f"lacks a seed more in {_of(len(seen.missing), len(one.decision.settings))}"
    return f"not by {seen.seeds} seeds, {lacking}" if seen.seeds else lacking


def _numbers(one: Judged) -> list[str]:
    """A line for each setting, and one for the average."""
    lines = [
        f"{setting.name}: {show_difference(one.claim, setting.interval())}, {_seeds(setting)}"
        f"{_level(setting.level)}"
        for setting in one.decision.settings
    ]
    return lines + ([average(one) + _level(_pooled_level(one))] if one.decision.pooled else [])


def _pooled_level(one: Judged) -> float:
    known = one.looks is not None and one.seen is not None and one.seen.seeds
    return one.looks.level_at(one.seen.seeds) if known and one.looks and one.seen else LEVEL


def _level(level: float) -> str:
    return "" if level == LEVEL else f" (interval of {100 * level:.1f} %: one of several looks)"


def _history(claim: Claim) -> list[str]:
    former = [f"called {' and '.join(claim.aliases)} before"] if claim.aliases else []
    return [*claim.history, *former]


def to_short_markdown(judged: Sequence[Judged]) -> str:
    """The verdicts of a README: claims that were judged, and how many others were not run."""
    known = [one for one in judged if one.verdict != "not run"]
    lines = ["| Claim | Verdict | Why |", "| --- | --- | --- |"]
    lines += [f"| {one.claim.sentence} | **{one.decision.label}** | {why(one)} |" for one in known]
    left = len(judged) - len(known)
    others = f"{left} further claim{'' if left == 1 else 's'} of the ledger: **not run**."
    return "\n".join([*lines, "", *([others] if left else [])] if known else [others]) + "\n"


def _seeds(setting: Setting) -> str:
    return f"{setting.seeds} seed{'' if setting.seeds == 1 else 's'}"


def to_html(judged: Sequence[Judged]) -> str:
    """The ledger for the report: counts as tiles, judged claims as a table, the others folded away."""
    tiles = "".join(
        f'<span class="verdict {_css(name)}">{_MARKS[name]} '
        f"{sum(one.verdict == name for one in judged)} {_WORDS.get(name, name)}</span>\n"
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
    lines = [*([f"Decided: {looks_of(one)}"] if one.seen else []), *_numbers(one)]
    lines += [*(f"History: {text}" for text in _history(claim))]
    parts = "".join(f"<li>{html.escape(line)}</li>\n" for line in lines)
    note = f"<p>{html.escape(claim.note)}</p>" if claim.note else ""
    word = f"{_MARKS[one.verdict]} {one.decision.label}"
    return (
        f'<tr><td><span class="verdict {_css(one.verdict)}">{word}</span></td>'
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

    decision, pooled = one.decision, one.decision.pooled
    return one.claim.model_dump() | {
        "verdict": decision.label,
        "reason": why(one),
        "pooled": {name: number(value) for name, value in asdict(pooled).items()} if pooled else None,
        "levels": dict(decision.levels) if decision.levels else None,
        "p_levels": number(decision.p),
        "seeds_needed": decision.seeds,
        **({"look": asdict(one.seen)} if one.seen else {}),
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
