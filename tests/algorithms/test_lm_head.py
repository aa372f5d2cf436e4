import pytest
import torch
from head_oracle import (
    OPTIONS,
    OUTPUTS,
    assert_no_worse,
    centred,
    dense_head,
    dense_logits,
    error,
    gradients,
    gradients_of,
    make_case,
    outputs_of,
    run_dense,
    run_head,
)
from refusals import refused
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from troll.algorithms.lm_head.head import lm_head

SHAPES = [(33, 47, 211, 9), (5, 16, 1000, 64), (1, 3, 5, 2)]
CHUNKS = [(None, None), (7, 50), (33, 64), (1, 1000), (100, 3)]
DTYPES = [torch.float64, torch.float32, torch.bfloat16]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward_is_no_worse_than_dense_logits(shape, dtype, options):
    case = make_case(*shape, options, dtype)
    truth, _ = run_dense(case, torch.float64)
    naive, _ = run_dense(case, dtype)
    for chunks in CHUNKS:
        got, _ = run_head(case, *chunks)
        for name in OUTPUTS:
            assert_no_worse(got[name], naive[name], truth[name], case, f"{name} with chunks {chunks}")


@pytest.mark.parametrize("wanted", [*OUTPUTS, "all"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_backward_of_each_output_is_no_worse_than_dense_logits(shape, dtype, options, wanted):
    case = make_case(*shape, options, dtype)
    truth, naive = (gradients_of(run_dense(case, kind), wanted) for kind in (torch.float64, dtype))
    for chunks in CHUNKS[:3]:
        got = gradients_of(run_head(case, *chunks), wanted)
        for ours, theirs, true in zip(got, naive, truth, strict=True):
            assert ours.dtype == dtype
            assert_no_worse(ours, theirs, true, case, f"gradient of {wanted} with chunks {chunks}")


def test_gradient_agrees_with_finite_differences():
    case = make_case(4, 3, 11, 4, "all")

    def function(*leaves):
        head = lm_head(**case.arguments(list(leaves)), support=case.support, chunk_tokens=3, chunk_vocab=4)
        outputs = outputs_of(head)
        return outputs["label"], outputs["entropy"], outputs["log_probs"][case.support >= 0], outputs["tail"]

    assert torch.autograd.gradcheck(function, case.leaves())


def test_tail_and_its_gradient_keep_their_digits_when_the_support_holds_nearly_all_mass():
    # 1 - sum of the kept probabilities is exactly 0 in float32 here; the pooled tail is about exp(-50).
    torch.manual_seed(0)
    hidden, weight = torch.randn(6, 8), torch.randn(40, 8) * 0.3
    weight[:3] += 60 * torch.nn.functional.normalize(hidden.mean(0), dim=0)
    hidden = hidden.mean(0) + 0.1 * torch.randn(6, 8)
    case = make_case(6, 8, 40, 3, dtype=torch.float32)
    case.hidden, case.weight, case.labels = hidden, weight, torch.tensor([0, 1, 2, 0, 7, 30])
    case.support = torch.tensor([[0, 1, 2]] * 6)
    truth, leaves = run_dense(case, torch.float64)
    assert truth["tail"].max() < -30
    got, own = run_head(case, 4, 16)
    torch.testing.assert_close(got["tail"].double(), truth["tail"], rtol=1e-6, atol=1e-5)
    for ours, true in zip(gradients(got, "tail", own), gradients(truth, "tail", leaves), strict=True):
        torch.testing.assert_close(ours.double(), true, rtol=1e-4, atol=1e-4)


def test_extreme_logits_stay_finite():
    case = make_case(8, 4, 50, 5, dtype=torch.float32)
    case.hidden *= 1e4
    got, leaves = run_head(case, 3, 16)
    truth, _ = run_dense(case, torch.float64)
    for name in OUTPUTS:
        assert error(got[name], truth[name]) <= 1e-6 * 5e4  # of the largest logits
    assert all(x.isfinite().all() for x in gradients(got, "all", leaves))


def test_support_of_the_whole_vocabulary_leaves_an_empty_tail_without_gradient():
    case = make_case(7, 5, 12, 12)
    case.support = torch.stack([torch.randperm(12) for _ in range(7)])
    got, leaves = run_head(case, 3, 5)
    truth, true_leaves = run_dense(case, torch.float64)
    assert (got["tail"] == -torch.inf).all()
    assert error(got["log_probs"], truth["log_probs"]) < 1e-12
    assert error(got["entropy"], truth["entropy"]) < 1e-12
    only_tail = torch.autograd.grad(
        got["tail"], leaves, torch.ones(7, dtype=torch.float64), retain_graph=True
    )
    assert all((x == 0).all() for x in only_tail)
    ours, true = gradients(got, "all", leaves), gradients(truth, "all", true_leaves)
    assert max(error(a, b) for a, b in zip(ours, true, strict=True)) < 1e-12


def test_unused_slots_take_no_gradient_whatever_comes_from_above():
    case = make_case(12, 5, 30, 6)
    got, leaves = run_head(case)
    unused = case.support < 0
    assert (got["log_probs"][unused] == -torch.inf).all()
    above = torch.zeros_like(got["log_probs"]).masked_fill(unused, torch.nan)
    assert all((x == 0).all() for x in torch.autograd.grad(got["log_probs"], leaves, above))


def test_one_id_more_in_the_support_moves_mass_out_of_the_tail_and_changes_nothing_else():
    case = make_case(9, 5, 30, 6)
    case.support = torch.arange(6).expand(9, 6)
    fewer, _ = run_head(case)
    case.support = torch.arange(7).expand(9, 7)
    more, _ = run_head(case)
    torch.testing.assert_close(fewer["log_probs"], more["log_probs"][:, :6], rtol=0, atol=1e-13)
    torch.testing.assert_close(fewer["tail"], torch.logaddexp(more["tail"], more["log_probs"][:, 6]))
    torch.testing.assert_close(more["label"], fewer["label"], rtol=0, atol=1e-13)


def test_padded_vocabulary_with_minus_infinite_bias():
    case = make_case(9, 5, 30, 4, "bias", torch.float32)
    case.options["bias"][20:] = -torch.inf
    case.labels %= 20
    case.support[case.support >= 20] = -1
    case.support[0, 0] = 25  # an impossible token in the support
    truth, true_leaves = run_dense(case, torch.float64)
    got, leaves = run_head(case, 4, 7)
    assert got["log_probs"][0, 0] == -torch.inf
    for name in OUTPUTS:
        assert error(got[name], truth[name]) < 1e-5
    for ours, true in zip(gradients(got, "all", leaves), gradients(truth, "all", true_leaves), strict=True):
        # The dense path's own gradient of an entropy with -inf logits is finite only outside the padding.
        torch.testing.assert_close(ours[:20].double(), true[:20], rtol=1e-4, atol=1e-4)
        assert ours.isfinite().all()


def test_frozen_parts_get_no_gradient():
    case = make_case(9, 5, 30, 4, "bias")
    for trained in range(3):
        leaves = [x.requires_grad_(i == trained) for i, x in enumerate(case.leaves())]
        head = lm_head(**case.arguments(leaves), support=case.support)
        outputs_of(head)["tail"].sum().backward()
        assert [x.grad is not None for x in leaves] == [i == trained for i in range(3)]


def test_tied_weight_collects_both_gradients():
    case = make_case(9, 5, 30, 4)
    ids = torch.randint(30, (9,))

    def gradient(head):
        weight = case.weight.clone().requires_grad_()
        return torch.autograd.grad(head(weight[ids], weight), weight)[0]

    dense = gradient(lambda h, w: dense_head(dense_logits(h, w), case.labels, case.support)["label"].sum())
    ours = gradient(
        lambda h, w: lm_head(h, w, case.labels, chunk_tokens=4, chunk_vocab=8).label_log_probs.sum()
    )
    torch.testing.assert_close(ours, dense)


def test_strided_inputs_and_expanded_gradients():
    case = make_case(9, 5, 30, 4)
    straight, leaves = run_head(case, 4, 8)
    want = torch.autograd.grad(straight["label"].sum() + straight["tail"].sum(), leaves)
    case.labels = torch.stack([case.labels, case.labels], 1)[:, 0]
    case.support = case.support.T.contiguous().T
    case.hidden, case.weight = case.hidden.T.contiguous().T, torch.cat([case.weight, case.weight], 1)[:, :5]
    strided, leaves = run_head(case, 4, 8)
    for name in OUTPUTS:
        torch.testing.assert_close(straight[name], strided[name], rtol=0, atol=1e-13)
    got = torch.autograd.grad(strided["label"].sum() + strided["tail"].sum(), leaves)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def test_autocast_changes_no_digit_on_a_cpu():
    case = make_case(9, 5, 30, 4, dtype=torch.float32)
    plain, leaves = run_head(case)
    want = gradients(plain, "all", leaves)
    with torch.autocast("cpu", torch.bfloat16):
        cast, leaves = run_head(case)
    got = gradients(cast, "all", leaves)
    assert all(torch.equal(plain[name], cast[name]) for name in OUTPUTS)
    assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))


