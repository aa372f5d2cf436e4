"""The ledger of verdicts as Markdown, HTML and JSON, and a short list of findings."""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from troll.analysis.claims.decision import VERDICTS
from troll.analysis.claims.verdicts import Claim, ClaimVerdict
from troll.analysis.claims.wording import (
    average,
    both_below,
    collapsed,
    label,
    levels,
    measure,
    on_average,
    show_difference,
    span,
    why,
)
from troll.analysis.data.provenance import DIGESTS
from troll.analysis.render.formats import counted, folded, pipe_row
from troll.analysis.statistics import LEVEL
from troll.common.digests import sha256_of_file
from troll.common.files import atomic_path, write_json

_KINDS = ("supported", "the contrary holds", "not shown", "depends")


def findings(judged: Sequence[ClaimVerdict], most: int = 6, also: Sequence[ClaimVerdict] = ()) -> list[str]:
    """Returns the first decided claims as a Markdown list, then the number of claims by verdict.

    The selection does not depend on content: it takes turns between claims that are supported, whose contrary
    holds, that are not shown and that depend on a coordinate, each in ledger order, so that every kind is
    represented.
    """
    with_runs, _ = _split(judged)
    kinds = [[entry for entry in with_runs if entry.verdict.startswith(kind)] for kind in _KINDS]
    chosen = [entry for turn in itertools.zip_longest(*kinds) for entry in turn if entry is not None]
    lines = [f"- {entry.claim.sentence}: **{label(entry)}** ({_evidence(entry)})." for entry in chosen[:most]]
    return [*lines, *([""] if lines else []), _closing([*judged, *also])]


def _evidence(entry: ClaimVerdict) -> str:
    """Returns the average with its interval, or the span without an average, and the number of settings.

    If a claim is not shown, the settings that show the contrary come first, as they are the evidence.
    """
    count, refuted = len(entry.decision.settings), sum(entry.decision.refuted_in)
    numbers = levels(entry, most=3) if entry.verdict == "depends" else on_average(entry) or span(entry)
    settings = counted(count, "setting")
    base = f"; {both_below(entry)}" if both_below(entry) else ""
    if not refuted or entry.verdict != "not shown":
        return f"{numbers}, {settings}{base}"
    shown = sum(entry.decision.shown_in) or "none"
    fallen = f", {collapsed(entry)}" if collapsed(entry) else ""
    return f"the contrary is shown in {refuted} of {settings}{fallen}, the claim in {shown}; {numbers}{base}"


def _closing(judged: Sequence[ClaimVerdict]) -> str:
    with_runs, rest = _split(judged)
    if not with_runs:
        return f"None of {counted(len(judged), 'claim')} has runs."
    retired = [entry for entry in judged if entry.claim.retired]
    further = counted(len(rest), "further claim")
    more = f" {further} {'has' if len(rest) == 1 else 'have'} no runs yet." if rest else ""
    if retired:
        verb = "is" if len(retired) == 1 else "are"
        more += f" {counted(len(retired), 'retired claim')} {verb} not counted: {_said(retired)}."
    verdicts = f"Of {counted(len(with_runs), 'claim')} with runs: {_said(with_runs)}."
    return f"{verdicts}{_by_chance(len(with_runs))}{more}"


def _said(judged: Sequence[ClaimVerdict]) -> str:
    """Returns the number of claims by verdict as a list."""
    return ", ".join(
        text + " on the setting" * (name == "depends") for name, text in _tallies(judged).items()
    )


def _by_chance(judged: int) -> str:
    """Returns how many verdicts at 95 % are expected to be wrong by chance at most.

    Where seeds collapse, intervals from few seeds cover less (results/released/statistics/coverage.md).
    """
    if judged < 2:
        return ""
    return (
        f" With 95 % intervals, up to {(1 - LEVEL) * judged:.1f} of them are expected to be wrong by chance, "
        "more where seeds collapse."
    )


def _tallies(judged: Sequence[ClaimVerdict]) -> dict[str, str]:
    """Returns the number of claims by verdict, in words; verdicts without claims are left out."""
    counts = {name: sum(entry.verdict == name for entry in judged) for name in VERDICTS}
    words = {"the contrary holds": "where the contrary holds"}
    words |= {} if counts["depends"] == 1 else {"depends": "depend"}
    return {name: f"{number} {words.get(name, name)}" for name, number in counts.items() if number}


def _split(judged: Sequence[ClaimVerdict]) -> tuple[list[ClaimVerdict], list[ClaimVerdict]]:
    """Claims with a verdict, and those without runs; neither includes retired ones."""
    kept = [entry for entry in judged if not entry.claim.retired]
    return [e for e in kept if e.verdict != "not run"], [e for e in kept if e.verdict == "not run"]


def _retired_heading(lines: Sequence[str]) -> str:
    return f"{counted(len(lines), 'claim')} retired, which no count includes"


def _retired(judged: Sequence[ClaimVerdict]) -> list[str]:
    """Returns a line for each retired claim: the reason, and what its runs said."""
    return [
        f"{entry.claim.sentence} (`{entry.claim.id}`): {entry.claim.retired}. Its runs: {entry.verdict}"
        + (f", {numbers}" if (numbers := on_average(entry) or span(entry)) else "")
        for entry in judged
        if entry.claim.retired and entry.verdict != "not run"
    ]


