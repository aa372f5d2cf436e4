"""Tasks by name."""

import json
import math
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
    """The task of this name.

    Raises:
        UserError: there is none; the message lists the valid names.
    """
    tasks = _tasks()
    if name not in tasks:
        raise UserError(unknown("task", name, tasks))
    return tasks[name]


def check_settings(task: Task, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Fills in a task's default settings.

    Raises:
        UserError: a setting is unknown, has another type than its default, or is out of its range.
    """
    for key, value in settings.items():
        if key not in task.defaults:
            raise UserError(f"task {task.name}: {unknown('setting', key, task.defaults)}")
        default = task.defaults[key]
        if not _alike(value, default):
            raise UserError(
                f"task {task.name}: setting {key} is {value!r}; expected something like {json.dumps(default)}"
            )
        low, high = task.ranges.get(key, (0, 1) if key in task.shares else (-math.inf, math.inf))
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, int | float) and not low <= item <= high:
                raise UserError(f"task {task.name}: setting {key} is {value!r}; must be in [{low}, {high}]")
    whole = {**task.defaults, **settings}
    if sum(whole[key] for key in task.shares) > 1 + 1e-9:
        raise UserError(f"task {task.name}: settings {' and '.join(task.shares)} are more than 1 together")
    return whole


def _alike(value: Any, default: Any) -> bool:
    """Whether a value is of a default's kind: a whole number, a finite number, text, a list of one."""
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, list):
        some = isinstance(value, list) and bool(value)
        return some and all(_alike(item, default[0]) for item in value)
    if isinstance(default, float):
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, type(default))
