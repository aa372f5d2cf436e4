"""Python files of users, whose functions are named by file and name: ``my_rules.py:soft_wall``."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import stat
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from troll.common.errors import UserError, unknown

_SEPARATOR = ".py:"


def names_a_file(name: str) -> bool:
    """Whether a name refers to a function in a file."""
    return _SEPARATOR in name


def file_digest(name: str, what: str = "trust region") -> str | None:
    """Returns the SHA-256 of the file that a name refers to, its version; None if it names no file.

    Args:
        name: ``<path>.py:<function>``.
        what: what the function is, for messages.

    Raises:
        UserError: the file is missing or cannot be read.
    """
    return hashlib.sha256(_read(name, what)).hexdigest() if names_a_file(name) else None


def path_and_function(name: str) -> tuple[Path, str]:
    """Returns the two parts of a name."""
    path, _, function = name.rpartition(":")
    return Path(path), function


def _read(name: str, what: str) -> bytes:
    path, _ = path_and_function(name)
    try:
        # Checked first because opening a pipe would block.
        if not stat.S_ISREG(path.stat().st_mode):
            kind = "a directory" if path.is_dir() else "a pipe or a device"
            raise UserError(f"{what}: {path}: is {kind}, must be a Python file")
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{what}: {path}: no such file in {Path.cwd()}") from None
    except (OSError, ValueError) as error:  # a ValueError if the path contains a null byte
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{what}: {str(path)!r}: cannot be read ({reason})") from None


def load_module(name: str, what: str) -> ModuleType:
    """Executes the file that a name refers to, as an import would; the same file only once.

    Raises:
        UserError: the file does not exist or fails.
    """
    path, _ = path_and_function(name)
    source = _read(name, what)
    alias = f"troll_rules_{hashlib.sha256(source).hexdigest()[:16]}_{path.stem}"
    return sys.modules.get(alias) or _run(path, source, alias, what)


def load_callable(name: str, what: str) -> Any:
    """Loads what a file calls ``<function>``: a function, or another object that can be called.

    Raises:
        UserError: the name refers to no file, the file fails, or has nothing of this name to call.
    """
    if not names_a_file(name):
        raise UserError(f"{what}: {name!r} names no file; expected my_file.py:my_function")
    module, (path, function) = load_module(name, what), path_and_function(name)
    if not callable(getattr(module, function, None)):
        raise UserError(f"{what}: {path}: {missing_function(module, function, ())}")
    return getattr(module, function)


def _run(path: Path, source: bytes, alias: str, what: str) -> ModuleType:
    """Executes a file's source as a module, registered under an alias derived from the source.

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
        raise UserError(f"{what}: {_place(path, error)}: {_reason(error)}") from None
    return module


def missing_function(module: ModuleType, function: str, parameters: Sequence[str]) -> str:
    """Returns the error message for a name that is not a function of the file."""
    if hasattr(module, function):
        kind = type(getattr(module, function)).__name__
        return f"{function} is of type {kind}, must be a function: def {function}({', '.join(parameters)})"
    names = [key for key, value in vars(module).items() if inspect.isfunction(value)]
    functions = [key for key in names if getattr(module, key).__module__ == module.__name__]
    if not functions:
        return f"has no functions, must have def {function}({', '.join(parameters)})"
    return unknown("function", function, functions)


def _place(path: Path, error: BaseException) -> str:
    """Returns the file and, if known, the line of an error."""
    if isinstance(error, SyntaxError) and error.filename == str(path.resolve()):
        return f"{path}:{error.lineno}" if error.lineno else str(path)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename) == path.resolve()]
    return f"{path}:{lines[-1]}" if lines else str(path)


def _reason(error: BaseException) -> str:
    """Returns the error on one line, with advice."""
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
