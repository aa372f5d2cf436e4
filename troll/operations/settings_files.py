"""Resolved settings of the workflow's jobs, each in a file that is named after what it says.

The name is a parameter of the job: Snakemake repeats it when the settings change, and for no other reason. A
file is never changed, so that it does not matter when, and how often, it is written.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from troll.common.files import write_text

DIRECTORY = Path(".snakemake/settings")


def settings_file(kind: str, settings: Any) -> str:
    """The file of some settings, which is written where it is not there; its name begins with their kind."""
    text = json.dumps(settings, sort_keys=True) + "\n"
    path = DIRECTORY / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    if not path.exists():
        write_text(path, text)
    return str(path)
