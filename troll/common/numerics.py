"""The version of the numbers: what a run records instead of a digest of the source that made it.

Two runs of one configuration with the same version, on the same kind of processor, are equal to the last bit.
A name, a message or a file that moves changes nothing here; the golden runs of the tests show it. Whoever
changes what a run computes adds an entry to `CHANGES`, and makes the golden runs again.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """One raise of the version."""

    numerics: int  # the version from then on
    what: str  # what is computed otherwise
    rules: tuple[str, ...] | None = None  # trust regions with changed runs; None: all, base models too


CHANGES = (
    Change(1, "the code of ATen, oneDNN and MKL is that for AVX2 on every processor that has it"),
    Change(2, "the coefficient of a KL penalty adapts once in a rollout batch", ("kl-penalty",)),
)
"""Every raise, oldest first. Runs from before the first have version 0."""

NUMERICS: int = CHANGES[-1].numerics
"""The version that this source has."""


def last_change(rule: str) -> int:
    """The version at which a run's numbers (a base model's without a rule) last changed; 0 for never.

    What has the same one comes out alike, whichever versions recorded it.
    """
    return max(_changes(rule), default=0)


def changed_since(numerics: int, rule: str, *, until: int | None = None) -> bool:
    """Whether a run (a base model without a rule) would come out differently at a later version, or now."""
    return any(numerics < change and (until is None or change <= until) for change in _changes(rule))


def _changes(rule: str) -> list[int]:
    return [change.numerics for change in CHANGES if change.rules is None or rule in change.rules]
