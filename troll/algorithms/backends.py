"""Choice of backend, data types and chunk sizes, and checks that do not synchronise with the GPU."""

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

# Rows are processed in chunks of this many elements, which limits float64 temporaries to 32 MiB each.
CHUNK_ELEMENTS = 1 << 22
# Maximum row length of the projection kernel, which keeps a row in the registers of one program.
MAX_ATOMS = 2048

_default_backend: ContextVar[Backend] = ContextVar("troll_projection_backend", default="auto")


@functools.cache
def _triton_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


@contextmanager
def default_backend(backend: Backend) -> Iterator[None]:
    """Context manager that sets the backend meant by "auto".

    Args:
        backend: default of `troll.project`, `kl_divergence` and the rules that use them, such as "torch" for
            comparisons or "triton" for kernels in Triton's interpreter.
    """
    token = _default_backend.set(backend)
    try:
        yield
    finally:
        _default_backend.reset(token)


def takes_triton(device: torch.device, backend: Backend = "auto", where: str = "project") -> bool:
    """Whether to use Triton kernels; "auto" uses them on CUDA if Triton is installed.

    Args:
        device: device of the tensors.
        backend: "auto", "torch" or "triton".
        where: the caller's name in error messages.

    Raises:
        UserError: an unknown backend, or "triton" where it cannot run.
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
    """Require a condition, without synchronising with the device where Triton kernels are used.

    Args:
        good: the condition, a bool tensor with one element.
        message: the error message, one line.

    Raises:
        UserError: the condition is false. On CUDA with Triton a device-side assertion fails instead, which
            prints the message and leaves the device unusable for the process.
    """
    if not takes_triton(good.device):
        if not bool(good):
            raise UserError(message)
        return
    try:
        torch._assert_async(good, message)
    except RuntimeError:
        if good.device.type == "cuda":  # an earlier asynchronous error that surfaces here
            raise
        raise UserError(message) from None


def require_equal(a: Tensor, b: Tensor, message: str) -> None:
    """Require equal tensors, see `require`."""
    if a is b:
        return
    if a.shape != b.shape or not takes_triton(a.device):
        if not torch.equal(a, b):
            raise UserError(message)
        return
    require((a == b).all(), message)


def wide_dtype(device: torch.device) -> torch.dtype:
    """The widest floating-point type of a device: float64, or float32 without float64 support (Apple MPS)."""
    return torch.float32 if device.type == "mps" else torch.float64


def result_dtype(*tensors: Tensor) -> torch.dtype:
    """The data type of a result: the widest of the inputs, and at least float32.

    bfloat16 is too coarse for a KL divergence near 1e-2, so half-precision inputs give float32 results.
    """
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def row_chunks(rows: int, width: int) -> Iterator[slice]:
    """Yield slices of the rows of [rows, width] with at most CHUNK_ELEMENTS elements, or one row."""
    step = max(1, CHUNK_ELEMENTS // max(1, width))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))
