"""What a run was: written last, and read by the table step, which refuses to mix unlike runs."""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from troll.files import sha256_of_files

PACKAGES = ("torch", "transformers", "trl", "accelerate", "tokenizers", "datasets", "numpy", "math-verify")
OPTIONAL = ("vllm",)
PACKAGE_ROOT = Path(__file__).resolve().parents[1]
# What cannot change a trained model: reading results, helping people, and the command line (cli*.py).
_NO_SOURCE = ("analysis", "support", "cli")


def digest_of_json(value: Any) -> str:
    """SHA-256 of a value as sorted JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def digest_of_path(path: Path) -> str:
    """SHA-256 of a file, or of all files of a directory by name and content."""
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return sha256_of_files([item for item in path.rglob("*") if item.is_file()], path)


def source_digest() -> str:
    """SHA-256 of the package's source, without the rooms that only read results."""
    files = [
        path
        for path in PACKAGE_ROOT.rglob("*.py")
        if path.relative_to(PACKAGE_ROOT).parts[0].removesuffix(".py").split("_")[0] not in _NO_SOURCE
        and "__pycache__" not in path.parts
    ]
    return sha256_of_files(files, PACKAGE_ROOT)


def versions() -> dict[str, str]:
    """Versions of Python and of every package that can change a result."""
    here = [name for name in OPTIONAL if importlib.util.find_spec(name)]
    return {"python": platform.python_version()} | {
        name: importlib.metadata.version(name) for name in (*PACKAGES, *here)
    }


def hardware() -> dict[str, Any]:
    """The machine, in words."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line
        ]
        processor = names[0] if names else processor
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": gpus,
        "system": platform.system(),
    }


def git_commit() -> str | None:
    """The commit that the source was checked out at; marked ``-dirty`` with changes; none outside of git."""
    try:
        command = [
            "git",
            "-C",
            str(PACKAGE_ROOT),
            "describe",
            "--always",
            "--abbrev=40",
            "--dirty",
            "--match=",
        ]
        result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None


def peak_gib() -> float:
    """Largest memory in GiB: of tensors on the first GPU, or without one of this whole process (resident)."""
    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated() / 2**30)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak / (2**30 if sys.platform == "darwin" else 2**20))


def manifest_of(config: Mapping[str, Any], *, wall_s: float, data: Mapping[str, Path]) -> dict[str, Any]:
    """A manifest.

    Args:
        config: the resolved configuration of the run.
        wall_s: seconds of training.
        data: files and directories that the run read, by role (``base_model`` gets a digest of its own).
    """
    environment = versions()
    read = {name: digest_of_path(path) for name, path in data.items()}
    base_model = read.pop("base_model", None)
    return {
        "run_id": config["run_id"],
        "config": dict(config),
        "seeds": dict(config["seeds"]),
        "git_commit": git_commit(),
        "digests": {
            "source": source_digest(),
            "environment": digest_of_json(environment),
            "data": digest_of_json(read),
            "base_model": base_model,
        },
        "versions": environment,
        "hardware": hardware(),
        "wall_s": wall_s,
        "peak_gib": peak_gib(),
    }
