"""Reads and writes ``looks.json``: the further seeds that `make results` added, and why it stopped.

An experiment with ``more_seeds`` has this file beside its results. Its seeds belong to the experiment until
the file is removed, so that every command plans the runs that `make results` planned.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from troll.common.errors import UserError
from troll.common.files import read_json, write_json
from troll.experiment.experiment import Experiment

NAME = "looks.json"


def read_looks(root: Path) -> dict[str, Any]:
    """Reads the file in results/<experiment>; empty if there is none."""
    path = root / NAME
    if not path.exists():
        return {}
    record = read_json(path)
    seeds = record.get("further_seeds") if isinstance(record, dict) else None
    if not isinstance(seeds, dict) or not all(
        isinstance(numbers, list) and all(type(seed) is int and seed >= 0 for seed in numbers)
        for numbers in seeds.values()
    ):
        raise UserError(f"{path}: further_seeds: expected lists of seeds by setting; remove the file")
    return dict(record)


def write_looks(
    root: Path, further_seeds: Mapping[str, Sequence[int]], looks: Sequence[Mapping[str, Any]], ended: str
) -> None:
    """Writes the file; ``ended`` says why no more seeds are added, and is empty as long as they are."""
    seeds_by_setting = {name: sorted(seeds) for name, seeds in sorted(further_seeds.items())}
    write_json(root / NAME, {"looks": list(looks), "ended": ended, "further_seeds": seeds_by_setting})


def with_further_seeds(experiment: Experiment, root: Path) -> Experiment:
    """Returns the experiment with the seeds that `make results` has added, if any."""
    if experiment.more_seeds is None:
        return experiment
    settings = {run.group_id for run in experiment.runs()}
    further = {name: list(seeds) for name, seeds in experiment.further_seeds.items()}
    for name, seeds in read_looks(root).get("further_seeds", {}).items():
        if name in settings:  # the file may be older than the experiment
            further[name] = sorted({*further.get(name, []), *seeds})
    fields = {name: getattr(experiment, name) for name in Experiment.model_fields}
    return Experiment.model_validate(fields | {"further_seeds": further})
