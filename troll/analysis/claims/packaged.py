"""Claims files: the packaged one and those that an experiment names."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from troll.common.errors import UserError

DEFAULT = "default"
"""Name of the packaged claims in experiment files and on the command line."""
CLAIMS = Path(str(files(__package__) / "claims.yaml"))


def claims_file(name: str) -> Path:
    """Returns the claims file for a name: ``default`` or a path."""
    path = Path(name)
    if name == DEFAULT:
        return CLAIMS
    if not path.exists():
        raise UserError(f"claims: {name}: no such file; `default` names the claims of the package")
    return path


def claim_files(named: Sequence[str] | None, of_experiment: Sequence[str] = ()) -> list[Path]:
    """Returns the named claims files, else those of the experiment, else the packaged one."""
    return [claims_file(name) for name in named or of_experiment or [DEFAULT]]
