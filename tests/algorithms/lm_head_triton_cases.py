"""Run by test_lm_head_triton.py in a process of its own: TRITON_INTERPRET is read when triton is imported."""

import os

import pytest
import torch
import triton
import triton.language as tl
from fast_interpreter import quicken
from head_oracle import (
    OPTIONS,
    OUTPUTS,
    assert_no_worse,
    centred,
    dense_head,
    dense_logits,
    gradients,
    gradients_of,
    make_case,
    outputs_of,
    run_dense,
    run_head,
)
from ops_count import CountOps

from troll.algorithms.backends import default_backend
from troll.algorithms.distributions import SparseLogProbs
from troll.algorithms.lm_head import head as head_module
from troll.algorithms.lm_head import triton as triton_kernels
from troll.algorithms.lm_head import triton_gemm, triton_rows, triton_topk
from troll.algorithms.lm_head.head import lm_head
from troll.algorithms.lm_head.passes import Head
from troll.algorithms.lm_head.plan import Plan
from troll.algorithms.lm_head.tiles import FLOOR, MASKED, RowGradients, RunningSums, Shape
from troll.algorithms.lm_head.topk import TopK, select
from troll.algorithms.trust_regions import TokenPolicy, make_trust_region

assert os.environ["TRITON_INTERPRET"] == "1"
quicken()


@pytest.mark.parametrize(
    ("dtype", "options"),
    [*((torch.float32, name) for name in OPTIONS), (torch.bfloat16, "plain"), (torch.bfloat16, "all")],
    ids=str,
)
def test_triton_is_no_worse_than_dense_logits(dtype, options):
    case = make_case(13, 17, 130, 9, options, dtype)
    truth, true_leaves = run_dense(case, torch.float64)
    naive, naive_leaves = run_dense(case, dtype)
    got, leaves = run_head(case, 8, 70, backend="triton")

    def gradient(outputs, own):
        return torch.autograd.grad(loss(outputs, name), own, retain_graph=True)

    for name in OUTPUTS:
        assert_no_worse(got[name], naive[name], truth[name], case, name)
        found = gradient(got, leaves), gradient(naive, naive_leaves), gradient(truth, true_leaves)
        for ours, theirs, true in zip(*found, strict=True):
            assert_no_worse(ours, theirs, true, case, f"gradient of {name}")


def loss(outputs, name):
    values = outputs[name]
    return (values * torch.linspace(-1, 1, values.numel()).view(values.shape))[values > -torch.inf].sum()


