"""The version of the numerics, which a run records instead of a digest of its source.

Two runs of one configuration with the same version, on the same kind of processor, are equal to the last bit.
Renaming or moving code does not change the version; the golden runs of the tests verify that the numbers stay
the same. If you change what a run computes, add an entry to `CHANGES` and make the golden runs again
(`make golden`).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """One increase of the version."""

    numerics: int  # the new version
    what: str  # what is computed differently
    rules: tuple[str, ...] | None = None  # affected trust regions; None: all, and base models


CHANGES = (
    Change(1, "ATen, oneDNN and MKL use their AVX2 code on every processor that has AVX2"),
    Change(2, "the coefficient of a KL penalty adapts once per rollout batch", ("kl-penalty",)),
)
"""All increases, oldest first. Runs before the first have version 0."""

NUMERICS: int = CHANGES[-1].numerics
"""The version of this source."""


def last_change(rule: str) -> int:
    """Returns the version that last changed the runs of a rule (base models for ""); 0 if none did.

    Runs with the same last change are equal, even if they record different versions.
    """
    return max(_changes(rule), default=0)


def changed_since(numerics: int, rule: str, *, until: int | None = None) -> bool:
    """Whether a run of a rule (a base model for "") changed between a version and a later one, or now."""
    return any(numerics < change and (until is None or change <= until) for change in _changes(rule))


def _changes(rule: str) -> list[int]:
    return [change.numerics for change in CHANGES if change.rules is None or rule in change.rules]