def to_markdown(judged: Sequence[ClaimVerdict]) -> str:
    """Returns the ledger as Markdown: counts, verdicts, their evidence, and the claims without runs."""
    with_runs, _ = _split(judged)
    parts = [_counts(judged)]
    if with_runs:
        rows = [["Claim", "Verdict", "Why", "Source"], ["---"] * 4]
        for entry in with_runs:
            row = [f"{entry.claim.sentence} (`{entry.claim.id}`)", f"**{label(entry)}**", why(entry)]
            rows.append([*row, entry.claim.source])
        parts.append("\n".join(map(pipe_row, rows)))
    parts += _paragraphs(with_runs)
    parts += [f"{heading}:\n\n{text}" for heading, text in _lists(judged)]
    return "\n\n".join(parts) + "\n"


def to_folded_markdown(judged: Sequence[ClaimVerdict]) -> str:
    """Returns the ledger for the complete report: numbers and claims without a verdict are folded."""
    with_runs, _ = _split(judged)
    parts = [_counts(judged), *([_verdict_rows(with_runs)] if with_runs else [])]
    parts += [folded("Numbers", "\n\n".join(_paragraphs(with_runs)))] if with_runs else []
    return "\n\n".join([*parts, *(folded(heading, text) for heading, text in _lists(judged))]) + "\n"


def _counts(judged: Sequence[ClaimVerdict]) -> str:
    kept = [entry for part in _split(judged) for entry in part]
    return f"{counted(len(kept), 'claim')}: {', '.join(_tallies(kept).values())}."


def _verdict_rows(with_runs: Sequence[ClaimVerdict]) -> str:
    rows = [[entry.claim.sentence, f"**{label(entry)}**", why(entry)] for entry in with_runs]
    return "\n".join(map(pipe_row, [["Claim", "Verdict", "Why"], ["---"] * 3, *rows]))


def _paragraphs(with_runs: Sequence[ClaimVerdict]) -> list[str]:
    """Returns the numbers, history and note of each claim with runs, as paragraphs."""
    parts = []
    for entry in with_runs:
        if entry.decision.settings:
            claim = entry.claim
            lines = [*_numbers(entry), *(f"history: {text}" for text in _history(claim))]
            parts += [f"**{claim.id}** ({measure(claim)})", "\n".join(f"- {text}" for text in lines)]
            # A line that begins with a tag would be HTML of the page.
            parts += [re.sub(r"<(?=[A-Za-z/!?])", "&lt;", claim.note)] if claim.note else []
    return parts


def _lists(judged: Sequence[ClaimVerdict]) -> list[tuple[str, str]]:
    """Headings and lists of the claims that are retired, and of those without runs."""
    _, rest = _split(judged)
    lists = []
    if given_up := _retired(judged):
        lists.append((_retired_heading(given_up), given_up))
    if rest:
        heading = f"{counted(len(rest), 'claim')} that these runs cannot judge, and what is missing"
        missing = [f"{entry.claim.sentence} (`{entry.claim.id}`): {_missing(entry)}" for entry in rest]
        lists.append((heading, missing))
    return [(heading, "\n".join(f"- {line}" for line in lines)) for heading, lines in lists]


def _numbers(entry: ClaimVerdict) -> list[str]:
    """Returns a line for each setting, and one for the average."""
    lines = [
        f"{setting.name}: {show_difference(entry.claim, setting.interval())}, "
        f"{counted(setting.seeds, 'seed')}"
        for setting in entry.decision.settings
    ]
    return lines + ([average(entry)] if entry.decision.pooled else [])


def _history(claim: Claim) -> list[str]:
    former = [f"called {' and '.join(claim.aliases)} before"] if claim.aliases else []
    return [*claim.history, *former]


def to_short_markdown(judged: Sequence[ClaimVerdict]) -> str:
    """Returns the verdicts for a README: judged and retired claims, and the number of those not run."""
    with_runs, rest = _split(judged)
    parts = [_verdict_rows(with_runs)] if with_runs else []
    if given_up := _retired(judged):
        parts += [f"{_retired_heading(given_up)}:", "\n".join(f"- {line}" for line in given_up)]
    if rest:
        parts.append(f"{counted(len(rest), 'further claim')}: **not run**.")
    return "\n\n".join(parts) + "\n"


def _missing(entry: ClaimVerdict) -> str:
    """Returns why a claim has no verdict: the missing runs, or why the existing ones do not count."""
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


def write_claims(
    judged: Sequence[ClaimVerdict], runs: pd.DataFrame, inputs: Sequence[Path], stem: Path
) -> list[Path]:
    """Writes ``<stem>.md`` and ``<stem>.json``, which has every number and the inputs' SHA-256."""
    paths = [stem.with_name(stem.name + suffix) for suffix in (".md", ".json")]
    numbers = {
        "inputs": _digests(inputs),
        "numerics": sorted({int(version) for version in runs["numerics"].dropna()}),
        "digests": {
            name: sorted({str(value) for value in runs[f"digest_{name}"]} - {""}) for name in DIGESTS
        },
        "claims": [record(entry) for entry in judged],
    }
    # Both are complete before either is replaced, so that they always belong to the same judgement.
    with atomic_path(paths[0]) as markdown, atomic_path(paths[1]) as ledger:
        markdown.write_text(to_markdown(judged), encoding="utf-8")
        write_json(ledger, numbers)
    return paths


def _digests(paths: Sequence[Path]) -> dict[str, str]:
    """SHA-256 of files by name; a second file of the same name is prefixed with its directory."""
    digests: dict[str, str] = {}
    for path in paths:
        name = f"{path.parent.name}/{path.name}" if path.name in digests else path.name
        digests[name] = sha256_of_file(path)
    return digests


def record(entry: ClaimVerdict) -> dict[str, Any]:
    """Returns a claim's entry in ``claims.json``: the claim, its verdict and every number behind it."""

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
