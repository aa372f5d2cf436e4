"""The Triton kernels without a GPU: run by Triton's interpreter, and compiled for real ones."""

import pytest
import torch
from head_oracle import OUTPUTS, assert_no_worse, error, gradients, make_case, outputs_of, run_dense
from kernel_tests import needs_triton, no_waits, on_gpu, run_in_interpreter

from troll.algorithms.lm_head.head import CHUNK_TOKENS, CHUNK_VOCAB, lm_head

pytestmark = needs_triton


@pytest.mark.slow
@pytest.mark.nightly
def test_kernels_in_the_interpreter():
    run_in_interpreter("lm_head_triton_cases.py", timeout=900)


@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_compile_for_cuda(capability):
    """No GPU is needed to compile: a type or syntax error that the interpreter forgives is found here."""
    from kernel_compiler import compiled

    from troll.algorithms.lm_head import triton as kernels

    types = dict.fromkeys(("stride", "step", "columns", "start"), "i32") | dict.fromkeys(
        ("scale", "masked"), "fp32"
    )
    types |= dict.fromkeys(("labels", "support"), "*i64") | {"out": "*bf16"}
    constants = {"K": 48, "BLOCK_K": 64, "BLOCK": 1024, "HAS_SLOPE": True, "HAS_LABEL": True}
    for name in ("_take_kernel", "_fold_kernel", "_gradient_kernel", "_support_kernel"):
        compiled(getattr(kernels, name), types, constants, capability)


# The largest at every change, the others at night: each takes seconds.
@pytest.mark.parametrize(
    ("capability", "keep", "vocab"),
    [
        (90, 256, 151_936),
        *(
            pytest.param(capability, *sizes, marks=pytest.mark.nightly)
            for capability in (80, 90)
            for sizes in ((64, 151_936), (256, 151_936), (64, 50_003))
            if (capability, *sizes) != (90, 256, 151_936)
        ),
    ],
)
def test_kernels_of_top_k_compile_without_spills(capability, keep, vocab):
    from kernel_compiler import compiled, signature_of

    from troll.algorithms.lm_head import triton_topk as kernels

    width = kernels._block_width(vocab, keep)
    types = dict.fromkeys(("stride", "vocab", "blocks", "support_size"), "i32") | dict.fromkeys(
        ("scale", "cap"), "fp32"
    )
    types |= {"labels": "*i64", "ids": "*i32", "chosen": "*i32", "bias": "*bf16"}
    programs = [(*program, {"HAS_BIAS": True, "HAS_CAP": True}) for program in kernels.programs(vocab, keep)]
    types |= {"tokens": "i32"}
    for flags in ({"HAS_BIAS": x, "HAS_CAP": y} for x in (False, True) for y in (False, True)):
        own = {"D": 1024, "B": width, "PROGRAMS": 132, **kernels.product_tile(not any(flags.values()), vocab)}
        if capability >= 90:  # descriptors
            programs.append(("_product_kernel", own, own.pop("num_warps"), flags))
    for name, own, warps, flags in programs:
        kernel = getattr(kernels, name)
        stages = own.pop("num_stages", 3)
        if "BM" in own:
            types |= {x: f"tensordesc<bf16[{own[y]}, {own['BK']}]>" for x, y in (("h", "BM"), ("w", "BN"))}
        constants = own | {key: value for key, value in flags.items() if key in kernel.arg_names}
        signature = signature_of(kernel, types, constants)
        # What Triton sees in a call: aligned memory, and whether sizes are multiples of 16.
        sizes = {"stride": vocab, "vocab": vocab, "support_size": keep}
        aligned = {
            (place,): [["tt.divisibility", 16]]
            for place, x in enumerate(kernel.arg_names)
            if signature[x].startswith("*") or sizes.get(x, 1) % 16 == 0
        }
        options = {"num_warps": warps, "num_stages": stages}
        result, spilled = compiled(kernel, types, constants, capability, aligned, **options)
        assert spilled == 0, (name, flags)
        assert result.metadata.shared <= 227 * 1024, name  # of a Hopper processor
        if name == "_stats_kernel" and vocab % 16 == 0:  # the one that reads all logits: four at a time
            assert "ld.global.v4" in result.asm["ptx"]


