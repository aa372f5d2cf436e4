"""How many problems runs train and validate on, as far as this is known before the data is read."""

from typing import Literal

from troll.experiment.settings import Size, TaskSettings
from troll.tasks.datasets.catalogue import DATA_SETS
from troll.tasks.datasets.task import HELD_OUT
from troll.tasks.types import Split


def train_problems(name: str, task: TaskSettings) -> int | None:
    """Returns the number of training problems of a task; None if it is unknown."""
    count = _problems(name, "train", task.train)
    held_out = task.train == "all" and task.validation and not _has_validation(name)
    return count - HELD_OUT if count and held_out else count


def validation_responses(name: str, task: TaskSettings) -> int:
    """Returns the responses of one validation of a task; data sets of unknown size count as empty."""
    sizes = [_problems(suite, "test", size) for suite, size in task.validate_on.items()]
    taken = task.validation == "all" and not _has_validation(name)
    sizes.append(HELD_OUT if taken else _problems(name, "validation", task.validation))
    return sum(size or 0 for size in sizes)


def _has_validation(name: str) -> bool:
    return name in DATA_SETS and "validation" in DATA_SETS[name].parts


def _problems(name: str, split: Split, size: Size | Literal[0]) -> int | None:
    if size != "all":
        return size
    part = DATA_SETS[name].parts.get(split) if name in DATA_SETS else None
    return None if part is None else part.rows
