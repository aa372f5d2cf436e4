"""Which backend computes, in which type, in pieces of which size; and checks that make no GPU wait."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

import torch
from torch import Tensor

from troll.common.errors import UserError

Backend = Literal["auto", "torch", "triton"]

# Rows are worked through in pieces of this many elements: float64 temporaries stay at 32 MiB each.
CHUNK_ELEMENTS = 1 << 22
# A row of the projection lives in the registers of one program.
MAX_ATOMS = 2048

_default_backend: ContextVar[Backend] = ContextVar("troll_projection_backend", default="auto")


@functools.cache
def _triton_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


@contextmanager
def default_backend(backend: Backend) -> Iterator[None]:
    """What "auto" means inside: "torch" to compare with, "triton" to run the kernels in Triton's interpreter.

    Args:
        backend: of `troll.project`, `kl_divergence` and the rules that use them.
    """
    token = _default_backend.set(backend)
    try:
        yield
    finally:
        _default_backend.reset(token)


def takes_triton(device: torch.device, backend: Backend = "auto", where: str = "project") -> bool:
    """Whether Triton kernels are to be used: "auto" takes them on CUDA where Triton is installed.

    Args:
        device: of the tensors.
        backend: "auto", "torch" or "triton".
        where: how messages call the caller.

    Raises:
        UserError: an unknown name, or Triton asked for where it cannot run.
    """
    backend = _default_backend.get() if backend == "auto" else backend
    if backend not in ("auto", "torch", "triton"):
        raise UserError(f"{where}: backend is {backend!r}, must be auto, torch or triton")
    if backend == "torch" or (backend == "auto" and device.type != "cuda"):
        return False
    usable = _triton_installed()
    if backend == "triton" and not (
        usable and (device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1")
    ):
        raise UserError(f"{where}: backend triton needs the package triton and a CUDA device")
    return usable


def require(good: Tensor, message: str) -> None:
    """Refuse a condition that does not hold, without a wait where Triton kernels are used.

    Args:
        good: bool, one element.
        message: one line.

    Raises:
        UserError: it does not hold. On CUDA with Triton an assertion on the device fails instead, which
            prints the message and leaves the device unusable for the process.
    """
    if not takes_triton(good.device):
        if not bool(good):
            raise UserError(message)
        return
    try:
        torch._assert_async(good, message)
    except RuntimeError:
        if good.device.type == "cuda":  # an earlier error, that shows here
            raise
        raise UserError(message) from None


def require_equal(a: Tensor, b: Tensor, message: str) -> None:
    """Refuse tensors that differ, as `require` does."""
    if a is b:
        return
    if a.shape != b.shape or not takes_triton(a.device):
        if not torch.equal(a, b):
            raise UserError(message)
        return
    require((a == b).all(), message)


def wide_dtype(device: torch.device) -> torch.dtype:
    """The widest floating type of a device: float64, or float32 where that does not exist (Apple MPS)."""
    return torch.float32 if device.type == "mps" else torch.float64


def result_dtype(*tensors: Tensor) -> torch.dtype:
    """The type of a result: the widest of the inputs, and at least float32.

    A KL divergence near 1e-2 does not survive bfloat16, so half-precision inputs give float32 results.
    """
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def row_chunks(rows: int, width: int) -> Iterator[slice]:
    """Slices that cut [rows, width] into pieces of at most CHUNK_ELEMENTS elements, or one row."""
    step = max(1, CHUNK_ELEMENTS // max(1, width))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))