@pytest.mark.parametrize("keep", [None, 3])
def test_no_token_at_all(keep):
    hidden, weight = torch.zeros(0, 5, requires_grad=True), torch.randn(7, 5, requires_grad=True)
    labels = torch.zeros(0, dtype=torch.int64)
    head = lm_head(hidden, weight, labels, support_size=keep)
    assert head.label_log_probs.shape == head.entropy.shape == (0,)
    if keep:
        assert head.distribution.token_ids.shape == (0, 3)
    else:
        head.label_log_probs.sum().backward()
        assert (weight.grad == 0).all() and hidden.grad.shape == (0, 5)


@pytest.mark.parametrize(("spread", "offset"), [(4.0, 0.0), (2.0, 0.0), (4.0, 20.0)])
def test_16_bit_tiles_about_their_shift_add_half_of_a_float32_tiles_error_at_most(spread, offset):
    """What a GPU before Hopper keeps of the logits in backward. Trained heads have an offset."""
    random = torch.Generator().manual_seed(0)
    hidden = torch.randn(64, 64, generator=random)
    weight = torch.randn(8192, 64, generator=random) * spread / 8
    hidden[:, 0], weight[:, 0] = 4.0, weight[:, 0] + offset / 4
    hidden, weight = hidden.bfloat16(), weight.bfloat16()
    raw, factor = hidden.float() @ weight.float().t(), torch.randn(64, 1, generator=random)
    exact = hidden.double() @ weight.double().t()
    shift = raw.logsumexp(-1)
    labels = torch.distributions.Categorical(logits=raw).sample().unsqueeze(1)

    def gradients_of(below):
        logits = -(below.exp() * factor).scatter_add(1, labels, -factor.to(below.dtype))
        logits = logits.double() if below.dtype == torch.float64 else logits.bfloat16().double()
        return logits @ weight.double(), logits.t() @ hidden.double()

    true = gradients_of(exact - exact.logsumexp(-1, keepdim=True))

    def errors(below):
        pairs = zip(gradients_of(below), true, strict=True)
        return torch.tensor([((got - want).norm() / want.norm()).item() for got, want in pairs])

    tiles = errors(raw - shift.unsqueeze(1))
    assert (errors(centred(raw, shift, 1.0, torch.bfloat16)) <= 1.5 * tiles).all()
    if offset:
        assert (errors(raw.bfloat16().float() - shift.unsqueeze(1)) >= 4 * tiles).all()  # as TRL's head


