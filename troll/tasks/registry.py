"""Tasks by name, and their problems as files."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from troll.common.errors import UserError, unknown
from troll.common.files import write_jsonl
from troll.tasks import testbed
from troll.tasks.datasets.task import TASKS, whole_split
from troll.tasks.types import SPLITS, Task

DATA_SEED = 0  # the data of an experiment are one set, whatever the seeds of its runs


def _tasks() -> dict[str, Task]:
    # Late: a file of the testbed may fail to import, and names alone need none of them.
    own = {name: import_module(f"{testbed.__name__}.{name}").TASK for name in testbed.NAMES}
    return {**own, **TASKS}


def task_names() -> list[str]:
    """The names of all tasks, the testbed's first."""
    return list(_tasks())


def get_task(name: str) -> Task:
    """The task of this name."""
    tasks = _tasks()
    if name not in tasks:
        raise UserError(unknown("task", name, tasks))
    return tasks[name]


def check_settings(task: Task, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Fills in a task's default settings."""
    return task.model.completed(f"task {task.name}", settings)


def write_problems(config: Mapping[str, Any], out: Path) -> None:
    """Writes ``<split>.jsonl`` to ``out`` for each split that the configuration names."""
    task = get_task(config["name"])
    settings = check_settings(task, config.get("settings", {}))
    for split in [name for name in SPLITS if name in config]:
        if config[split] == "all":
            problems = whole_split(task.name, split)
        else:
            problems = task.generate(split, config[split], DATA_SEED, settings)
        write_jsonl(out / f"{split}.jsonl", (problem.as_row() for problem in problems))
