"""Tasks by name."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from troll.common.errors import UserError, unknown
from troll.tasks import testbed
from troll.tasks.datasets.task import TASKS
from troll.tasks.types import Task


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
