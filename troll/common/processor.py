"""What a process asks of processor, memory and libraries before torch and numpy are imported."""

import ctypes
import os
import platform
import sys
from functools import cache
from pathlib import Path

# One branch of the code of ATen, oneDNN and MKL for all processors that have AVX2: a wider one adds in
# another order, and training amplifies the last bit.
_AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"}
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
    """Asks for one thread, for AVX2 and for memory that is kept; what the environment says already stays."""
    # Tiny models on a CPU are fastest with one thread; Snakemake sets this to a rule's threads.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if _has_avx2():
        for name, value in _AVX2.items():
            os.environ.setdefault(name, value)
    if sys.platform == "linux":
        _keep_memory()


def quiet_libraries() -> None:
    """Silences the libraries' progress bars and advice before they are imported; a user's settings stay."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)


@cache
def first_processor() -> dict[str, str]:
    """What Linux says of the first processor, by its names (``model name``, ``flags``); nothing elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def processor_name() -> str:
    """The processor's name, as manifests give it."""
    return first_processor().get("model name") or platform.processor() or platform.machine()


def available_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def arithmetic() -> dict[str, str | None]:
    """What decides which code computes: processors that tell the same round alike.

    Where it is the code for AVX2 that `prepare_processor` asks for, the processor's maker is all that is
    left, since MKL looks at it; elsewhere the processor's name, and what the environment asks for.
    """
    asked = {name: os.environ.get(name) for name in _AVX2}
    if _has_avx2() and asked == _AVX2:
        return {"code": "AVX2", "maker": first_processor().get("vendor_id", "")}
    return {"processor": processor_name(), "machine": platform.machine(), **asked}


def _has_avx2() -> bool:
    """Whether the processor has AVX2: ATen believes the environment, and would run what is not there."""
    return platform.machine() in ("x86_64", "AMD64") and "avx2" in first_processor().get("flags", "").split()


def _keep_memory() -> None:
    """Lets freed memory be used again instead of returning it to the system.

    glibc returns every block of more than 32 MiB at once, and the system clears each page of the next one:
    much work where every step makes logits of that size.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
