"""The Triton kernels without a GPU: run by Triton's interpreter, and compiled for real ones."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed (pip install triton)"
)


@pytest.mark.slow
def test_kernels_in_the_interpreter():
    cases = Path(__file__).with_name("lm_head_triton_cases.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(cases)]
    done = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels cannot be compiled"
)
@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_compile_for_cuda(capability, tmp_path, monkeypatch):
    """No GPU is needed to compile: a type or syntax error that the interpreter forgives is found here."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    import triton
    from triton.backends.compiler import GPUTarget

    from troll.algorithms.lm_head import triton as kernels

    types = dict.fromkeys(("stride", "columns", "start"), "i32") | dict.fromkeys(("scale", "masked"), "fp32")
    types |= dict.fromkeys(("labels", "support"), "*i64") | {"out": "*bf16"}
    constants = {"K": 48, "BLOCK_K": 64, "BLOCK": 1024, "HAS_SLOPE": True, "HAS_LABEL": True}
    for name in ("_take_kernel", "_fold_kernel", "_gradient_kernel", "_support_kernel"):
        kernel = getattr(kernels, name)
        own = {key: value for key, value in constants.items() if key in kernel.arg_names}
        signature = {x: "constexpr" if x in own else types.get(x, "*fp32") for x in kernel.arg_names}
        source = triton.compiler.ASTSource(kernel, signature, own)
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
        assert f".target sm_{capability}" in compiled.asm["ptx"], name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_on_cuda_it_is_no_worse_than_dense_logits(backend, dtype):
    from head_oracle import OUTPUTS, assert_no_worse, gradients, make_case, outputs_of, run_dense

    from troll.algorithms.lm_head.head import lm_head

    case = make_case(300, 64, 5003, 37, "all", dtype)

    leaves = [x.detach().cuda().requires_grad_() for x in case.leaves()]
    head = lm_head(
        **{**case.arguments(leaves), "labels": case.labels.cuda()},
        support=case.support.cuda(),
        backend=backend,
        chunk_tokens=128,
        chunk_vocab=1500,
    )
    got = {name: x.cpu() for name, x in outputs_of(head).items()}
    (naive, naive_leaves), (truth, true_leaves) = run_dense(case, dtype), run_dense(case, torch.float64)
    for name in OUTPUTS:
        assert_no_worse(got[name], naive[name], truth[name], case, name)
    found = gradients(got, "all", leaves)
    others = gradients(naive, "all", naive_leaves), gradients(truth, "all", true_leaves)
    for ours, theirs, true in zip(found, *others, strict=True):
        assert_no_worse(ours.cpu(), theirs, true, case, "gradient")
