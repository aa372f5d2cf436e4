"""Rules in user files outside the package, named by file and function: ``my_rules.py:soft_wall``."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import stat
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from troll.common.errors import UserError, unknown

_SEPARATOR = ".py:"
_POSITIONAL = ("new", "old", "advantages", "mask")
_OPTIONAL = {"group_rewards", "step_tokens"}


def names_a_file(name: str) -> bool:
    """Whether a rule's name refers to a function in a file."""
    return _SEPARATOR in name


def file_digest(name: str) -> str | None:
    """SHA-256 of the rule's file, which identifies the version of the rule; None for registered rules.

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
        # Checked first because opening a pipe would block.
        if not stat.S_ISREG(path.stat().st_mode):
            kind = "a directory" if path.is_dir() else "a pipe or a device"
            raise UserError(f"trust region: {path}: is {kind}, must be a Python file")
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"trust region: {path}: no such file in {Path.cwd()}") from None
    except (OSError, ValueError) as error:  # a ValueError if the path contains a null byte
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"trust region: {str(path)!r}: cannot be read ({reason})") from None


def load_rule(name: str) -> tuple[Any, ModuleType]:
    """Load a rule from a user's file; returns the function and the file's module.

    The file is executed, as by an import.

    Args:
        name: ``<path>.py:<function>``; the path may be relative to the working directory.

    Raises:
        UserError: the file or function does not exist, the file fails, or the function is not a rule.
    """
    path, function = _parts(name)
    source = _read(name)
    alias = f"troll_rules_{hashlib.sha256(source).hexdigest()[:16]}_{path.stem}"
    module = sys.modules.get(alias) or _run(path, source, alias)
    rule = getattr(module, function, None)
    if not inspect.isfunction(rule):
        raise UserError(f"trust region: {path}: {_missing_function(module, function)}")
    _check(path, function, rule)
    return rule, module


def _run(path: Path, source: bytes, alias: str) -> ModuleType:
    """Execute a file's source as a module, registered under an alias derived from the source.

    Compiles the source itself: Python's bytecode cache would miss a change that keeps size and second.
    """
    specification = importlib.util.spec_from_file_location(alias, path)
    assert specification is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[alias] = module
    try:
        exec(compile(source, str(path.resolve()), "exec", dont_inherit=True), vars(module))
    except KeyboardInterrupt:
        del sys.modules[alias]
        raise
    except BaseException as error:
        del sys.modules[alias]
        raise UserError(f"trust region: {_place(path, error)}: {_reason(error)}") from None
    return module


def _missing_function(module: ModuleType, function: str) -> str:
    """The error message for a name that is not a function of the file."""
    if hasattr(module, function):
        kind = type(getattr(module, function)).__name__
        return f"{function} is of type {kind}, must be a function: def {function}({', '.join(_POSITIONAL)})"
    names = [key for key, value in vars(module).items() if inspect.isfunction(value)]
    functions = [key for key in names if getattr(module, key).__module__ == module.__name__]
    if not functions:
        return f"has no functions, must have def {function}({', '.join(_POSITIONAL)})"
    return unknown("function", function, functions)


def _place(path: Path, error: BaseException) -> str:
    """The file and, if known, the line of an error."""
    if isinstance(error, SyntaxError) and error.filename == str(path.resolve()):
        return f"{path}:{error.lineno}" if error.lineno else str(path)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename) == path.resolve()]
    return f"{path}:{lines[-1]}" if lines else str(path)


def _reason(error: BaseException) -> str:
    """The error on one line, with advice."""
    kind = type(error).__name__
    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    message = f"{kind}: {text}" if text else kind
    if isinstance(error, SyntaxError):
        return f"{message}; must be UTF-8 text" if "(unicode error)" in text else message
    if isinstance(error, SystemExit):
        return (
            f'{message}; importing a rule must not exit the program: put that under if __name__ == "__main__"'
        )
    return f"{message}; the file must run without an error"


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
