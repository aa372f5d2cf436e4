"""Captions of tables and figures, in reStructuredText restricted to paragraphs and literals."""

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path

from troll.common.errors import UserError
from troll.common.files import write_text

_FILE = "captions.rst"
_LABEL = re.compile(r"^\.\. _(\w+):$", re.MULTILINE)


@cache
def captions() -> Mapping[str, str]:
    """All texts by label: ``<name>_table``, ``<name>_figure`` and those of the page itself."""
    _, *parts = _LABEL.split(files(__package__).joinpath(_FILE).read_text(encoding="utf-8"))
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


def caption(name: str) -> str:
    """Returns the text with this label."""
    if name not in captions():
        raise UserError(f"{_FILE}: no caption {name}; add one below a line `.. _{name}:`")
    return captions()[name]


def write_captions(directory: Path) -> Path:
    """Writes each text to a separate file ``<name>.rst``, as Snakemake's report requires."""
    for name, text in captions().items():
        path = directory / f"{name}.rst"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_text(path, text)
    return directory
