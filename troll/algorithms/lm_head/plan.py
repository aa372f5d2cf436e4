"""The tiling of one call, and the matrix products that compute the tiles."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from troll.algorithms.lm_head import tiles
from troll.algorithms.lm_head.tiles import Shape, Workspace


@dataclass(frozen=True)
class Plan:
    """Settings and tiling of one call."""

    shape: Shape
    chunk_tokens: int
    chunk_vocab: int
    operands: torch.dtype
    kernels: "Kernels"

    @property
    def accumulator(self) -> torch.dtype:
        """Data type of logits, sums and gradients."""
        return torch.float64 if self.operands == torch.float64 else torch.float32

    @property
    def narrow(self) -> bool:
        """Whether gradients of logits are kept in 16 bits, by `troll.algorithms.lm_head.triton_gemm`."""
        half = self.operands in (torch.bfloat16, torch.float16)
        return half and self.kernels is not tiles and self.shape.softcap is None

    def workspace(self, tokens: int, vocab: int, device: torch.device) -> Workspace:
        """Allocates the memory for one tile."""
        elements = min(self.chunk_tokens, tokens) * min(self.chunk_vocab, vocab)
        return Workspace(elements, self.accumulator, device)


class Kernels(Protocol):
    """Interface of a backend: the module `tiles` or `triton`."""

    reduce_tile_: Callable[..., None]
    gradient_tile_: Callable[..., Tensor]


def slices(length: int, chunk: int) -> Iterator[slice]:
    """Yields slices from 0 to ``length`` in steps of ``chunk``."""
    for start in range(0, length, chunk):
        yield slice(start, min(start + chunk, length))


def matmul_(out: Tensor, left: Tensor, right: Tensor, *, accumulate: bool = False) -> None:
    """Writes left @ right (+ out) to out, without intermediate rounding to the operands' precision."""
    if out.device.type != "cuda":
        left, right = left.to(out.dtype), right.to(out.dtype)  # mixed-precision products need CUDA
    if left.dtype == out.dtype:
        if accumulate:
            out.addmm_(left, right)
        else:
            torch.mm(left, right, out=out)
    elif accumulate:
        torch.addmm(out, left, right, out_dtype=out.dtype, out=out)
    else:
        torch.mm(left, right, out_dtype=out.dtype, out=out)
