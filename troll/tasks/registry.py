"""Tasks by name."""

import json
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from troll.errors import UserError
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
    """The task of this name.

    Raises:
        UserError: there is none; the message lists the valid names.
    """
    tasks = _tasks()
    if name not in tasks:
        raise UserError(f"unknown task {name!r}; valid: {', '.join(tasks)}")
    return tasks[name]


def check_settings(task: Task, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Fills in a task's default settings.

    Raises:
        UserError: a setting is unknown or has another type than its default.
    """
    for key, value in settings.items():
        if key not in task.defaults:
            raise UserError(f"task {task.name}: unknown setting {key!r}; valid: {', '.join(task.defaults)}")
        default = task.defaults[key]
        if isinstance(default, list) != isinstance(value, list) or (
            isinstance(default, (int, float)) and not isinstance(value, (int, float))
        ):
            raise UserError(
                f"task {task.name}: setting {key} is {json.dumps(value)}; expected something like "
                f"{json.dumps(default)}"
            )
    return {**task.defaults, **settings}
