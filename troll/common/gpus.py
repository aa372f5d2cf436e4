"""Whether this machine has the GPUs that a command was promised."""

import os

from troll.common.errors import UserError

ALLOW_CPU = "TROLL_ALLOW_CPU"
"""Set to 1, work that asks for GPUs runs on the CPU where there are none: in rehearsals and tests."""


def require_gpus(asked: int, where: str) -> int:
    """The number of GPUs that this machine shows; refuses to go on with fewer than ``asked``."""
    if not asked:
        return 0
    from torch.cuda import device_count

    shown = device_count()
    if shown >= asked or (not shown and os.environ.get(ALLOW_CPU) == "1"):
        return shown
    remedy = f"set {shown}" if shown else "set 0 to use the CPU"
    raise UserError(
        f"{where} is {asked}, but this machine shows {shown or 'none'}; ask for more, or {remedy}"
    )


def without_cudnn_attention() -> None:
    """Keep torch's scaled dot-product attention from cuDNN, in this process.

    From torch 2.11 on it is the first choice on Hopper for 16-bit types, and the gradient of its queries is
    NaN for some batches with a mask and a length that leaves 64 modulo 128
    (https://github.com/pytorch/pytorch/issues/196678).
    """
    import torch

    if torch.cuda.is_available():
        torch.backends.cuda.enable_cudnn_sdp(False)
