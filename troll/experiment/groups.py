"""The runs of some of an experiment's groups."""

from collections.abc import Sequence

from troll.common.errors import UserError
from troll.experiment.experiment import Experiment, Run


def runs_of(experiment: Experiment, groups: Sequence[str]) -> list[Run]:
    """The runs of these groups, each once; of none given, all runs."""
    groups_by_name = experiment.groups()
    selected: dict[Run, None] = {}
    for group in groups:
        if group not in groups_by_name:
            valid = ", ".join(groups_by_name) or "none, no block has a group"
            raise UserError(f"experiment {experiment.experiment} has no group {group!r}; valid: {valid}")
        selected.update(dict.fromkeys(groups_by_name[group]))
    return list(selected) if groups else experiment.runs()
