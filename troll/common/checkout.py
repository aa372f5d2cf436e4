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
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "HEAD").strip()
        changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)results")
    except (OSError, subprocess.SubprocessError):
        return None
    return head + DIRTY if changed.strip() else head


def is_committed(paths: Iterable[Path], root: Path = _ROOT) -> bool:
    """Whether files and directories are as the commit has them, without changes and without new files."""
    if not (root / ".git").exists():
        return False
    try:
        command = ("status", "--porcelain", "--untracked-files=normal", "--", *map(str, paths))
        return not _git(root, *command).strip()
    except (OSError, subprocess.SubprocessError):
        return False


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
