"""The git commit of the source, which runs and problem reports record."""

from collections.abc import Iterable
from pathlib import Path

from troll.common.programs import output_of

_ROOT = Path(__file__).resolve().parents[2]
DIRTY = "-dirty"
"""Suffix of a commit whose tracked source files have uncommitted changes."""


def commit_of(root: Path = _ROOT) -> str | None:
    """Returns the commit that is checked out, with the suffix `DIRTY` if tracked files differ from it.

    Files below ``results/`` do not count: released results are tracked, and a workflow rewrites them before
    its last runs start.

    Returns:
        The full hash; None if `root` itself is not a checkout. An installed package may lie below an
        unrelated checkout, whose commit says nothing about it.
    """
    head = _git(root, "rev-parse", "HEAD")
    changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)results")
    return None if head is None or changed is None else head + DIRTY * bool(changed)


def is_committed(paths: Iterable[Path], root: Path = _ROOT) -> bool:
    """Whether files and directories equal those of the commit, without changes and without new files."""
    return _git(root, "status", "--porcelain", "--untracked-files=normal", "--", *map(str, paths)) == ""


def _git(root: Path, *arguments: str) -> str | None:
    """Returns the output of a git command; None if it fails or `root` is not a checkout."""
    if not (root / ".git").exists():
        return None
    return output_of("git", "--no-optional-locks", "-C", str(root), *arguments)
