"""Kernels compiled for GPUs that need not be here, and what the assembler that Triton ships says of them."""

import contextlib
import io
import re
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget


def signature_of(kernel: Any, types: dict[str, str], constants: dict[str, Any]) -> dict[str, str]:
    """Types of a kernel's arguments: of ``types``, pointers to float32 where it is silent."""
    return {x: "constexpr" if x in constants else types.get(x, "*fp32") for x in kernel.arg_names}


def compiled(
    kernel: Any,
    types: dict[str, str],
    constants: dict[str, Any],
    capability: int,
    attributes: dict[tuple[int, ...], Any] | None = None,
    **options: int,
) -> tuple[Any, int]:
    """A kernel compiled for a compute capability (80, 90), and how many bytes of registers it spills.

    Its cache must be empty: nothing is assembled for what is found there.
    """
    own = {key: value for key, value in constants.items() if key in kernel.arg_names}
    source = triton.compiler.ASTSource(kernel, signature_of(kernel, types, own), own, attributes)
    with knobs.nvidia.scope(), contextlib.redirect_stdout(io.StringIO()) as told:
        knobs.nvidia.dump_ptxas_log = True
        result = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert f".target sm_{capability}" in result.asm["ptx"]
    spilled = re.findall(r"(\d+) bytes spill (?:stores|loads)", told.getvalue())
    assert len(spilled) == 2, told.getvalue()
    return result, max(map(int, spilled))
