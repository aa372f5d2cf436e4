"""What a process asks of processor and memory before torch and numpy are imported."""

import ctypes
import os
import platform
import re
import sys
from pathlib import Path

# One branch of the code of ATen, oneDNN and MKL for all processors that have AVX2: a wider one adds in
# another order, and training amplifies the last bit.
_AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"}
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_KEPT_BYTES = 1 << 30


def prepare_processor() -> None:
    """Asks for one thread, for AVX2 and for memory that is kept; what the environment says already stays."""
    # Tiny models on a CPU are fastest with one thread; Snakemake sets this to a rule's threads.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if _has_avx2():
        for name, value in _AVX2.items():
            os.environ.setdefault(name, value)
    if sys.platform == "linux":
        _keep_memory()


def _has_avx2() -> bool:
    """Whether the processor has AVX2: ATen believes the environment, and would run what is not there."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    try:
        return re.search(r"^flags\s*:.*\bavx2\b", Path("/proc/cpuinfo").read_text(), re.MULTILINE) is not None
    except OSError:  # no Linux
        return False


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
