"""The numbers that the paper published; README.md in this directory says how reliable they are."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from troll.common.errors import UserError
from troll.common.files import read_yaml

PUBLISHED = files(__name__) / "troll_iclr2026.yaml"
"""The numbers with their sources, part of the installed package."""


@cache
def read_published(path: Traversable = PUBLISHED) -> tuple[Mapping[str, Any], ...]:
    """Returns the published numbers, one mapping each."""
    rows = read_yaml(path, "file; tables of published numbers need it")
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "value" in row for row in rows):
        raise UserError(f"{path}: expected a list of numbers, each with a value")
    return tuple(rows)
