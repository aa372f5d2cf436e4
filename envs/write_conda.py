"""Writes the conda environments of the workflow from the pins: ``python envs/write_conda.py``.

Snakemake copies an environment file before conda reads it, so that it cannot contain relative paths: it lists
the pins, and the post-deploy script next to it, which runs in the workflow's directory, installs the package
itself. The packages of an environment are read from pyproject.toml and the metadata of installed packages,
their versions from constraints.txt.
"""

import re
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).parent
EXTRAS = {"train": "train", "evaluate": "evaluate", "analyse": "workflow"}
# vLLM is not installed here, so its requirements cannot be read: its environment gets all of its pins.
WHOLE = {"vllm": "constraints-vllm.txt"}
PYTHON = "3.11"
"""The Python of the conda environments, whichever Python runs this script."""
_MARKERS = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": f"{PYTHON}.0",
    "python_version": PYTHON,
    "sys_platform": "linux",
}

_HEAD = """# For clusters that install software with conda: `snakemake --sdm conda`. Written by
# `make docs` from the pins in {pins}; the package itself is installed by {name}.post-deploy.sh.
channels:
  - conda-forge
  - nodefaults
dependencies:
  - python ={python}
  - pip
  - pip:
"""
_DEPLOY = """#!/usr/bin/env bash
# Runs in the new environment, in the directory where Snakemake was started, which must be the checkout
# unless TROLL_CHECKOUT names one. Written by `make docs`.
set -euo pipefail
checkout=${TROLL_CHECKOUT:-.}
if [ ! -d "$checkout/troll" ]; then
    echo "error: $checkout is not a checkout of troll; set TROLL_CHECKOUT=/path/to/checkout" >&2
    exit 1
fi
python -m pip install --no-deps --no-build-isolation --editable "$checkout"
"""


def pins(name: str = "constraints.txt") -> dict[str, str]:
    """Returns the pinned versions by package."""
    lines = (HERE / name).read_text().splitlines()
    found = (re.match(r"([\w.-]+)==([\w.+!]+)", line) for line in lines)
    return {canonicalize_name(match[1]): match[2] for match in found if match}


def _requirements(name: str, extras: frozenset[str]) -> list[str]:
    if name != "troll":
        try:
            return requires(name) or []
        except PackageNotFoundError:  # needed by Python 3.11, but not by the one that runs this
            return []
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    more = [text for extra in extras for text in project["optional-dependencies"][extra]]
    return [*project["dependencies"], *more]


@cache
def closure(extra: str) -> frozenset[str]:
    """Returns every package that ``troll[extra]`` needs, except troll itself."""
    needed: set[str] = set()
    waiting, seen = [("troll", frozenset({extra}))], set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        if name != "troll":
            needed.add(name)
        for text in _requirements(name, extras):
            item = Requirement(text)
            wanted = {"", *extras}
            if item.marker and not any(item.marker.evaluate(_MARKERS | {"extra": one}) for one in wanted):
                continue
            # Only torch's CUDA builds need these; the pins are for its CPU builds.
            if name == "torch" and "platform_system" in str(item.marker):
                continue
            waiting.append((canonicalize_name(item.name), frozenset(item.extras)))
    return frozenset(needed)


def files() -> dict[str, str]:
    """Returns the contents of all files by name."""
    written = {}
    for name in (*EXTRAS, *WHOLE):
        source = WHOLE.get(name, "constraints.txt")
        versions = pins(source)
        needed = versions if name in WHOLE else {*closure(EXTRAS[name]), "setuptools"}
        lines = "".join(f"      - {package}=={versions[package]}\n" for package in sorted(needed))
        written[f"{name}.yaml"] = _HEAD.format(name=name, pins=source, python=PYTHON) + lines
        written[f"{name}.post-deploy.sh"] = _DEPLOY
    return written


if __name__ == "__main__":
    for name, text in files().items():
        (HERE / name).write_text(text)
