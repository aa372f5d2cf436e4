"""Which seeds would decide: the runs that undecided claims wait for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from troll.analysis.claims.rule import PairedDifferences
from troll.analysis.claims.verdicts import ClaimVerdict
from troll.analysis.data.tidy import BASE


@dataclass(frozen=True)
class NextLook:
    """What the next look at a claim lacks."""

    claim: str
    runs: tuple[tuple[str, int], ...]  # groups of runs (``Run.group_id``) and seeds
    # seeds in each setting that would decide with a chance of 80 %; None where no number of them would
    likely: int | None


def next_looks(judged: Sequence[ClaimVerdict], seeds: Sequence[int]) -> list[NextLook]:
    """The claims whose next look lacks seeds, those first that will probably be decided soonest.

    Those come last that no number of seeds would decide with a chance of 80 %: a few seeds predict badly.
    """
    wants = []
    for entry in judged:
        if entry.seen is None or entry.seen.decided or not entry.seen.missing:
            continue
        number = max(entry.looks.first if entry.looks else 0, entry.seen.seeds + 1)
        settings = [entry.decision.settings[index] for index in entry.seen.missing]
        runs = dict.fromkeys(
            (path, seed)
            for setting in settings
            for seed in _lacking(setting, seeds, number)
            for path in paths_of(setting)
        )
        wants.append(NextLook(entry.claim.id, tuple(runs), entry.decision.seeds))
    return sorted(wants, key=lambda want: (want.likely is None, want.likely or 0))


def _lacking(setting: PairedDifferences, seeds: Sequence[int], number: int) -> list[int]:
    """The seeds that a setting lacks of the first so many; one that was left as it was may lack several."""
    present = setting.seed_numbers or range(setting.seeds)
    return [seed for rank in range(1, number + 1) if (seed := nth_seed(seeds, rank)) not in present]


def nth_seed(seeds: Sequence[int], number: int) -> int:
    """The seed of this rank: those of the file, then counting on."""
    ordered = sorted(set(seeds))
    return ordered[number - 1] if number <= len(ordered) else ordered[-1] + number - len(ordered)


def paths_of(setting: PairedDifferences) -> list[str]:
    """The settings of runs that a setting of a claim compares."""
    names = setting.coordinates
    methods = [names["method"]]
    if setting.against not in ("", BASE):
        methods.append(setting.against)
    return [
        f"{names['model']}/{names['task']}/{method}/{names['estimator']}/{condition}"
        for condition in setting.conditions or (names["condition"],)
        for method in methods
    ]


def affordable(
    wants: Sequence[NextLook], seconds: Mapping[tuple[str, int], float], left: float
) -> list[tuple[str, int]]:
    """The runs of the claims that fit into the time left; all runs of a look, or none."""
    chosen: dict[tuple[str, int], None] = {}
    for want in wants:
        new = [run for run in want.runs if run not in chosen]
        cost = sum(seconds[run] for run in new)
        if cost <= left:
            chosen |= dict.fromkeys(new)
            left -= cost
    return list(chosen)


def look_record(judged: Sequence[ClaimVerdict], minutes: float, runs: int) -> dict[str, Any]:
    """One look at all claims, for looks.json."""
    claims = {
        entry.claim.id: {
            "verdict": entry.decision.label,
            "seeds": entry.seen.seeds,
            "decided": entry.seen.decided,
        }
        for entry in judged
        if entry.seen is not None and entry.verdict != "not run"
    }
    return {"minutes": round(minutes, 1), "runs": runs, "claims": claims}
