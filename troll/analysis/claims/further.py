"""The runs that the next looks at undecided claims need."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from troll.analysis.claims.decision import PairedDifferences
from troll.analysis.claims.verdicts import ClaimVerdict
from troll.analysis.data.tidy import BASE


@dataclass(frozen=True)
class NextLook:
    """The runs that the next look at a claim lacks."""

    claim: str
    runs: tuple[tuple[str, int], ...]  # groups of runs (``Run.group_id``) and seeds
    # seeds in each setting that would decide with a chance of 80 %; None if no number would
    likely: int | None


def next_looks(judged: Sequence[ClaimVerdict], seeds: Sequence[int]) -> list[NextLook]:
    """The next looks that lack seeds, sorted by the number of seeds that would probably decide the claim.

    Claims that no number of seeds would decide with a chance of 80 % come last, but are not left out, because
    predictions from few seeds are poor.
    """
    pending = []
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
        pending.append(NextLook(entry.claim.id, tuple(runs), entry.decision.seeds))
    return sorted(pending, key=lambda look: (look.likely is None, look.likely or 0))


def _lacking(setting: PairedDifferences, seeds: Sequence[int], number: int) -> list[int]:
    """Which of the first ``number`` seeds a setting lacks; after pausing it may lack several."""
    present = setting.seed_numbers or range(setting.seeds)
    return [seed for rank in range(1, number + 1) if (seed := nth_seed(seeds, rank)) not in present]


def nth_seed(seeds: Sequence[int], number: int) -> int:
    """The seed of this rank: first those of the file, then consecutive numbers after the largest."""
    ordered = sorted(set(seeds))
    return ordered[number - 1] if number <= len(ordered) else ordered[-1] + number - len(ordered)


def paths_of(setting: PairedDifferences) -> list[str]:
    """The groups of runs that a setting of a claim compares."""
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
    looks: Sequence[NextLook], seconds: Mapping[tuple[str, int], float], left: float
) -> list[tuple[str, int]]:
    """The runs that fit into the ``left`` seconds, in the order of the looks; a look's runs are not split."""
    chosen: dict[tuple[str, int], None] = {}
    for look in looks:
        new = [run for run in look.runs if run not in chosen]
        cost = sum(seconds[run] for run in new)
        if cost <= left:
            chosen |= dict.fromkeys(new)
            left -= cost
    return list(chosen)


def look_record(judged: Sequence[ClaimVerdict], minutes: float, runs: int) -> dict[str, Any]:
    """The record of one look at all claims, for looks.json."""
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
