"""The runs of some of an experiment's groups."""

from collections.abc import Sequence

from troll.common.errors import UserError
from troll.experiment.experiment import Experiment, Run


def runs_of(experiment: Experiment, groups: Sequence[str]) -> list[Run]:
    """The runs of these groups, each once; of none given, all runs."""
    known = experiment.groups()
    found: dict[Run, None] = {}
    for group in groups:
        if group not in known:
            valid = ", ".join(known) or "none, no block has a group"
            raise UserError(f"experiment {experiment.experiment} has no group {group!r}; valid: {valid}")
        found.update(dict.fromkeys(known[group]))
    return list(found) if groups else experiment.runs()
