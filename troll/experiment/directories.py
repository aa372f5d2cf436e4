"""Directories of results: what runs here make, and what git tracks as released.

``results/<experiment>`` holds what this checkout has made; git ignores it. ``results/released/<experiment>``
holds tables, figures, verdicts and tidy rows that a release has published; no run writes to it.
"""

from pathlib import Path

RESULTS = Path("results")
"""The directory of all results, in the root of a checkout or of a user's own folder."""
RELEASED = "released"
"""The directory in it that holds released results; no experiment can have this name."""
FINISHED = "finished"
"""Directory, in that of an experiment or of a group, for what its finished runs show before all are."""


def released_directory(results: Path) -> Path:
    """Returns the released counterpart of ``results/<experiment>``, which need not exist."""
    return results.parent / RELEASED / results.name


def results_directory(name: str, marker: str, root: Path = RESULTS) -> Path:
    """Returns ``results/<name>`` if it has the file or directory ``marker``, else its release if that has it.

    If neither has it, returns the local directory, so that messages name the place where runs here write it.
    """
    local = root / name
    released = released_directory(local)
    return released if (released / marker).exists() and not (local / marker).exists() else local
