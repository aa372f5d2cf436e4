"""The claims that are decided, in a sentence each: what a reader who has one minute is told."""

from collections.abc import Sequence

from troll.analysis.claims.rule import VERDICTS
from troll.analysis.claims.verdicts import Judged
from troll.analysis.claims.wording import average, span


def findings(judged: Sequence[Judged], most: int = 3) -> list[str]:
    """The first decided claims, and how many claims have which verdict.

    They are taken by rule, whatever they say: first the claims that every setting shows and those that are
    contradicted, then the other decided ones, both in the order of the ledger.

    Args:
        judged: the verdicts.
        most: sentences.

    Returns:
        A Markdown list, an empty line and a closing sentence; only the latter where nothing is decided.
    """
    known = [one for one in judged if one.verdict != "not run"]
    sure = [one for one in known if one.verdict in ("supported everywhere", "contradicted")]
    rest = [one for one in known if one.verdict in ("supported on average", "depends")]
    lines = [
        f"- {one.claim.sentence}: **{one.decision.label}** ({_evidence(one)})."
        for one in [*sure, *rest][:most]
    ]
    return [*lines, *([""] if lines else []), _closing(len(judged), known)]


def _evidence(one: Judged) -> str:
    """The average with its interval, or the span where there is no average; and of how many settings.

    Settings that show the contrary come first: they may be all that a contradicted claim rests on.
    """
    count, wrong = len(one.decision.settings), sum(one.decision.wrong)
    told = average(one).partition(", a further setting")[0] or span(one)
    settings = f"{count} setting{'' if count == 1 else 's'}"
    if not wrong:
        return f"{told}, {settings}"
    held = sum(one.decision.held)
    return f"the contrary is shown in {wrong} of {settings}, the claim in {held or 'none'}; {told}"


def _closing(count: int, known: Sequence[Judged]) -> str:
    if not known:
        return f"None of {_claims(count)} has runs."
    there = {name: sum(one.verdict == name for one in known) for name in VERDICTS}
    told = []
    for name, number in there.items():
        word = "depend" + "s" * (number == 1) + " on the setting" if name == "depends" else name
        if number:
            told.append(f"{number} {word}")
    left = count - len(known)
    more = (
        f" {left} further claim{'s' * (left != 1)} {'have' if left != 1 else 'has'} no runs yet."
        if left
        else ""
    )
    return f"Of {_claims(len(known))} with runs: {', '.join(told)}.{more}"


def _claims(count: int) -> str:
    return f"{count} claim{'' if count == 1 else 's'}"
