"""Sequential judgement of a claim after every seed, at an overall level of 95 %.

A look with n seeds applies the verdict rule at the level of that look (``troll.analysis.sequential``): the
average and the tests use the level of the look, each setting that of the last look at it. A setting that
shows the claim or its contrary gets no more seeds; the others get another seed until the claim has a verdict
or the seeds are exhausted. Each look is taken once, as soon as all of its seeds are available. The chance of
any false verdict at any look is therefore at most that of a single look at 95 %. The state is a function of
the differences by seed: nothing is stored between looks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from troll.analysis.claims.decision import Decision, PairedDifferences, Side, decide
from troll.analysis.sequential import Looks

UNDECIDED = ("inconclusive", "not run")


@dataclass(frozen=True)
class LookState:
    """Progress of a claim's looks."""

    seeds: int  # at the last look; 0 before the first
    decided: bool  # whether it gave a verdict
    missing: tuple[int, ...] = ()  # indices of the settings that lack seeds for the next look
    last: bool = False  # whether this was the final look


def look_again(
    side: Side, settings: Sequence[PairedDifferences], least_seeds: int, looks: Looks
) -> tuple[Decision, LookState]:
    """The decision of the first look with a verdict, else of the last look, and the progress of the looks."""
    seeds_present = [setting.seeds for setting in settings]
    opened, used = list(range(len(settings))), dict.fromkeys(range(len(settings)), looks.first)
    decision, seen = decide(side, (), least_seeds), 0
    for seeds in range(looks.first, looks.most + 1):
        used |= dict.fromkeys(opened, seeds)
        missing = tuple(index for index in opened if seeds_present[index] < seeds)
        if missing or not settings:
            if settings and not seen:  # no verdict before the first look
                decision = decide(side, settings, max(least_seeds, looks.first))
            return decision, LookState(seen, decided=False, missing=missing)
        at_looks = [
            replace(setting.first(used[index]), level=looks.level_at(used[index]))
            for index, setting in enumerate(settings)
        ]
        decision, seen = decide(side, at_looks, least_seeds, level=looks.level_at(seeds)), seeds
        if decision.verdict not in UNDECIDED:
            return decision, LookState(seeds, decided=True)
        unclear = [
            index
            for index in opened
            if used[index] < least_seeds or not (decision.held[index] or decision.wrong[index])
        ]
        opened = unclear or list(range(len(settings)))
    return decision, LookState(seen, decided=False, last=True)
