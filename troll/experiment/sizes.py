"""How many problems a run trains and validates on, as far as this is known before its data is read."""

from troll.experiment.experiment import Experiment, Run
from troll.experiment.settings import Size
from troll.tasks.datasets.catalogue import DATA_SETS
from troll.tasks.types import Split


def problems_of(name: str, split: Split, size: Size) -> int | None:
    """Returns the number of problems of a split; None if all of a data set are asked for, of unknown size."""
    if size != "all":
        return size
    part = DATA_SETS[name].parts.get(split)
    return None if part is None else part.rows


def validation_responses(experiment: Experiment, run: Run) -> int:
    """Returns the responses of one validation of a run; data sets of unknown size count as empty."""
    task = experiment.tasks[run.task]
    sizes = [problems_of(name, "test", size) for name, size in task.validate_on.items()]
    if task.validation:
        sizes.append(problems_of(run.task, "validation", task.validation))
    return sum(size or 0 for size in sizes)