class LargestTensor(TorchDispatchMode):
    """Remembers the number of elements of the largest storage that any operation returned."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor):
                self.elements = max(self.elements, x.untyped_storage().nbytes() // x.element_size())
        return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_tensor_exceeds_a_tile(dtype):
    # Everything else is smaller by choice: N D = 1,200, V D = 20,000, N K = 2,400; N V would be 1,500,000.
    tokens, width, vocab, keep, chunk_tokens, chunk_vocab = 300, 4, 5000, 8, 64, 512
    case = make_case(tokens, width, vocab, keep, dtype=dtype)
    with LargestTensor() as largest:
        leaves = case.leaves()
        chunks = {"chunk_tokens": chunk_tokens, "chunk_vocab": chunk_vocab}
        old = lm_head(**case.arguments(leaves), support_size=keep, dropped_mass=1e-3, **chunks)
        new = lm_head(**case.arguments(leaves), support=old.distribution.token_ids, **chunks)
        torch.autograd.grad(sum(x[x > -torch.inf].sum() for x in outputs_of(new).values()), leaves)
    assert largest.elements <= chunk_tokens * chunk_vocab


def test_second_derivatives_are_refused():
    hidden, weight = torch.randn(3, 4, requires_grad=True), torch.randn(7, 4)
    output = lm_head(hidden, weight, torch.tensor([0, 1, 6]))
    with refused("lm_head", "create_graph=True"):
        torch.autograd.grad(output.label_log_probs.sum(), hidden, create_graph=True)


def test_bad_arguments_are_named():
    hidden, weight, labels = torch.zeros(4, 3), torch.zeros(6, 3), torch.zeros(4, dtype=torch.int64)

    def check(facts, *args, **options):
        with refused("lm_head", *facts):
            lm_head(*args, **options)

    check(("weight (6, 4)", "[V, D]"), hidden, torch.zeros(6, 4), labels)
    check(("labels (3,)", "[N]", 4), hidden, weight, labels[:3])
    check(("labels", "int64", "int32"), hidden, weight, labels.int())
    check(("labels", "[0, 6)", "0 to 6"), hidden, weight, torch.tensor([0, 1, 6, 2]))
    check(("labels", "[0, 6)", -100), hidden, weight, torch.tensor([0, 1, -100, 2]))
    check(("support", "[-1, 6)"), hidden, weight, labels, support=torch.full((4, 2), -2))
    check(("support (3, 2)", "N = 4"), hidden, weight, labels, support=torch.zeros(3, 2, dtype=torch.int64))
    twice = torch.tensor([[0, 1, -1], [2, 3, 5], [-1, -1, -1], [4, 0, 4]])
    check(("support", 4, "row 3"), hidden, weight, labels, support=twice)
    both = {"support": labels.unsqueeze(1), "support_size": 2}
    check(both, hidden, weight, labels, **both)
    check(("support_size", 0), hidden, weight, labels, support_size=0)
    check(("dropped_mass", 1.0, "[0, 1)"), hidden, weight, labels, support_size=2, dropped_mass=1.0)
    check(("temperature", 0), hidden, weight, labels, temperature=0)
    check(("logit_softcap", 0), hidden, weight, labels, logit_softcap=0)
    check(("bias (4,)", "[V]", 6), hidden, weight, labels, bias=torch.zeros(4))
    check(("chunk_vocab", 0), hidden, weight, labels, chunk_vocab=0)
    check(("backend", "'cuda'", "auto, torch or triton"), hidden, weight, labels, backend="cuda")
    check(("backend", "triton", "float64"), hidden.double(), weight.double(), labels, backend="triton")