@pytest.mark.parametrize("keep", [64, 256])
def test_top_k_of_a_large_vocabulary_never_waits_for_the_device(keep):
    from ops_count import CountOps
    from torch._subclasses.fake_tensor import FakeTensorMode

    from troll.algorithms.lm_head import tiles
    from troll.algorithms.lm_head import triton as kernels
    from troll.algorithms.lm_head.passes import top
    from troll.algorithms.lm_head.plan import Plan

    tokens, width, vocab = 8192, 1024, 151_936
    with FakeTensorMode():  # shapes without memory; a look at a value is an error of its own
        hidden, weight = torch.empty(tokens, width), torch.empty(vocab, width)
        labels = torch.empty(tokens, dtype=torch.int64)
        plan = Plan(tiles.Shape(), CHUNK_TOKENS["cuda"], CHUNK_VOCAB["cuda"], torch.float32, kernels)
        with CountOps(run_kernels=False) as count:
            label_log_probs, _, distribution = top(hidden, weight, None, labels, keep, 1e-5, plan)
    assert label_log_probs.shape == (tokens,) and distribution.log_probs.shape == (tokens, keep)
    selected = sum(count.ops[f"triton: {name}"] for name in ("_select_kernel", "_pick_kernel"))
    assert selected == count.ops["mm"] > 1
    assert count.launches <= 200
    assert count.waits == 0


