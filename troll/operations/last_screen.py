"""The summary that `make results` ends with, in at most twelve lines; details are on the page."""

from collections.abc import Sequence
from pathlib import Path

from troll.analysis.claims.decision import UNDECIDED
from troll.analysis.claims.verdicts import ClaimVerdict, judge
from troll.analysis.claims.wording import short, why
from troll.analysis.data.replication import replication_of
from troll.analysis.data.results import read_results
from troll.experiment.experiment import Experiment
from troll.operations.claims_ahead import claims_of, without_runs

LINES = 12
_NAMED = 3
"""How many undecided claims a line names."""


def concerning(judged: Sequence[ClaimVerdict], experiment: Experiment) -> list[ClaimVerdict]:
    """Returns the claims that have a verdict or could get one from this experiment's runs."""
    others = {claim.id for claim in without_runs([entry.claim for entry in judged], experiment)}
    kept = [entry for entry in judged if not entry.claim.retired]
    return [entry for entry in kept if entry.verdict != "not run" or entry.claim.id not in others]


def last_screen(
    judged: Sequence[ClaimVerdict], replication: Sequence[str], *, page: Path | None, lines: int = LINES
) -> list[str]:
    """Returns the lines of the last screen.

    In order: whether the release was replicated; the claims, decided ones first; how many are decided; what
    more seeds would decide; the page, if it was made.
    """
    head = [line for line in replication if not line.startswith(" ")][:2]
    decided = sum(map(is_decided, judged))
    tail = [f"{decided} of {len(judged)} claims decided" if judged else "no claim concerns these runs"]
    tail += further(judged)
    tail += [f"everything on one page: {page}"] if page else []
    return [*head, *_verdicts(judged, lines - len(head) - len(tail)), *tail]


def is_decided(entry: ClaimVerdict) -> bool:
    """Whether a claim has a verdict."""
    return entry.verdict not in UNDECIDED


def _verdicts(judged: Sequence[ClaimVerdict], room: int) -> list[str]:
    """Returns a line for each claim; if there are more than ``room``, the last line counts the rest."""
    ordered = sorted(judged, key=lambda entry: (entry.verdict == "not run", not is_decided(entry)))
    shown = ordered if len(ordered) <= room else ordered[: room - 1]
    width = max((len(entry.decision.label) for entry in shown), default=0)
    lines = [
        f"{entry.decision.label:<{width}}  {entry.claim.id}: "
        f"{short(entry) if entry.decision.settings else why(entry)}"
        for entry in shown
    ]
    left = len(ordered) - len(shown)
    return lines + ([f"and {left} more, on the page"] if left else [])


def further(judged: Sequence[ClaimVerdict]) -> list[str]:
    """Returns a line that says what more seeds might decide; empty if nothing is open."""
    open_ = [entry for entry in judged if not is_decided(entry) and entry.decision.settings]
    if not open_:
        return []
    ordered = sorted(open_, key=lambda entry: (entry.decision.seeds is None, entry.decision.seeds or 0))
    needs = [_needs(entry) for entry in ordered[:_NAMED]]
    more = len(ordered) - _NAMED
    needs += [f"{more} more on the page"] if more > 0 else []
    return [f"more seeds might decide: {', '.join(needs)}"]


def _needs(entry: ClaimVerdict) -> str:
    if entry.decision.seeds is None:
        return f"{entry.claim.id} (unlikely)"
    missing = max(entry.decision.seeds - min(setting.seeds for setting in entry.decision.settings), 1)
    return f"{entry.claim.id} (about {missing} more seed{'' if missing == 1 else 's'} per setting)"


def verdicts(experiment: Experiment, root: Path) -> list[ClaimVerdict]:
    """Judges an experiment's claims by its current tables."""
    known = read_results(root)
    return judge(claims_of(experiment), known.runs, known.items)


def last_screen_of(experiment: Experiment, root: Path, *, page: Path | None, lines: int = LINES) -> list[str]:
    """Returns the last screen of an experiment, from its results."""
    judged = concerning(verdicts(experiment, root), experiment)
    return last_screen(judged, replication_of(root), page=page, lines=lines)
