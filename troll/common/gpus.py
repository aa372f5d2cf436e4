"""Checks that the requested GPUs are there, and avoids a bug of cuDNN."""

import os

from troll.common.errors import UserError

ALLOW_CPU = "TROLL_ALLOW_CPU"
"""Environment variable: with 1, work that requests GPUs runs on the CPU if there are none (for tests)."""


def require_gpus(asked: int, where: str) -> int:
    """Returns the number of visible GPUs (0 if none is asked for); `UserError` if there are too few."""
    if not asked:
        return 0
    from torch.cuda import device_count

    shown = device_count()
    if shown >= asked or (not shown and os.environ.get(ALLOW_CPU) == "1"):
        return shown
    remedy = f"set {shown}" if shown else "set 0 to use the CPU"
    raise UserError(
        f"{where} is {asked}, but the number of visible GPUs is {shown}; request more GPUs, or {remedy}"
    )


def without_cudnn_attention() -> None:
    """Disables cuDNN for torch's scaled dot-product attention in this process.

    Since torch 2.11 cuDNN is the first choice on Hopper for 16-bit types, but its gradient of the queries is
    NaN for some batches with a mask and a length of 64 modulo 128
    (https://github.com/pytorch/pytorch/issues/196678).
    """
    import torch

    if torch.cuda.is_available():
        torch.backends.cuda.enable_cudnn_sdp(False)
