"""The claims that come with the package, and the files that an experiment names."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from troll.common.errors import UserError

DEFAULT = "default"
"""What an experiment file and the command line call the claims of the package."""
CLAIMS = Path(str(files(__package__) / "claims.yaml"))


def claims_file(name: str) -> Path:
    """The file of claims that is meant by a name: ``default``, or a path."""
    path = Path(name)
    if name == DEFAULT:
        return CLAIMS
    if not path.exists():
        raise UserError(f"claims: {name}: no such file; `default` names the claims of the package")
    return path


def claim_files(named: Sequence[str] | None, of_experiment: Sequence[str] = ()) -> list[Path]:
    """The files of claims that were named, or else those of the experiment, or else the package's."""
    return [claims_file(name) for name in named or of_experiment or [DEFAULT]]
