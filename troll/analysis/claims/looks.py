"""A claim that is looked at after every seed: the same rule, at levels that add up to one of 95 %.

At a look with n seeds the rule of the verdicts gets the intervals of that look
(``troll.analysis.sequential``): the average and the tests have the level of the look, every setting that of
the last look at it. A setting that shows the claim, or its contrary, is left as it is; the others get another
seed, until the claim has a verdict or the seeds are spent. Each look is taken once, when all of its seeds
are there. So the chance of any false verdict, at any look, is no more than one look at 95 % would have.
All of it is a function of the differences by seed: nothing has to be remembered between looks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from troll.analysis.claims.rule import Decision, PairedDifferences, Side, decide
from troll.analysis.sequential import Looks

UNDECIDED = ("inconclusive", "not run")


@dataclass(frozen=True)
class LookState:
    """How far a claim's looks have come."""

    seeds: int  # at the last look that was taken; 0 if none was
    decided: bool  # whether it gave a verdict
    missing: tuple[int, ...] = ()  # positions of the settings that the next look lacks seeds of
    last: bool = False  # whether no look is left


def look_again(
    side: Side, settings: Sequence[PairedDifferences], least_seeds: int, looks: Looks
) -> tuple[Decision, LookState]:
    """The decision of the first look with a verdict, else of the last, and how far the looks have come."""
    seeds_present = [setting.seeds for setting in settings]
    opened, used = list(range(len(settings))), dict.fromkeys(range(len(settings)), looks.first)
    decision, seen = decide(side, (), least_seeds), 0
    for seeds in range(looks.first, looks.most + 1):
        used |= dict.fromkeys(opened, seeds)
        missing = tuple(index for index in opened if seeds_present[index] < seeds)
        if missing or not settings:
            if settings and not seen:  # before the first look nothing is said
                decision = decide(side, settings, max(least_seeds, looks.first))
            return decision, LookState(seen, decided=False, missing=missing)
        at_looks = [
            replace(setting.first(used[index]), level=looks.level_at(used[index]))
            for index, setting in enumerate(settings)
        ]
        decision, seen = decide(side, at_looks, least_seeds, level=looks.level_at(seeds)), seeds
        if decision.verdict not in UNDECIDED:
            return decision, LookState(seeds, decided=True)
        silent = [
            index
            for index in opened
            if used[index] < least_seeds or not (decision.held[index] or decision.wrong[index])
        ]
        opened = silent or list(range(len(settings)))
    return decision, LookState(seen, decided=False, last=True)
