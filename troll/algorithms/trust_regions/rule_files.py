"""Rules in files of their own, outside of the package: ``my_rules.py:soft_wall`` names file and function."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from troll.common.errors import UserError, unknown

_SEPARATOR = ".py:"
_POSITIONAL = ("new", "old", "advantages", "mask")
_FURTHER = {"context", "step"}


def names_a_file(name: str) -> bool:
    """Whether a rule's name is that of a function in a file."""
    return _SEPARATOR in name


def file_digest(name: str) -> str | None:
    """SHA-256 of the file of a rule that is in one, so that a changed rule is another rule; else None.

    Raises:
        UserError: the file is missing or cannot be read.
    """
    return hashlib.sha256(_read(name)).hexdigest() if names_a_file(name) else None


def _parts(name: str) -> tuple[Path, str]:
    path, _, function = name.rpartition(":")
    return Path(path), function


def _read(name: str) -> bytes:
    path, _ = _parts(name)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"trust region: {path}: no such file in {Path.cwd()}") from None
    except OSError as error:
        raise UserError(f"trust region: {path}: cannot be read ({error.strerror})") from None


def load_rule(name: str) -> tuple[Any, ModuleType]:
    """The function that a name stands for, and the module that its file is.

    Running the file is what importing it does: it is the user's own code, as a registered rule is.

    Args:
        name: ``<path>.py:<function>``; a relative path starts at the working directory.

    Raises:
        UserError: no such file or function, the file cannot be run, or the function is no rule.
    """
    path, function = _parts(name)
    digest = hashlib.sha256(_read(name)).hexdigest()
    alias = f"troll_rules_{digest[:16]}_{path.stem}"
    module = sys.modules.get(alias)
    if module is None:
        specification = importlib.util.spec_from_file_location(alias, path)
        assert specification is not None and specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        sys.modules[alias] = module
        try:
            specification.loader.exec_module(module)
        except Exception as error:
            del sys.modules[alias]
            raise UserError(f"trust region: {_place(path, error)}: {type(error).__name__}: {error}") from None
    found = {key: value for key, value in vars(module).items() if inspect.isfunction(value)}
    functions = [key for key, value in found.items() if value.__module__ == alias]
    rule = getattr(module, function, None)
    if not inspect.isfunction(rule):
        raise UserError(f"trust region: {path}: {unknown('function', function, functions)}")
    _check(path, function, rule)
    return rule, module


def _place(path: Path, error: Exception) -> str:
    """The file and, where it can be said, the line that an error comes from."""
    if isinstance(error, SyntaxError):
        return f"{path}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename) == path.resolve()]
    return f"{path}:{lines[-1]}" if lines else str(path)


def _check(path: Path, function: str, rule: Any) -> None:
    parameters = inspect.signature(rule).parameters.values()
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p.name for p in parameters if p.kind in places]
    # What may follow is passed by name, and is no setting.
    further = [p for p in parameters if p.name in _FURTHER or p.name in positional[len(_POSITIONAL) :]]
    known = all(p.name in _FURTHER and p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in further)
    if tuple(positional[: len(_POSITIONAL)]) == _POSITIONAL and known:
        return
    taken = [p.name for p in further if p.name in _FURTHER and p.kind is inspect.Parameter.KEYWORD_ONLY]
    if taken:
        raise UserError(
            f"trust region: {path}: {function}: {taken[0]!r} is no name for a setting, because a rule may ask "
            f"for more by it; call the setting otherwise, or put {taken[0]} before *"
        )
    raise UserError(
        f"trust region: {path}: {function}({', '.join(positional)}) is no rule; a rule takes "
        f"({', '.join(_POSITIONAL)}) and, after *, its settings"
    )
