"""Versions, commit and platform, for bug reports."""

import importlib.metadata
import os
import platform
import sys
from collections.abc import Sequence

from troll import __version__
from troll.common.checkout import commit_of
from troll.common.programs import output_of

STACK = (
    "torch",
    "transformers",
    "trl",
    "accelerate",
    "tokenizers",
    "datasets",
    "numpy",
    "pydantic",
    "math-verify",
    "lm_eval",
    "evalplus",
    "snakemake",
    "vllm",
)
_TOOLS: dict[str, Sequence[str]] = {
    "git": ("git", "--version"),
    "bubblewrap": ("bwrap", "--version"),
    "slurm": ("sbatch", "--version"),
    "nvidia driver": ("nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"),
}


def installed(name: str) -> str | None:
    """Returns the version of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def tool(command: Sequence[str]) -> str | None:
    """Returns the first line that a program prints; None if it is missing or fails."""
    output = output_of(*command)
    return None if output is None else output.partition("\n")[0]


def describe() -> list[str]:
    """Returns what helps to understand a problem, as aligned lines, without user names and paths."""
    rows = {
        "troll": __version__,
        "commit": commit_of() or "not a git checkout",
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": platform.platform(),
        "cores": str(os.cpu_count()),
        "environment": "virtual" if sys.prefix != sys.base_prefix else "not virtual",
    }
    rows |= {name: installed(name) or "not installed" for name in STACK}
    rows |= {name: tool(command) or "not found" for name, command in _TOOLS.items()}
    width = max(map(len, rows))
    return [f"{name.ljust(width)}  {value}" for name, value in rows.items()]