def test_rows_at_once_take_no_more_memory_than_tiles():
    """Three in float32: two, and what the pass in torch gathers from them (417 MiB in all on an H100)."""
    from troll.algorithms.lm_head.triton_topk import _block_width, _rows_at_once

    tiles = 3 * CHUNK_TOKENS["cuda"] * CHUNK_VOCAB["cuda"]
    assert tiles * 4 <= 400 * 2**20
    for vocab in (32_000, 151_936, 262_144):
        for keep in (1, 64, 256, 1024):
            width = _block_width(vocab, keep)
            rows = _rows_at_once(tiles, vocab, width)
            assert rows >= 128 and rows % 128 == 0
            assert rows * (vocab + 3 * -(-vocab // width)) <= tiles < (rows + 128) * vocab * 1.5
    assert _rows_at_once(tiles, 151_936, _block_width(151_936, 64)) == 512


def test_what_the_kernels_cannot_hold_is_left_to_torch():
    from troll.algorithms.lm_head.triton_topk import fits

    assert fits(151_936, 1024) and fits(5, 64) and fits(1, 1)
    assert not fits(151_936, 1025) and not fits(2_000_000, 64) and not fits(1_000_000, 1024)


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_on_cuda_it_is_no_worse_than_dense_logits(backend, dtype):
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


@on_gpu
@pytest.mark.parametrize("keep", [1, 64, 256, 1024])
@pytest.mark.parametrize(
    ("dtype", "biased"), [(torch.float32, True), (torch.bfloat16, True), (torch.bfloat16, False)], ids=str
)
def test_on_cuda_top_k_is_exact_and_never_waits(dtype, biased, keep):
    from troll.algorithms.lm_head.plan import matmul_

    torch.manual_seed(keep)
    hidden = torch.randn(300, 64, device="cuda", dtype=dtype)
    weight = torch.randn(50_003, 64, device="cuda", dtype=dtype) / 2
    bias = torch.randn(50_003, device="cuda", dtype=dtype)
    bias[50_000:] = -torch.inf
    bias = bias if biased else None
    labels = torch.randint(50_000, (300,), device="cuda")
    options = {"bias": bias, "support_size": keep, "temperature": 0.8}
    options |= {"chunk_tokens": 128, "chunk_vocab": 50_003}
    lm_head(hidden, weight, labels, **options)  # compiles
    with no_waits():
        ours = lm_head(hidden, weight, labels, **options, dropped_mass=1e-5)
    again = lm_head(hidden, weight, labels, **options, dropped_mass=1e-5)
    broken = hidden.clone()
    broken[7, 0] = torch.nan
    lost = lm_head(broken, weight, labels, **options).label_log_probs.isnan()
    assert lost.nonzero().flatten().tolist() == [7]
    theirs = lm_head(hidden, weight, labels, **options, dropped_mass=1e-5, backend="torch")
    for name, values in outputs_of(ours).items():
        assert torch.equal(values, outputs_of(again)[name]), name
        assert error(values, outputs_of(theirs)[name]) < 2e-5, name
    scores = torch.empty(300, 50_003, device="cuda")
    matmul_(scores, hidden, weight.t())
    scores = (scores if bias is None else scores + bias).scatter(1, labels[:, None], -torch.inf)
    best = scores.topk(keep).values[:, -1:]
    ids = ours.distribution.token_ids
    other = (ids >= 0) & (ids != labels[:, None])
    assert (scores.gather(1, ids.clamp(min=0)) >= best - 1e-4)[other].all()


@pytest.mark.parametrize("flags", [False, True])
@pytest.mark.parametrize(
    ("capability", "name"),
    [(90, "fold_gemm"), (90, "gradient_gemm")]
    + [
        (capability, name)
        for capability in (80, 90)
        for name in ("_merge_kernel", "_mark_kernel", "_gather_kernel", "_centred_kernel")
    ],
)
def test_kernels_of_16_bit_products_compile_without_spills(capability, name, flags):
    from kernel_compiler import compiled

    from troll.algorithms.lm_head import triton as tile_kernels
    from troll.algorithms.lm_head import triton_gemm as kernels

    sizes = kernels.GRADIENT if name == "gradient_gemm" else kernels.FOLD
    options = {key: value for key, value in sizes.items() if key.startswith("num_")}
    rows, columns, depth = (sizes[key] for key in ("BM", "BN", "BK"))
    types = dict.fromkeys(
        ("tokens", "columns", "start", "parts", "bits_stride", "h_stride", "w_stride"), "i32"
    )
    types |= dict.fromkeys(("scale", "masked", "floor"), "fp32") | dict.fromkeys(("bits", "busy"), "*i32")
    types |= dict.fromkeys(("labels", "support"), "*i64") | dict.fromkeys(("tile", "centre"), "*bf16")
    if name in ("fold_gemm", "gradient_gemm"):
        types |= {"h": f"tensordesc<bf16[{rows}, {depth}]>", "w": f"tensordesc<bf16[{columns}, {depth}]>"}
        types |= {"out": f"tensordesc<bf16[{rows}, {columns}]>"}
    else:
        types, options = types | {"h": "*bf16", "w": "*bf16"}, {"num_warps": 4}
    constants = {key: value for key, value in sizes.items() if key not in options}
    constants |= {"D": 1024, "K": 64, "BLOCK_K": 64, "SLOTS": 16, "PARTS": 32, "TOKENS": 32, "COLUMNS": 16}
    constants |= {"PROGRAMS": 132}
    constants |= {"BLOCK": 1024 if name == "_centred_kernel" else 256}
    constants |= dict.fromkeys(("HAS_BIAS", "HAS_BITS", "HAS_SLOPE", "HAS_LABEL"), flags)
    kernel = getattr(tile_kernels if name == "_centred_kernel" else kernels, name)
    result, spilled = compiled(kernel, types, constants, capability, **options)
    assert spilled == 0
    assert result.metadata.shared <= 227 * 1024  # of a Hopper processor
    if name in ("fold_gemm", "gradient_gemm"):  # Hopper's own products, and a tile through its copy engine
        assert "wgmma.mma_async" in result.asm["ptx"] and "cp.async.bulk.tensor" in result.asm["ptx"]


@pytest.mark.parametrize("keep", [64, 256])
@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_of_rows_compile_without_spills(capability, keep):
    from kernel_compiler import compiled

    from troll.algorithms.lm_head import triton_rows as kernels

    types = dict.fromkeys(("labels", "support", "token_ids"), "*i64") | {"vocab": "i32"}
    types |= dict.fromkeys(("good", "busy", "ids"), "*i32")
    types |= dict.fromkeys(("slope", "dropped_mass", "dropped_rest"), "fp32")
    constants = kernels._sizes(keep) | {"GROUP": kernels.GROUP}
    options = {"num_warps": constants.pop("num_warps")}
    flags = ("HAS_SUPPORT", "HAS_LABEL", "HAS_ENTROPY", "HAS_OF_SUPPORT", "HAS_TAIL")
    constants |= dict.fromkeys(flags, True)
    for name in ("_check_kernel", "_finish_kernel", "_gradients_kernel", "_keep_kernel"):
        _, spilled = compiled(getattr(kernels, name), types, constants, capability, **options)
        assert spilled == 0, name


def on_cuda(case, dtype):
    """Leaves of a case on the device, and the rest of it there."""
    leaves = [x.detach().to(dtype).cuda().requires_grad_() for x in case.leaves()]
    return leaves, {**case.arguments(leaves), "labels": case.labels.cuda()}, case.support.cuda()


def run_on_cuda(case, dtype, **options):
    """The outputs, on the CPU in float64, of the head on the device, and its leaves."""
    leaves, arguments, support = on_cuda(case, dtype)
    head = lm_head(**arguments, support=support, chunk_tokens=256, chunk_vocab=1024, **options)
    return {name: x.cpu().double() for name, x in outputs_of(head).items()}, leaves


@pytest.fixture(params=["descriptors", "cublas"])
def way(request, monkeypatch):
    from troll.algorithms.lm_head import triton_gemm

    device = torch.device("cuda")
    if request.param == "descriptors" and not triton_gemm.has_descriptors(device):
        pytest.skip("no tensor memory descriptors")
    monkeypatch.setattr(triton_gemm, "has_descriptors", lambda device: request.param == "descriptors")
    return request.param


@on_gpu
@pytest.mark.parametrize(
    ("dtype", "options", "keep"),
    [(torch.bfloat16, options, 37) for options in ("plain", "bias", "temperature", "scale", "softcap")]
    + [(torch.bfloat16, "bias", 1), (torch.bfloat16, "plain", 300), (torch.float16, "bias", 37)],
    ids=str,
)
def test_on_cuda_16_bit_products_equal_full_logits_in_float64(way, dtype, options, keep):
    case = make_case(1100, 64, 5003, keep, options, dtype)
    for wanted in ("label", "entropy", "tail", "all"):
        truth, true_leaves = run_dense(case, torch.float64)
        got, leaves = run_on_cuda(case, dtype)
        wide, wide_leaves = run_on_cuda(case, dtype, backend="torch")
        for name in OUTPUTS:
            assert error(got[name], truth[name]) < 2e-5, name
        found = gradients(got, wanted, leaves), gradients(wide, wanted, wide_leaves)
        for ours, tiles, true in zip(*found, gradients(truth, wanted, true_leaves), strict=True):
            assert ours.dtype == dtype
            norms = [(x.cpu().double() - true).norm() / true.norm() for x in (ours, tiles)]
            assert norms[0] <= 1.5 * norms[1], wanted


@on_gpu
def test_on_cuda_16_bit_products_are_repeatable_never_wait_and_leave_idle_rows_at_zero(way):
    case = make_case(1100, 64, 5003, 37, "bias", torch.bfloat16)
    leaves, arguments, support = on_cuda(case, torch.bfloat16)
    above = torch.randn(1100, device="cuda")
    above[256:640] = 0  # blocks of rows that the product leaves out
    above[3] = 0

    def step():
        head = lm_head(**arguments, support=support, chunk_tokens=256, chunk_vocab=1024)
        outputs = outputs_of(head)
        above_support = above[:, None].expand_as(support)
        found = torch.autograd.grad(
            [outputs["label"], outputs["tail"], outputs["log_probs"]], leaves, [above, above, above_support]
        )
        return [*outputs.values(), *found]

    first = step()
    with no_waits():
        again = step()
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    hidden = first[len(first) - len(leaves)]
    assert ((hidden == 0).all(1) == (above == 0)).all()


@on_gpu
def test_on_cuda_float32_weights_under_autocast_are_multiplied_in_16_bits(way):
    case = make_case(700, 64, 5003, 37, "temperature", torch.bfloat16)
    truth, true_leaves = run_dense(case, torch.float64)
    with torch.autocast("cuda", torch.bfloat16):
        got, leaves = run_on_cuda(case, torch.float32)
    for name in OUTPUTS:
        assert error(got[name], truth[name]) < 2e-5, name
    found = gradients(got, "all", leaves), gradients(truth, "all", true_leaves)
    for ours, true in zip(*found, strict=True):
        assert ours.dtype == torch.float32
        assert (ours.cpu().double() - true).norm() <= 5e-3 * true.norm()


@on_gpu
def test_on_cuda_16_bit_products_take_no_more_memory_than_tiles(way):
    hidden = torch.randn(8192, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(65_536, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(65_536, (8192,), device="cuda")
    support = torch.arange(64, device="cuda").expand(8192, 64) + labels[:, None] // 2
    above = torch.ones(8192, device="cuda")

    def peak(backend):
        for _ in range(2):
            hidden.grad = weight.grad = None
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            lm_head(hidden, weight, labels, support=support, backend=backend).label_log_probs.backward(above)
        return torch.cuda.max_memory_allocated() - before

    assert peak("auto") <= peak("torch")
    assert peak("auto") <= 1.5 * 128 * 2**20 + 40 * 2**20  # a float32 tile, and the 16 bits of it, as before
