"""Checks that the requested GPUs are there, gives each job its own, and avoids a bug of cuDNN."""

import fcntl
import os
import tempfile
from pathlib import Path

from troll.common.errors import UserError
from troll.common.programs import output_of
from troll.common.progress import say

ALLOW_CPU = "TROLL_ALLOW_CPU"
"""Environment variable: with 1, work that requests GPUs runs on the CPU if there are none (for tests)."""
CUDA_BUILD = "TORCH=cuda make env"
"""The command that installs a torch for GPUs, on any machine."""
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_held: list[int] = []
"""Handles of the locks of this process's GPUs, which the operating system releases when it ends."""


def require_gpus(requested: int, where: str) -> int:
    """Takes GPUs that no other job uses, and returns the number of visible ones (0 if none is requested).

    Raises:
        UserError: there are fewer than ``requested``, which the user has set ``where``.
    """
    if not requested:
        return 0
    _take(requested)
    from torch.cuda import device_count

    shown = device_count()
    if shown >= requested or (not shown and os.environ.get(ALLOW_CPU) == "1"):
        return shown
    if cpu_build := torch_for_cpus():
        raise UserError(
            f"{where} is {requested}, but torch {cpu_build} is a build for CPUs, which sees no GPU; "
            f"{CUDA_BUILD}, or set 0 to use the CPU"
        )
    remedy = f"set {shown}" if shown else "set 0 to use the CPU"
    raise UserError(
        f"{where} is {requested}, but the number of visible GPUs is {shown}; request more GPUs, or {remedy}"
    )


def torch_for_cpus() -> str:
    """Returns the version of torch if it is a build without support for GPUs; else an empty text."""
    try:
        import torch
    except ImportError:
        return ""
    return "" if torch.version.cuda or torch.version.hip else str(torch.__version__)


def visible_gpus() -> list[str]:
    """Returns the GPUs that a process may use, as in CUDA_VISIBLE_DEVICES; needs no torch.

    These are the GPUs in that variable; without it, the indices of all NVIDIA GPUs.
    """
    if (given := os.environ.get(_VISIBLE)) is not None:
        names = [name.strip() for name in given.split(",") if name.strip()]
        return names[: names.index("-1")] if "-1" in names else names  # CUDA ignores what follows
    return (output_of("nvidia-smi", "--query-gpu=index", "--format=csv,noheader") or "").split()


def _take(requested: int) -> None:
    """Makes only ``requested`` GPUs visible to this process, if possible ones that no other one has taken.

    A scheduler does that for its jobs; without one, every job would use the first GPU.
    """
    gpus = visible_gpus()
    if "SLURM_JOB_ID" in os.environ or len(gpus) <= requested:
        return
    free = [gpu for gpu in gpus if len(_held) < requested and _lock(gpu)]
    if len(free) < requested:
        say(f"only {len(free)} of {len(gpus)} GPUs are free, and {requested} are needed: jobs share some")
        free += [gpu for gpu in gpus if gpu not in free][: requested - len(free)]
    os.environ |= {_VISIBLE: ",".join(free), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _lock(gpu: str) -> bool:
    """Locks a GPU for this process; False if another process has locked it, or its file cannot be opened."""
    path = Path(tempfile.gettempdir(), f"troll-gpu-{gpu.replace('/', '-')}.lock")
    try:
        # Without O_CREAT, with which Linux refuses another user's file in /tmp (fs.protected_regular).
        handle = os.open(path, os.O_RDONLY | (0 if path.exists() else os.O_CREAT), 0o644)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return False
    _held.append(handle)
    return True


def without_cudnn_attention() -> None:
    """Disables cuDNN for torch's scaled dot-product attention in this process.

    Since torch 2.11 cuDNN is the first choice on Hopper for 16-bit types, but its gradient of the queries is
    NaN for some batches with a mask and a length of 64 modulo 128
    (https://github.com/pytorch/pytorch/issues/196678).
    """
    import torch

    if torch.cuda.is_available():
        torch.backends.cuda.enable_cudnn_sdp(False)