def test_triton_equals_torch_over_several_blocks_of_a_row():
    # 2,500 columns in one tile: three blocks, the last one short; the support is wider than a power of two.
    case = make_case(3, 4, 2500, 37, "all", torch.float32)
    ours, leaves = run_head(case, 2, 2500, backend="triton")
    theirs, other = run_head(case, 2, 2500, backend="torch")
    for name in OUTPUTS:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=3e-6)
    for a, b in zip(gradients(ours, "all", leaves), gradients(theirs, "all", other), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_triton_without_support():
    case = make_case(9, 5, 100, 4, "temperature", torch.float32)
    outcomes = []
    for backend in ("triton", "torch"):
        leaves = case.leaves()
        head = lm_head(**case.arguments(leaves), backend=backend, chunk_tokens=4, chunk_vocab=32)
        total = head.label_log_probs.sum() + head.entropy.sum()
        outcomes.append([head.label_log_probs, head.entropy, *torch.autograd.grad(total, leaves)])
    for a, b in zip(*outcomes, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


ROWS = ("normal", "ties", "constant", "ascending", "descending", "half -inf", "few finite", "one block")


def rows_of(kind, vocab):
    places = torch.arange(vocab, dtype=torch.float32)
    normal = 4 * torch.randn(2, vocab)
    return {
        "normal": normal,
        "ties": normal.round(),
        "constant": torch.zeros(2, vocab),
        "ascending": (places / 50).expand(2, vocab),  # the last block beats all others
        "descending": (-places / 50).expand(2, vocab),
        "half -inf": normal.masked_fill(torch.rand(2, vocab) < 0.5, -torch.inf),
        "few finite": normal.masked_fill(torch.rand(2, vocab) < 0.99, -torch.inf),
        "one block": normal - 1000 * (places // 64 != vocab // 128),  # all candidates are neighbours
    }[kind].contiguous()


def top_chunk(scores, labels, keep, width, shape, product=False):
    """What the three kernels say of raw scores [n, V]: values, ids, label logits and sums of the rest."""
    tokens, vocab = scores.shape
    factors = None
    if product:  # by unit vectors: exact
        factors = torch.eye(tokens, 8), torch.nn.functional.pad(scores.T, (0, 8 - tokens)).contiguous()
        scores = torch.full_like(scores, torch.nan)
    nothing = torch.full((tokens, keep), torch.nan)
    ids, own = torch.full((tokens, keep), -7, dtype=torch.int32), torch.full((tokens,), torch.nan)
    statistics = torch.full((3, tokens, -(-vocab // width)), torch.nan)
    chosen = torch.full((tokens, keep), -7, dtype=torch.int32)
    rest = RunningSums(*torch.full((3, tokens), torch.nan))
    triton_topk.top_chunk_(
        scores, None, labels, shape, width, statistics, chosen, nothing, ids, own, rest, factors
    )  # fmt: skip
    return nothing, ids.long(), own, rest


def check_rest(rest, logits, taken):
    """Log-sum-exp and entropy of the logits outside ``taken`` (bool), which may be none, against float64."""
    left = logits.double().masked_fill(taken | (logits <= FLOOR), -torch.inf)
    want = left.logsumexp(-1)
    some = want > -torch.inf
    assert (rest.total[~some] == 0).all() and (rest.weighted[~some] == 0).all()
    got = (rest.maximum.double() + rest.total.double().log())[some]
    # The maximum is a float32: the sum itself is held to a few units in its last place.
    torch.testing.assert_close(got, want[some], rtol=0, atol=5e-7)
    log_probs = (left - want.unsqueeze(1))[some]
    surprise = log_probs.exp() * log_probs.masked_fill(log_probs == -torch.inf, 0.0)
    torch.testing.assert_close(rest.entropy()[some].double(), -surprise.sum(-1), rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("vocab", [1, 5, 63, 65, 500, 4097])
@pytest.mark.parametrize("keep", [1, 17, 64, 256])
def test_rows_equal_torch_topk(vocab, keep):
    torch.manual_seed(vocab + keep)
    widths = {triton_topk._block_width(vocab, keep): False, 8: False}
    products = {64: True, 32: True}
    for kind in ROWS:
        for width, product in {**widths, **(products if kind in ("normal", "one block") else {})}.items():
            raw, labels = rows_of(kind, vocab), torch.randint(vocab, (2,))
            if kind != "few finite":  # one label among the best, one anywhere
                labels[0] = raw[0].argmax()
            shape = Shape(temperature=1.0 if width == 8 else 1.4)
            logits = (raw * shape.slope).clamp(min=MASKED)
            values, ids, own, rest = top_chunk(raw, labels, keep, width, shape, product)
            case = f"{kind}, B {width}, product {product}"
            assert torch.equal(own, logits.gather(1, labels[:, None]).squeeze(1)), case
            logits.scatter_(1, labels[:, None], MASKED)
            best = logits.topk(min(keep, vocab)).values
            best = torch.nn.functional.pad(best, (0, keep - best.shape[1]), value=MASKED)
            ordered = values.clamp(min=MASKED).sort(-1, descending=True).values
            assert torch.equal(ordered, best), case
            used = values > FLOOR
            assert torch.equal(logits.gather(1, ids.clamp(min=0))[used], values[used]), case
            assert torch.equal(ids == -1, values == -torch.inf) and (ids < vocab).all(), case
            real = [row[row >= 0].tolist() for row in ids]
            assert all(len(set(row)) == len(row) for row in real), case
            taken = torch.zeros(2, vocab + 1, dtype=torch.bool).scatter_(1, ids % (vocab + 1), True)
            check_rest(rest, logits, taken[:, :vocab])


def test_whole_vocabulary_of_a_large_model():
    torch.manual_seed(0)
    raw, labels = 4 * torch.randn(1, 151_936), torch.tensor([151_935])
    for keep in (64, 1024):
        width = triton_topk._block_width(raw.shape[1], keep)
        values, ids, _, rest = top_chunk(raw, labels, keep, width, Shape())
        logits = raw.scatter(1, labels[:, None], MASKED)
        want = logits.topk(keep)
        assert torch.equal(values.sort(-1, descending=True).values, want.values)
        assert torch.equal(ids.sort(-1).values, want.indices.sort(-1).values)
        check_rest(rest, logits, torch.zeros_like(raw, dtype=torch.bool).scatter_(1, ids, True))


def test_a_tiny_rest_keeps_its_digits():
    # e^-50 of the mass is left: one minus the kept mass would be exactly 0 in any precision.
    torch.manual_seed(0)
    raw = torch.randn(3, 3000) - 50
    best = torch.stack([torch.randperm(3000)[:9] for _ in range(3)])
    raw.scatter_(1, best, 3.0 + torch.randn(3, 9))
    hidden = torch.eye(3)
    head = lm_head(hidden, raw.T.contiguous(), best[:, 0], support_size=9, backend="triton")
    kept = head.distribution.token_ids
    assert torch.equal(kept.sort(-1).values, best.sort(-1).values)
    log_probs = raw.double().log_softmax(-1)
    want = log_probs.scatter(1, kept, -torch.inf).logsumexp(-1)
    assert (want < -45).all()
    torch.testing.assert_close(head.distribution.tail_log_prob.double(), want, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dropped_mass", [0.0, 0.02])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("vocab", [777, 101])
def test_top_of_triton_equals_that_of_torch(options, dropped_mass, vocab, monkeypatch):
    case = make_case(4, 8, vocab, 4, options, torch.float32)
    arguments = case.arguments(case.leaves())
    if "bias" in arguments:  # a padded vocabulary; one row's label is impossible
        arguments["bias"] = arguments["bias"].detach().clone()
        arguments["bias"][vocab * 9 // 10 :] = -torch.inf
        arguments["labels"] = arguments["labels"].clone()
        arguments["labels"][3] = vocab - 1
    exact = {key: x.double() if torch.is_tensor(x) else x for key, x in arguments.items() if key != "labels"}
    logits = dense_logits(**exact).detach()
    for keep in (1, 16) if vocab == 777 else (110,):  # the last: more than there are
        asked = {**arguments, "support_size": keep, "dropped_mass": dropped_mass}
        want = lm_head(**asked, backend="torch", chunk_tokens=4, chunk_vocab=100)
        heads = []
        for product in (False, True):  # chunks: one of 4 rows, and rows one by one
            monkeypatch.setattr(triton_topk, "_makes_products", lambda *_, product=product: product)
            chunks = {"chunk_tokens": 1, "chunk_vocab": 2} if product else {}
            heads.append(lm_head(**asked, backend="triton", **chunks))
        for head in heads:
            ids = head.distribution.token_ids  # near ties may change places
            assert torch.equal(ids < 0, want.distribution.token_ids < 0)
            truth = dense_head(logits, arguments["labels"], ids)
            for name, values in outputs_of(head).items():
                torch.testing.assert_close(values, outputs_of(want)[name], rtol=1e-6, atol=3e-6)
                torch.testing.assert_close(values.double(), truth[name], rtol=1e-6, atol=3e-6)


@pytest.mark.parametrize("keep", [1, 5, 64])
@pytest.mark.parametrize("kind", ["normal", "ties", "no rest", "impossible label", "tiny rest", "equal"])
def test_select_equals_that_of_torch(kind, keep):
    generator = torch.Generator().manual_seed(keep)
    values, own = (4 * torch.randn(6, width, generator=generator) for width in (keep, 1))
    rest = RunningSums(*torch.rand(3, 6, generator=generator).mul(20).add(1))
    if kind == "ties":
        values, own = values.round(), own.round()
    if kind == "no rest":
        values[:, keep // 2 :] = -torch.inf
        rest = RunningSums(torch.full((6,), FLOOR), torch.zeros(6), torch.zeros(6))
    if kind == "impossible label":
        own[:] = MASKED
    if kind == "tiny rest":
        rest.maximum -= 60
    if kind == "equal":
        values[:], own[:] = 0, 0
    places = torch.rand(6, 5000, generator=generator).argsort(-1)[:, :keep]
    ids, labels = places.masked_fill(values == -torch.inf, -1), torch.arange(6) + 5000
    for dropped_mass in (0.0, 1e-7, 0.02, 0.5):
        best, label_logits = TopK(values, ids.int()), own.squeeze(1)
        got = triton_rows.select(best, labels, label_logits, rest, dropped_mass)
        label_logits = label_logits.masked_fill(label_logits < FLOOR, -torch.inf)
        want = select(TopK(values, ids), labels, label_logits, rest.copy(), dropped_mass)
        assert torch.equal(got[2].token_ids, want[2].token_ids)
        for ours, theirs in (
            (got[0], want[0]),
            (got[1], want[1]),
            (got[2].log_probs, want[2].log_probs),
            (got[2].tail_log_prob, want[2].tail_log_prob),
        ):
            torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=4e-6)


@pytest.mark.parametrize(
    ("labels", "support", "good"),
    [
        ([0, 6], [[0, 6, -1], [-1, -1, 3]], True),
        ([0, 7], [[0, 6, -1], [-1, -1, 3]], False),
        ([-1, 6], [[0, 6, -1], [-1, -1, 3]], False),
        ([0, 6], [[0, 7, -1], [-1, -1, 3]], False),
        ([0, 6], [[0, 6, -2], [-1, -1, 3]], False),
        ([0, 6], [[0, 6, -1], [3, -1, 3]], False),
    ],
)
def test_ids_are_checked_on_the_device(labels, support, good):
    found = triton_rows.good_ids(torch.tensor(labels), torch.tensor(support), 7)
    assert bool(found) is good
    found.fill_(1)


@pytest.mark.parametrize(("rule", "most"), [("troll", 30), ("clip", 85)])
def test_head_and_loss_launch_little_and_never_wait(rule, most, monkeypatch):
    """One tile: each further one costs its own product and kernels; ids are checked in two more launches."""
    monkeypatch.setattr(head_module, "_check_ids", lambda *_: None)  # on a CPU it reads them at once
    torch.manual_seed(0)
    hidden, weight = torch.randn(6, 8), torch.randn(90, 8).requires_grad_()
    labels, mask = torch.arange(6), torch.ones(1, 6)
    old = lm_head(hidden, weight, labels, support_size=8, backend="triton")
    support, region = old.distribution.token_ids, make_trust_region(rule)

    def policy(head):
        d = head.distribution
        if rule == "clip":
            return TokenPolicy(head.label_log_probs[None])
        kept = SparseLogProbs(d.token_ids[None], d.log_probs[None], d.tail_log_prob[None])
        return TokenPolicy(head.label_log_probs[None], kept, token_ids=labels[None])

    asked = {"support": None if rule == "clip" else support, "backend": "triton"}
    moved = (hidden + 0.5 * torch.randn(6, 8)).requires_grad_()
    advantages = torch.randn(1, 6)
    for count in (CountOps(), CountOps()):  # the first call makes what is kept for the next ones
        with count, default_backend("triton"):
            losses = region(policy(lm_head(moved, weight, labels, **asked)), policy(old), advantages, mask)
            losses.per_token.sum().backward()
    assert count.waits == 0, count.waited
    assert count.launches <= most, count.ops


@triton.jit
def tanh_kernel(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, triton_topk.tanh(tl.load(x + i)))


def test_tanh_is_exact_to_two_units():
    x = torch.cat([torch.logspace(-30, 2, 2045), torch.tensor([0.0, 1e34, 0.25])])
    x = torch.where(torch.arange(2048) % 2 == 0, x, -x)
    y = torch.empty_like(x)
    tanh_kernel[(1,)](x, y, BLOCK=2048)
    truth = x.double().tanh()
    assert ((y.double() - truth).abs() <= 2 * torch.finfo(torch.float32).eps * truth.abs()).all()


@pytest.mark.parametrize("sign", [1.0, -1.0])  # NaN has a sign, and the keys are made from bits
@pytest.mark.parametrize("keep", [1, 60])  # the block with NaN is among the chosen ones, or is not
def test_nan_is_not_lost(keep, sign):
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(3, 2), torch.randn(3000, 2), torch.zeros(3000)
    labels = torch.tensor([0, 1, 2])
    bias[1234] = sign * torch.nan
    head = lm_head(hidden, weight, labels, bias=bias, support_size=keep, backend="triton")
    assert head.label_log_probs.isnan().all() and head.entropy.isnan().all()
    hidden[1] = torch.nan  # of one row only
    head = lm_head(hidden, weight, labels, support_size=keep, backend="triton")
    assert head.label_log_probs.isnan().tolist() == [False, True, False]


def sixteen_bits(case, chunk_tokens=64, chunk_vocab=500, narrow=True):
    """The head on float16 operands, which no CPU is given by `lm_head`; not ``narrow``: in float32 tiles."""
    options = {name: value for name, value in case.options.items() if name != "bias"}
    shape = Shape(**options)
    plan = (Plan if narrow else WidePlan)(shape, chunk_tokens, chunk_vocab, torch.float16, triton_kernels)
    leaves = case.leaves()
    bias = leaves[2] if len(leaves) == 3 else None
    label, entropy, log_probs, tail = Head.apply(leaves[0], leaves[1], bias, case.labels, case.support, plan)
    return {"label": label, "entropy": entropy, "log_probs": log_probs, "tail": tail}, leaves


class WidePlan(Plan):
    narrow = False


@pytest.fixture(params=["descriptors", "cublas"])
def way(request, monkeypatch):
    """Hopper's way (products that end in the fold or the gradient), and that of all other GPUs."""
    monkeypatch.setattr(triton_gemm, "has_descriptors", lambda device: request.param == "descriptors")
    return request.param


def relative(got, want):
    return ((got.double() - want).norm() / want.norm()).item()


@pytest.mark.parametrize("options", ["plain", "mixed"])
def test_sixteen_bit_operands_are_as_exact_as_tiles_in_float32(way, options):
    # Several blocks of 256 columns, the last one short and of no round width; two blocks of tokens.
    case = make_case(130, 64, 601, 7, "bias" if options == "mixed" else "plain", torch.float16)
    if options == "mixed":
        case.options |= {"temperature": 1.3, "logit_scale": 0.7}
        case.options["bias"] *= 3
    truth, true_leaves = run_dense(case, torch.float64)
    got, leaves = sixteen_bits(case)
    wide, wide_leaves = sixteen_bits(case, 130, 601, narrow=False)  # in one tile: others show nothing more
    for name in OUTPUTS:
        assert_no_worse(got[name], wide[name], truth[name], case, name)
    for names in (("label",), ("log_probs", "tail"), OUTPUTS):
        found = [
            torch.autograd.grad(sum(loss(outputs, name) for name in names), own, retain_graph=True)
            for outputs, own in ((got, leaves), (wide, wide_leaves), (truth, true_leaves))
        ]
        for ours, tiles, true in zip(*found, strict=True):
            assert ours.dtype == torch.float16
            assert relative(ours, true) <= 1.5 * relative(tiles, true), names


def test_sixteen_bit_gradients_of_rows_without_any_are_exact_zeros(way):
    # The tokens 128 to 255 fill one block of rows of the product: it is left out of it, so NaN stays unseen.
    case = make_case(300, 16, 600, 4, "bias", torch.float16)
    outputs, leaves = sixteen_bits(case)
    above = torch.linspace(-1, 1, 300)
    above[128:256] = 0
    above[3], above[299] = 0, 0
    finite = outputs["log_probs"] > -torch.inf
    total = (outputs["label"] + outputs["tail"]) @ above
    total = total + (outputs["log_probs"].masked_fill(~finite, 0) * above.unsqueeze(1)).sum()
    gradient = torch.autograd.grad(total, leaves)[0]
    assert ((gradient == 0).all(1) == (above == 0)).all()


def test_blocks_of_idle_rows_are_not_multiplied():
    hidden = torch.randn(300, 16, dtype=torch.float16)
    weight, labels = torch.randn(600, 16, dtype=torch.float16), torch.zeros(300, dtype=torch.int64)
    hidden[128:256] = torch.nan
    ones = torch.ones(300)
    ones[128:256] = 0
    busy = torch.tensor([1, 0, 1], dtype=torch.int32)
    rows = RowGradients(torch.full((300,), 5.0), ones, None, ones, None, busy)
    plan = Plan(Shape(), 300, 100, torch.float16, triton_kernels)
    seen = 0
    for columns, gradient, _ in triton_gemm.gradient_blocks(hidden, weight, None, labels, rows, plan):
        seen += columns.stop - columns.start
        assert (gradient[128:256] == 0).all()
        assert (gradient[:128] != 0).any(0).all() and not gradient[256:].isnan().any()
    assert seen == 600


@pytest.mark.parametrize("depth", [64, 60])
def test_sixteen_bit_products_of_float32_weights_and_of_rows_that_descriptors_cannot_read(depth):
    case = make_case(40, depth, 530, 6, "temperature", torch.float16)
    want, _ = sixteen_bits(case)
    wanted = gradients_of(sixteen_bits(case), "all")
    case.hidden, case.weight = case.hidden.float(), case.weight.float()
    got, leaves = sixteen_bits(case)
    for name in OUTPUTS:
        torch.testing.assert_close(got[name], want[name], rtol=0, atol=1e-5)
    for ours, other in zip(gradients(got, "all", leaves), wanted, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, other.float(), rtol=2e-3, atol=2e-3)


def test_fold_in_several_launches_with_padding_and_labels_in_the_support(monkeypatch):
    monkeypatch.setattr(triton_gemm, "FOLD_BYTES", 12_000)
    case = make_case(300, 16, 530, 7, "bias", torch.float16)
    case.options["bias"][500:] = -torch.inf
    case.labels %= 500
    case.support[case.support >= 500] = -1
    case.support[0, 0] = 511  # an impossible token in the support
    inside = torch.arange(1, 300, 2)
    case.support[inside] = torch.where(
        case.support[inside] == case.labels[inside].unsqueeze(1), -1, case.support[inside]
    )
    case.support[inside, 6] = case.labels[inside]
    got, leaves = sixteen_bits(case)
    truth, true_leaves = run_dense(case, torch.float64)
    for name in OUTPUTS:
        torch.testing.assert_close(got[name].double(), truth[name], rtol=0, atol=1e-5)
    assert got["log_probs"][0, 0] == -torch.inf
    assert torch.equal(got["log_probs"][inside, 6], got["label"][inside])  # of one logit, not of two
    found = gradients(got, "all", leaves), gradients(truth, "all", true_leaves)
    for ours, true in zip(*found, strict=True):
        torch.testing.assert_close(ours[:500].double(), true[:500], rtol=1e-2, atol=1e-2)
        assert ours.isfinite().all()


def test_tiles_about_their_shift_are_what_the_error_test_judges():
    # `centred` is the arithmetic of the test in test_lm_head.py; here the kernel is held to it.
    torch.manual_seed(0)
    hidden, weight = torch.randn(40, 32).half(), torch.randn(300, 32).half()
    labels = torch.randint(300, (40,))
    raw = hidden.float() @ weight.float().t()
    shift, factor = (raw * 0.8).logsumexp(-1), torch.randn(40)
    plan = Plan(Shape(0.8), 40, 300, torch.float16, triton_kernels)
    rows = RowGradients(shift, factor, None, -factor, None)
    blocks = triton_gemm.gradient_blocks(hidden, weight, None, labels, rows, plan, fused=False)
    got = torch.cat([gradient for _, gradient, _ in blocks], 1)
    want = centred(raw, shift, 0.8, torch.float16).exp() * factor.unsqueeze(1)
    want.scatter_add_(1, labels.unsqueeze(1), -factor.unsqueeze(1))
    torch.testing.assert_close(got.float(), want, rtol=2e-3, atol=1e-6)
