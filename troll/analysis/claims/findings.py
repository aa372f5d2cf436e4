"""The claims that are decided, in a sentence each: a summary for a reader with one minute."""

import itertools
from collections.abc import Sequence

from troll.analysis.claims.rule import VERDICTS
from troll.analysis.claims.verdicts import ClaimVerdict
from troll.analysis.claims.wording import both_below, collapsed, label, levels, on_average, span


def findings(judged: Sequence[ClaimVerdict], most: int = 6, also: Sequence[ClaimVerdict] = ()) -> list[str]:
    """The first decided claims as a Markdown list, then how many claims have which verdict.

    They are taken by rule, whatever they say: of the claims that are supported, whose contrary holds, that
    are not shown, and that depend on something, in turn the first one, then the second, each in the order of
    the ledger. So none of these kinds is left out for another.
    """
    with_runs = [entry for entry in judged if entry.verdict != "not run"]
    kinds = [[entry for entry in with_runs if entry.verdict.startswith(kind)] for kind in _KINDS]
    chosen = [entry for turn in itertools.zip_longest(*kinds) for entry in turn if entry is not None]
    lines = [f"- {entry.claim.sentence}: **{label(entry)}** ({_evidence(entry)})." for entry in chosen[:most]]
    counted = [*judged, *also]
    told = [entry for entry in counted if entry.verdict != "not run"]
    return [*lines, *([""] if lines else []), _closing(len(counted), told)]


_KINDS = ("supported", "the contrary holds", "not shown", "depends")


def _evidence(entry: ClaimVerdict) -> str:
    """The average with its interval, or the span where there is no average; and of how many settings.

    Where a claim is not shown, settings that show the contrary come first: they are what speaks against it.
    """
    count, wrong = len(entry.decision.settings), sum(entry.decision.wrong)
    told = on_average(entry) or span(entry)
    told = levels(entry, most=3) if entry.verdict == "depends" else told
    settings = f"{count} setting{'' if count == 1 else 's'}"
    base = f"; {both_below(entry)}" if both_below(entry) else ""
    if not wrong or entry.verdict != "not shown":
        return f"{told}, {settings}{base}"
    held, fallen = sum(entry.decision.held), f", {collapsed(entry)}" if collapsed(entry) else ""
    return (
        f"the contrary is shown in {wrong} of {settings}{fallen}, the claim in {held or 'none'}; {told}{base}"
    )


def _closing(count: int, with_runs: Sequence[ClaimVerdict]) -> str:
    if not with_runs:
        return f"None of {_claims(count)} has runs."
    counts = {name: sum(entry.verdict == name for entry in with_runs) for name in VERDICTS}
    told = []
    for name, number in counts.items():
        word = "depend" + "s" * (number == 1) + " on the setting" if name == "depends" else name
        word = "where the contrary holds" if name == "the contrary holds" else word
        if number:
            told.append(f"{number} {word}")
    left = count - len(with_runs)
    more = (
        f" {left} further claim{'s' * (left != 1)} {'have' if left != 1 else 'has'} no runs yet."
        if left
        else ""
    )
    return f"Of {_claims(len(with_runs))} with runs: {', '.join(told)}.{more}"


def _claims(count: int) -> str:
    return f"{count} claim{'' if count == 1 else 's'}"
