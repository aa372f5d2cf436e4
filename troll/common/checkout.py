"""Which commit the source is, that runs and reports of problems name."""

import subprocess
from collections.abc import Iterable
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
DIRTY = "-dirty"
"""Marks a commit whose source was changed."""


def commit_of(root: Path = _ROOT) -> str | None:
    """The commit that the source was checked out at, marked with `DIRTY` where tracked files differ from it.

    Files below ``results/`` are not source: released ones are tracked, and a run of the workflow writes them
    anew before its last runs have begun.

    Returns:
        The full hash; None outside of git. An installed package may be below somebody else's checkout, whose
        commit says nothing of it, so that `root` itself has to be one.
    """
    head = _git(root, "rev-parse", "HEAD")
    changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)results")
    return None if head is None or changed is None else head + DIRTY * bool(changed)


def is_committed(paths: Iterable[Path], root: Path = _ROOT) -> bool:
    """Whether files and directories are as the commit has them, without changes and without new files."""
    return _git(root, "status", "--porcelain", "--untracked-files=normal", "--", *map(str, paths)) == ""


def _git(root: Path, *arguments: str) -> str | None:
    """What git says; None where it fails, or `root` is no checkout."""
    if not (root / ".git").exists():
        return None
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return ended.stdout.strip()
