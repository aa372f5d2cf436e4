"""The claims that come with the package, and the files that an experiment names."""

from importlib.resources import files
from pathlib import Path

from troll.common.errors import UserError
from troll.common.progress import say

DEFAULT = "default"
"""What an experiment file and the command line call the claims of the package."""
CLAIMS = Path(str(files(__package__) / "claims.yaml"))
_MOVED = "workflow/config/claims.yaml"


def claims_file(name: str) -> Path:
    """The file of claims that is meant by a name: ``default``, or a path."""
    path = Path(name)
    if name == DEFAULT:
        return CLAIMS
    if name == _MOVED and not path.exists():
        say(f"claims: {_MOVED} is now a part of the package; write `default` in its place")
        return CLAIMS
    if not path.exists():
        raise UserError(f"claims: {name}: no such file; `default` names the claims of the package")
    return path
