"""The Triton kernels without a GPU: run by Triton's interpreter, and compiled for real ones."""

import importlib.util
import os
import re
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


def spills(compiled, capability, tmp_path):
    """Bytes of registers that do not fit, as the assembler that Triton ships tells them."""
    from triton import knobs

    source = tmp_path / "kernel.ptx"
    source.write_text(compiled.asm["ptx"])
    arch = re.search(r"\.target (sm_\w+)", compiled.asm["ptx"])[1]
    assert arch.startswith(f"sm_{capability}")
    command = [knobs.nvidia.ptxas.path, "-v", f"--gpu-name={arch}", str(source), "-o", os.devnull]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    found = re.findall(r"(\d+) bytes spill (?:stores|loads)", told)
    assert len(found) == 2, told
    return max(int(number) for number in found)


@pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels cannot be compiled"
)
@pytest.mark.parametrize("keep", [64, 256])
@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_of_top_k_compile_without_spills(capability, keep, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    import triton
    from triton.backends.compiler import GPUTarget

    from troll.algorithms.lm_head import triton_topk as kernels

    vocab = 151_936
    types = dict.fromkeys(("stride", "vocab", "blocks", "keep"), "i32") | dict.fromkeys(
        ("scale", "cap"), "fp32"
    )
    types |= {"labels": "*i64", "ids": "*i32", "chosen": "*i32", "bias": "*bf16"}
    for name, own, warps in kernels.programs(vocab, keep):
        kernel = getattr(kernels, name)
        flags = {"HAS_BIAS": True, "HAS_CAP": True}
        constants = own | {key: value for key, value in flags.items() if key in kernel.arg_names}
        signature = {x: "constexpr" if x in constants else types.get(x, "*fp32") for x in kernel.arg_names}
        # What Triton sees in a call: aligned memory, and sizes that are multiples of 16.
        aligned = {
            (place,): [["tt.divisibility", 16]]
            for place, x in enumerate(kernel.arg_names)
            if signature[x].startswith("*") or x in ("stride", "vocab", "keep")
        }
        source = triton.compiler.ASTSource(kernel, signature, constants, aligned)
        target = GPUTarget("cuda", capability, 32)
        compiled = triton.compile(source, target=target, options={"num_warps": warps})
        assert spills(compiled, capability, tmp_path) == 0, name
        if name == "_stats_kernel":  # the one that reads all logits: four at a time
            assert "ld.global.v4" in compiled.asm["ptx"]


@pytest.mark.parametrize("keep", [64, 256])
def test_top_k_of_a_large_vocabulary_never_waits_for_the_device(keep):
    from ops_count import CountOps
    from torch._subclasses.fake_tensor import FakeTensorMode

    from troll.algorithms.lm_head import tiles
    from troll.algorithms.lm_head import triton as kernels
    from troll.algorithms.lm_head.head import CHUNK_TOKENS, CHUNK_VOCAB
    from troll.algorithms.lm_head.passes import Plan, top

    tokens, width, vocab = 8192, 1024, 151_936
    with FakeTensorMode():  # shapes without memory; a look at a value is an error of its own
        hidden, weight = torch.empty(tokens, width), torch.empty(vocab, width)
        labels = torch.empty(tokens, dtype=torch.int64)
        plan = Plan(tiles.Shape(), CHUNK_TOKENS["cuda"], CHUNK_VOCAB["cuda"], torch.float32, kernels)
        with CountOps(run_kernels=False) as count:
            label_log_probs, _, distribution = top(hidden, weight, None, labels, keep, 1e-5, plan)
    assert label_log_probs.shape == (tokens,) and distribution.log_probs.shape == (tokens, keep)
    assert count.ops["triton: _select_kernel"] == count.ops["mm"] > 1
    assert count.launches <= 200
    assert count.waits == 0


def test_rows_at_once_take_no_more_memory_than_tiles():
    """The tiles: one of logits and one of scratch, in float32."""
    from troll.algorithms.lm_head.head import CHUNK_TOKENS, CHUNK_VOCAB
    from troll.algorithms.lm_head.triton_topk import _block_width, _rows_at_once

    tiles = 2 * CHUNK_TOKENS["cuda"] * CHUNK_VOCAB["cuda"]
    for vocab in (32_000, 151_936, 262_144):
        for keep in (1, 64, 256, 1024):
            width = _block_width(vocab, keep)
            rows = _rows_at_once(tiles, vocab, width)
            assert rows >= 128 and rows % 128 == 0
            assert rows * (vocab + 3 * -(-vocab // width)) <= tiles < (rows + 128) * vocab * 1.5


def test_what_the_kernels_cannot_hold_is_left_to_torch():
    from troll.algorithms.lm_head.triton_topk import fits

    assert fits(151_936, 1024) and fits(5, 64) and fits(1, 1)
    assert not fits(151_936, 1025) and not fits(2_000_000, 64) and not fits(1_000_000, 1024)


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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("keep", [1, 64, 256, 1024])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_on_cuda_top_k_is_exact_and_never_waits(dtype, keep):
    from head_oracle import error, outputs_of

    from troll.algorithms.lm_head.head import lm_head
    from troll.algorithms.lm_head.passes import matmul_

    torch.manual_seed(keep)
    hidden = torch.randn(300, 64, device="cuda", dtype=dtype)
    weight = torch.randn(50_003, 64, device="cuda", dtype=dtype) / 2
    bias = torch.randn(50_003, device="cuda", dtype=dtype)
    bias[50_000:] = -torch.inf
    labels = torch.randint(50_000, (300,), device="cuda")
    options = {"bias": bias, "keep": keep, "temperature": 0.8, "chunk_tokens": 128, "chunk_vocab": 50_003}
    lm_head(hidden, weight, labels, **options)  # compiles
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        ours = lm_head(hidden, weight, labels, **options, dropped_mass=1e-5)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    again = lm_head(hidden, weight, labels, **options, dropped_mass=1e-5)
    theirs = lm_head(hidden, weight, labels, **options, dropped_mass=1e-5, backend="torch")
    for name, values in outputs_of(ours).items():
        assert torch.equal(values, outputs_of(again)[name]), name
        assert error(values, outputs_of(theirs)[name]) < 2e-5, name
    scores = torch.empty(300, 50_003, device="cuda")
    matmul_(scores, hidden, weight.t())
    scores = (scores + bias).scatter(1, labels[:, None], -torch.inf)
    best = scores.topk(keep).values[:, -1:]
    ids = ours.distribution.token_ids
    other = (ids >= 0) & (ids != labels[:, None])
    assert (scores.gather(1, ids.clamp(min=0)) >= best - 1e-4)[other].all()
