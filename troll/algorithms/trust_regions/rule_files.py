"""Rules in user files outside the package, named by file and function: ``my_rules.py:soft_wall``."""

import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

from troll.common.errors import UserError
from troll.common.user_files import load_module, missing_function, path_and_function

_WHAT = "trust region"
_POSITIONAL = ("new", "old", "advantages", "mask")
_OPTIONAL = {"group_rewards", "step_tokens"}


def load_rule(name: str) -> tuple[Any, ModuleType]:
    """Load a rule from a user's file; returns the function and the file's module.

    The file is executed, as by an import.

    Args:
        name: ``<path>.py:<function>``; the path may be relative to the working directory.

    Raises:
        UserError: the file or function does not exist, the file fails, or the function is not a rule.
    """
    module, (path, function) = load_module(name, _WHAT), path_and_function(name)
    rule = getattr(module, function, None)
    if not inspect.isfunction(rule):
        raise UserError(f"{_WHAT}: {path}: {missing_function(module, function, _POSITIONAL)}")
    _check(path, function, rule)
    return rule, module


def _check(path: Path, function: str, rule: Any) -> None:
    parameters = inspect.signature(rule).parameters.values()
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p.name for p in parameters if p.kind in places]
    # Optional parameters, which are passed by name and are not settings.
    optional = [p for p in parameters if p.name in _OPTIONAL or p.name in positional[len(_POSITIONAL) :]]
    valid = all(p.name in _OPTIONAL and p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in optional)
    if tuple(positional[: len(_POSITIONAL)]) == _POSITIONAL and valid:
        return
    reserved = [p.name for p in optional if p.name in _OPTIONAL and p.kind is inspect.Parameter.KEYWORD_ONLY]
    if reserved:
        raise UserError(
            f"trust region: {path}: {function}: {reserved[0]!r} cannot be the name of a setting: it is an "
            f"optional input; rename the setting, or put {reserved[0]} before *"
        )
    raise UserError(
        f"trust region: {path}: {function}({', '.join(positional)}) is not a rule; a rule takes "
        f"({', '.join(_POSITIONAL)}) and, after *, its settings"
    )
