"""Finds tasks by name and writes their problems to files."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from troll.common.errors import UserError, unknown
from troll.common.files import write_jsonl
from troll.tasks import testbed
from troll.tasks.datasets.task import TASKS, whole_split
from troll.tasks.types import SPLITS, Task

DATA_SEED = 0  # all runs of an experiment share their data, whatever their seeds


def _tasks() -> dict[str, Task]:
    # Imported only here: a module of the testbed may fail to import, and `testbed.NAMES` needs none of them.
    own = {name: import_module(f"{testbed.__name__}.{name}").TASK for name in testbed.NAMES}
    return {**own, **TASKS}


def task_names() -> list[str]:
    """Returns the names of all tasks, the testbed's first."""
    return list(_tasks())


def get_task(name: str) -> Task:
    """Returns the task of this name, or raises `UserError` if there is none."""
    tasks = _tasks()
    if name not in tasks:
        raise UserError(unknown("task", name, tasks))
    return tasks[name]


def check_settings(task: Task, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Checks a task's settings and returns them with defaults filled in."""
    return task.model.completed(f"task {task.name}", settings)


def write_problems(config: Mapping[str, Any], out: Path) -> None:
    """Writes ``<split>.jsonl`` to ``out`` for each split that the config names."""
    task = get_task(config["name"])
    settings = check_settings(task, config.get("settings", {}))
    for split in [name for name in SPLITS if name in config]:
        if config[split] == "all":
            validated = config.get("validation") != 0
            problems = whole_split(task.name, split, settings, validated=validated)
        else:
            problems = task.generate(split, config[split], DATA_SEED, settings)
        write_jsonl(out / f"{split}.jsonl", (problem.as_row() for problem in problems))
