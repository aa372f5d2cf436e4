"""Settings of processor, memory and libraries to make before torch and numpy are imported."""

import ctypes
import math
import os
import platform
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

# ATen, oneDNN and MKL use the same AVX2 code on all processors that have AVX2: wider vectors are summed in a
# different order, and training amplifies differences in the last bit.
_AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"}
CODE = "TROLL_PROCESSOR"
"""Environment variable: which code `prepare_processor` asks for, ``avx2`` (default) or ``all``."""
LARGE = 50_000_000
"""Parameters from which on a model is computed with all instructions of the processor: it takes hours instead
of minutes on a CPU, and wider vectors are then worth more than equal rounding on all machines."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_KEPT_BYTES = 1 << 30
_QUIET = {
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
}


def prepare_processor() -> None:
    """Sets one thread, AVX2 code and reuse of freed memory; existing environment variables are kept.

    With ``TROLL_PROCESSOR=all``, the libraries choose the code.
    """
    # Tiny models on a CPU are fastest with one thread; Snakemake sets the variable to a rule's threads.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if os.environ.get(CODE) != "all" and _has_avx2():
        if not _AVX2.keys() & os.environ.keys():
            os.environ.setdefault(CODE, "avx2")  # so that `use_all_instructions` knows who set them
        for name, value in _AVX2.items():
            os.environ.setdefault(name, value)
    if sys.platform == "linux":
        _keep_memory()


def use_all_instructions(parameters: int) -> None:
    """Starts this `troll` command anew without the AVX2 setting, for a model of at least `LARGE` parameters.

    The libraries read the setting once. Returns if the model is smaller, if a user's variables are in force,
    or if this process was started so already.
    """
    if (
        parameters < LARGE
        or os.environ.get(CODE) != "avx2"
        or any(os.environ.get(k) != v for k, v in _AVX2.items())
    ):
        return
    for name in _AVX2:
        del os.environ[name]
    os.environ[CODE] = "all"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "troll.cli", *sys.argv[1:]])


def quiet_libraries() -> None:
    """Silences progress bars and advice of libraries; existing environment variables are kept."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)


@cache
def first_processor() -> dict[str, str]:
    """Returns the first processor's entries in /proc/cpuinfo (``model name``, ``flags``), {} elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def processor_name() -> str:
    """Returns the processor's name, as recorded in manifests."""
    return first_processor().get("model name") or platform.processor() or platform.machine()


def available_cores() -> int:
    """Returns the number of cores that this process may use, as set by affinity and a container's limit."""
    # There is no affinity on macOS.
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([count, *map(math.ceil, _cgroup_limits())]))


def _cgroup_limits(root: Path = Path("/")) -> Iterator[float]:
    """Yields the processor time, in cores, that control groups of version 1 or 2 leave this process."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        # In a container the path may be that of the host, with only the top visible.
        for place in {top, *(top / part for part in _with_parents(group))}:
            try:
                if controllers:
                    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
                    quota, period = ((place / name).read_text().strip() for name in names)
                else:
                    quota, period = (place / "cpu.max").read_text().split()
                if quota not in ("max", "-1"):
                    yield int(quota) / int(period)
            except (OSError, ValueError, ZeroDivisionError):
                continue


def _with_parents(group: str) -> list[PurePosixPath]:
    path = PurePosixPath(group.lstrip("/"))
    return [path, *path.parents]


def arithmetic() -> dict[str, str | None]:
    """Returns what determines rounding: results on processors with equal values are equal.

    With the AVX2 code that `prepare_processor` requests, only the processor's vendor matters, which MKL looks
    at; otherwise the processor's name and the requests in the environment.
    """
    requested = {name: os.environ.get(name) for name in _AVX2}
    if _has_avx2() and requested == _AVX2:
        return {"code": "AVX2", "maker": first_processor().get("vendor_id", "")}
    return {"processor": processor_name(), "machine": platform.machine(), **requested}


def _has_avx2() -> bool:
    """Whether the processor has AVX2: ATen does not check, and would run unsupported instructions."""
    return platform.machine() in ("x86_64", "AMD64") and "avx2" in first_processor().get("flags", "").split()


def _keep_memory() -> None:
    """Reuses freed memory instead of returning it to the system.

    glibc returns every block of more than 32 MiB at once, and the system then clears each page of the next
    one, which is slow if every step allocates logits of that size.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
