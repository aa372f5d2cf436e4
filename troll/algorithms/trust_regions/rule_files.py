"""Rules in files of their own, outside of the package: ``my_rules.py:soft_wall`` names file and function."""

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
_FURTHER = {"group_rewards", "step_tokens"}
_FORMER = {"context": "group_rewards", "step": "step_tokens"}
"""Names until 0.2 of what a rule may be given, and those of today."""


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
        # Asked first: to open a pipe would wait for its other end.
        if not stat.S_ISREG(path.stat().st_mode):
            kind = "a directory" if path.is_dir() else "a pipe or a device"
            raise UserError(f"trust region: {path}: is {kind}, must be a file of Python")
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"trust region: {path}: no such file in {Path.cwd()}") from None
    except (OSError, ValueError) as error:  # a ValueError where the path has a null byte
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"trust region: {str(path)!r}: cannot be read ({reason})") from None


def load_rule(name: str) -> tuple[Any, ModuleType]:
    """The function that a name stands for, and the module that its file is.

    Running the file is what importing it does: it is the user's own code, as a registered rule is.

    Args:
        name: ``<path>.py:<function>``; a relative path starts at the working directory.

    Raises:
        UserError: no such file or function, the file cannot be run, or the function is no rule.
    """
    path, function = _parts(name)
    source = _read(name)
    alias = f"troll_rules_{hashlib.sha256(source).hexdigest()[:16]}_{path.stem}"
    module = sys.modules.get(alias) or _run(path, source, alias)
    rule = getattr(module, function, None)
    if not inspect.isfunction(rule):
        raise UserError(f"trust region: {path}: {_no_function(module, function)}")
    _check(path, function, rule)
    return rule, module


def _run(path: Path, source: bytes, alias: str) -> ModuleType:
    """The module that a file's text is, known to Python by a name that tells texts apart.

    The text is compiled here: Python's own cache takes a file of the same size and second for unchanged.
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


def _no_function(module: ModuleType, function: str) -> str:
    """What to say where a name is none of the file's functions."""
    if hasattr(module, function):
        kind = type(getattr(module, function)).__name__
        return f"{function} is of type {kind}, must be a function: def {function}({', '.join(_POSITIONAL)})"
    found = [key for key, value in vars(module).items() if inspect.isfunction(value)]
    functions = [key for key in found if getattr(module, key).__module__ == module.__name__]
    if not functions:
        return f"has no functions, must have def {function}({', '.join(_POSITIONAL)})"
    return unknown("function", function, functions)


def _place(path: Path, error: BaseException) -> str:
    """The file and, where it can be said, the line that an error comes from."""
    if isinstance(error, SyntaxError) and error.filename == str(path.resolve()):
        return f"{path}:{error.lineno}" if error.lineno else str(path)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename) == path.resolve()]
    return f"{path}:{lines[-1]}" if lines else str(path)


def _reason(error: BaseException) -> str:
    """An error in one line, and what would be right."""
    kind = type(error).__name__
    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    said = f"{kind}: {text}" if text else kind
    if isinstance(error, SyntaxError):
        return f"{said}; must be text in UTF-8" if "(unicode error)" in text else said
    if isinstance(error, SystemExit):
        return f'{said}; importing a rule must not end the program: put that under if __name__ == "__main__"'
    return f"{said}; the file must run without an error"


def _check(path: Path, function: str, rule: Any) -> None:
    parameters = inspect.signature(rule).parameters.values()
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p.name for p in parameters if p.kind in places]
    # What may follow is passed by name, and is no setting.
    further = [p for p in parameters if p.name in _FURTHER or p.name in positional[len(_POSITIONAL) :]]
    known = all(p.name in _FURTHER and p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in further)
    if tuple(positional[: len(_POSITIONAL)]) == _POSITIONAL and known:
        return
    for name in positional[len(_POSITIONAL) :]:
        if name in _FORMER:
            raise UserError(
                f"trust region: {path}: {function}: the parameter {name!r} is now called {_FORMER[name]!r}; "
                "rename it"
            )
    taken = [p.name for p in further if p.name in _FURTHER and p.kind is inspect.Parameter.KEYWORD_ONLY]
    if taken:
        raise UserError(
            f"trust region: {path}: {function}: {taken[0]!r} is no name for a setting: a parameter of that "
            f"name is given more to read; call the setting otherwise, or put {taken[0]} before *"
        )
    raise UserError(
        f"trust region: {path}: {function}({', '.join(positional)}) is no rule; a rule takes "
        f"({', '.join(_POSITIONAL)}) and, after *, its settings"
    )
