"""Describes finished runs. The table step reads the manifests and refuses to mix unlike runs."""

import importlib.metadata
import importlib.util
import os
import platform
import re
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from troll.common.checkout import commit_of, is_committed
from troll.common.digests import digest_of_json, sha256_of_file, sha256_of_files
from troll.common.numerics import NUMERICS
from troll.common.processor import first_processor, processor_name
from troll.experiment.run_config import BaseConfig, RunConfig

PACKAGES = ("torch", "transformers", "trl", "accelerate", "tokenizers", "datasets", "numpy", "math-verify")
OPTIONAL = ("vllm",)
PACKAGE_ROOT = Path(__file__).resolve().parents[1]
# Source that can change a run's numbers. Left out are analysis, benchmark and cli, which read results and
# help people, and the modules of `experiment` that only check, count or read.
_NUMBERS = (
    "common",
    "algorithms",
    "tasks",
    "experiment/experiment.py",
    "experiment/recipes.py",
    "experiment/run_config.py",
    "experiment/settings.py",
    "training",
    "evaluation",
)


def digest_of_path(path: Path) -> str:
    """SHA-256 of a file, or of all files of a directory by name and content."""
    if path.is_file():
        return sha256_of_file(path)
    return sha256_of_files([item for item in path.rglob("*") if item.is_file()], path)


def source_digest(root: Path = PACKAGE_ROOT) -> str:
    """SHA-256 of the source that can change a run's numbers: what makes runs unlike, and unmixable."""
    paths = [root / name for name in _NUMBERS]
    files = [
        path
        for item in paths
        for path in ([item] if item.is_file() else item.rglob("*"))
        if path.suffix in (".py", ".yaml")
    ]
    return sha256_of_files(files, root)


def uncommitted_source(root: Path = PACKAGE_ROOT) -> str | None:
    """Digest of the source that can change numbers, where it is not that of a commit; None where it is.

    The version of the numbers speaks of committed source alone: what is being changed may not have its own
    yet.
    """
    paths = [root / name for name in _NUMBERS]
    return None if is_committed(paths, root.parent) else source_digest(root)


def versions() -> dict[str, str]:
    """Versions of Python and of every package that can change a result."""
    here = [name for name in OPTIONAL if importlib.util.find_spec(name)]
    return {"python": platform.python_version()} | {
        name: importlib.metadata.version(name) for name in (*PACKAGES, *here)
    }


# They decide which code of ATen, MKL and oneDNN runs, and so how sums are rounded.
_INSTRUCTION_SETS = (
    "sse4_2",
    "avx",
    "fma",
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "amx_tile",
)


def hardware() -> dict[str, Any]:
    """The machine, in words: what a reader needs to tell why numbers of two machines differ."""
    return {
        **_processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "system": platform.system(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "blas": _blas(),
    }


def _processor() -> dict[str, Any]:
    """Name, maker, family, model and instruction sets of the first processor, as far as Linux tells."""
    known = first_processor()
    names = {"vendor": "vendor_id", "family": "cpu family", "model": "model"}
    found: dict[str, Any] = {ours: known[name] for ours, name in names.items() if name in known}
    if known:
        flags = set(known.get("flags", "").split())
        found["instruction_sets"] = [name for name in _INSTRUCTION_SETS if name in flags]
    return {"processor": processor_name(), **found}


def _blas() -> str:
    """The library of linear algebra that torch was built with, and its version."""
    lines = [line.strip(" -") for line in torch.__config__.show().splitlines()]
    named = [line for line in lines if re.match(r"Intel\(R\) oneAPI Math Kernel Library|OpenBLAS", line)]
    return named[0] if named else str(re.findall(r"BLAS_INFO=(\w+)", torch.__config__.show())[:1])


EXPERIMENT_FILE = "TROLL_EXPERIMENT_FILE"
"""Set by the workflow: SHA-256 and path of the experiment file, with a space between them."""


def experiment_file() -> dict[str, str] | None:
    """The experiment file that a run belongs to, as the workflow read it; None outside of the workflow.

    A commit alone does not say so: the file may have been another one, or changed.
    """
    digest, _, path = os.environ.get(EXPERIMENT_FILE, "").partition(" ")
    return {"path": path, "sha256": digest} if path else None


def peak_gib() -> float:
    """Largest memory in GiB: of tensors on the first GPU, or without one of this whole process (resident)."""
    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated() / 2**30)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak / (2**30 if sys.platform == "darwin" else 2**20))


def manifest_of(
    config: RunConfig | BaseConfig, *, wall_s: float, data: Mapping[str, Path], prompts: str | None = None
) -> dict[str, Any]:
    """Describes a finished run: settings, versions, timing, and SHA-256 of every input.

    Args:
        data: the files that the run read, by role; ``base_model`` gets a digest of its own.
        prompts: digest of the token ids of the run's prompts.
    """
    environment = versions()
    read = {name: digest_of_path(path) for name, path in data.items()}
    base_model = read.pop("base_model", None)
    return {
        "run_id": config.run_id,
        "config": config.model_dump(),
        "seeds": config.seeds.model_dump(),
        "numerics": NUMERICS,
        "git_commit": commit_of(),
        "experiment_file": experiment_file(),
        "digests": {
            "environment": digest_of_json(environment),
            "data": digest_of_json(read),
            "base_model": base_model,
            **({} if prompts is None else {"prompts": prompts}),
        },
        "versions": environment,
        "hardware": hardware(),
        "wall_s": wall_s,
        "peak_gib": peak_gib(),
    }
