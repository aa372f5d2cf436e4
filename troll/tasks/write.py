"""Writes the problems of a task as files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from troll.common.files import write_jsonl
from troll.tasks.datasets.task import whole_split
from troll.tasks.registry import check_settings, get_task
from troll.tasks.types import SPLITS

DATA_SEED = 0  # the data of an experiment are one set, whatever the seeds of its runs


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
