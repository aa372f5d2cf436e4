"""Kernels compiled for GPUs that need not be here, and what the assembler that Triton ships says of them."""

import contextlib
import io
import os
import re
import subprocess
import tempfile
from typing import Any

import pytest
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
    """A kernel compiled for a compute capability (80, 90), and how many bytes of registers it spills."""
    own = {key: value for key, value in constants.items() if key in kernel.arg_names}
    source = triton.compiler.ASTSource(kernel, signature_of(kernel, types, own), own, attributes)
    with (
        tempfile.TemporaryDirectory() as cache,  # an empty one: nothing is assembled for what is found there
        pytest.MonkeyPatch.context() as patch,
        knobs.nvidia.scope(),
        contextlib.redirect_stdout(io.StringIO()) as told,
    ):
        patch.setenv("TRITON_CACHE_DIR", cache)
        if logs := hasattr(knobs.nvidia, "dump_ptxas_log"):
            knobs.nvidia.dump_ptxas_log = True
        result = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert f".target sm_{capability}" in result.asm["ptx"]
    log = told.getvalue() if logs else _assembled(result.asm["ptx"])
    spilled = re.findall(r"(\d+) bytes spill (?:stores|loads)", log)
    assert len(spilled) == 2, log
    return result, max(map(int, spilled))


def _assembled(ptx: str) -> str:
    """What the assembler says, which Triton 3.4 keeps to itself."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        target = re.findall(r"\.target (\w+)", ptx)[0]
        command = [knobs.nvidia.ptxas.path, "-v", f"--gpu-name={target}", file.name, "-o", os.devnull]
        return subprocess.run(command, check=True, capture_output=True, text=True).stderr
