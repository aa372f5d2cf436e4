"""What `make results` says at its end: what came out, in at most twelve lines; details are on the page."""

from collections.abc import Sequence
from pathlib import Path

from troll.analysis.claims.looks import UNDECIDED
from troll.analysis.claims.verdicts import ClaimVerdict
from troll.analysis.claims.wording import short, why
from troll.cli.claims_ahead import claims_of, without_runs
from troll.experiment.experiment import Experiment

LINES = 12
_NAMED = 3
"""Undecided claims that a line names."""


def concerning(judged: Sequence[ClaimVerdict], experiment: Experiment) -> list[ClaimVerdict]:
    """The claims that have a verdict, or could get one from this experiment's runs."""
    others = {claim.id for claim in without_runs([one.claim for one in judged], experiment)}
    return [one for one in judged if one.verdict != "not run" or one.claim.id not in others]


def last_screen(
    judged: Sequence[ClaimVerdict],
    replication: Sequence[str],
    *,
    page: Path | None,
    ended: str = "",
    log: str = "",
    lines: int = LINES,
) -> list[str]:
    """The lines of the last screen.

    Args:
        page: where everything is shown; None where it was not made.
        log: where the log is; empty where it is named later.

    Returns:
        Whether it replicated; the claims, decided ones first; how many are decided; what more seeds would
        decide; the page; the log.
    """
    head = [line for line in replication if not line.startswith(" ")][:2]
    decided = sum(map(is_decided, judged))
    count = f"{decided} of {len(judged)} claims decided" if judged else "no claim concerns these runs"
    told = ended if judged else ended.partition("; ")[0]  # nothing was waited for
    tail = [count + (f"; {told}" if told else "")]
    tail += further(judged)
    tail += [f"everything on one page: {page}"] if page else []
    tail += [log] if log else []
    return [*head, *_verdicts(judged, lines - len(head) - len(tail)), *tail]


def is_decided(one: ClaimVerdict) -> bool:
    """Whether a claim has its verdict: by its looks, or, without them, by the verdict itself."""
    return one.verdict not in UNDECIDED if one.seen is None else one.seen.decided


def _verdicts(judged: Sequence[ClaimVerdict], room: int) -> list[str]:
    """A line for each claim; where they are more than fit, the last line counts the others."""
    ordered = sorted(judged, key=lambda one: (one.verdict == "not run", not is_decided(one)))
    shown = ordered if len(ordered) <= room else ordered[: room - 1]
    width = max((len(one.decision.label) for one in shown), default=0)
    lines = [
        f"{one.decision.label:<{width}}  {one.claim.id}: {short(one) if one.decision.settings else why(one)}"
        for one in shown
    ]
    left = len(ordered) - len(shown)
    return lines + ([f"and {left} more, on the page"] if left else [])


def further(judged: Sequence[ClaimVerdict]) -> list[str]:
    """What more minutes, or seeds in the file, would decide, as one line; none where nothing is open."""
    open_ = [one for one in judged if not is_decided(one) and one.decision.settings and not _ended(one)]
    if not open_:
        return []
    ordered = sorted(open_, key=lambda one: (one.decision.seeds is None, one.decision.seeds or 0))
    told = [_needs(one) for one in ordered[:_NAMED]]
    more = len(ordered) - _NAMED
    told += [f"{more} more on the page"] if more > 0 else []
    what = "more minutes" if any(one.seen is not None for one in open_) else "more seeds"
    return [f"{what} might decide: {', '.join(told)}"]


def _ended(one: ClaimVerdict) -> bool:
    """Whether a claim has had all of its looks, or waits for no run."""
    return one.seen is not None and (one.seen.last or not one.seen.missing)


def _needs(one: ClaimVerdict) -> str:
    if one.decision.seeds is None:
        return f"{one.claim.id} (unlikely)"
    lacking = max(one.decision.seeds - min(setting.seeds for setting in one.decision.settings), 1)
    return f"{one.claim.id} (about {lacking} more seed{'' if lacking == 1 else 's'} per setting)"


def last_screen_of(experiment: Experiment, root: Path, *, page: Path | None, lines: int = LINES) -> list[str]:
    """The last screen of an experiment whose seeds are fixed, from its results."""
    from troll.analysis.claims.verdicts import judge
    from troll.analysis.data.replication import replication_of
    from troll.analysis.data.results import read_results

    known = read_results(root)
    judged = judge(claims_of(experiment), known.runs, known.items, known.looks)
    return last_screen(concerning(judged, experiment), replication_of(root), page=page, lines=lines)
