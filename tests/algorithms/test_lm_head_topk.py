"""The old policy's pass: an exact top-K without a sort, the label always in it."""

import pytest
import torch
from head_oracle import OPTIONS, dense_head, dense_logits, error, make_case
from hypothesis import example, given, settings
from hypothesis import strategies as st

from troll.algorithms.distributions import sparsify
from troll.algorithms.lm_head.head import lm_head


def head_of_logits(logits, labels, **options):
    """The head's view of given logits: hidden states are unit vectors, the weight holds the logits."""
    tokens = logits.shape[0]
    return lm_head(torch.eye(tokens, dtype=logits.dtype), logits.T.contiguous(), labels, **options)


def kept_by_hand(logits, label, keep, dropped_mass):
    """Log-probs kept of one token, by the rule's own words, over Python floats."""
    log_probs = logits.double().log_softmax(-1)
    ranking = sorted(range(len(log_probs)), key=lambda j: (-float(log_probs[j]), j != label))
    kept = []
    for place, token in enumerate(ranking):
        remaining = float(log_probs[ranking[place:]].exp().flip(0).cumsum(0)[-1])
        if len(kept) == keep or (kept and remaining <= dropped_mass):
            break
        kept.append(token)
    if label not in kept:
        kept = [*kept[: keep - 1], label]
    return [float(log_probs[j]) for j in kept]


def check(head, logits, labels, keep, dropped_mass=0.0, tolerance=1e-12):
    ids, log_probs = head.distribution.token_ids, head.distribution.log_probs
    used = ids >= 0
    assert ids.shape == log_probs.shape == (logits.shape[0], keep)
    assert (ids == labels.unsqueeze(1)).sum(1).eq(1).all(), "the label is kept exactly once"
    assert all(len(set(row[row >= 0].tolist())) == int((row >= 0).sum()) for row in ids), "ids are distinct"
    assert (log_probs[~used] == -torch.inf).all() and not (~used[:, :-1] & used[:, 1:]).any(), (
        "padding comes last"
    )
    assert (log_probs[:, :-1] >= log_probs[:, 1:]).all(), "descending"
    truth = dense_head(logits.double(), labels, ids)
    assert error(log_probs, truth["log_probs"]) <= tolerance
    assert error(head.label_log_probs, truth["label"]) <= tolerance
    assert error(head.entropy, truth["entropy"]) <= tolerance
    assert error(head.distribution.tail_log_prob, truth["tail"]) <= tolerance
    for row, label in enumerate(labels.tolist()):
        want = torch.tensor(kept_by_hand(logits[row], label, keep, dropped_mass), dtype=torch.float64)
        got = log_probs[row][used[row]]
        torch.testing.assert_close(got.double(), want, rtol=0, atol=tolerance)


@pytest.mark.parametrize("chunks", [(None, None), (7, 130), (33, 64), (5, 100), (3, 1)], ids=str)
@pytest.mark.parametrize("keep", [1, 4, 64, 300])
def test_equals_torch_topk(keep, chunks):
    torch.manual_seed(keep)
    logits = 3 * torch.randn(12, 300, dtype=torch.float64)
    labels = logits.argmax(-1)  # the label is among the best, so that the plain top-K is the answer
    head = head_of_logits(logits, labels, support_size=keep, chunk_tokens=chunks[0], chunk_vocab=chunks[1])
    values, ids = logits.log_softmax(-1).topk(keep)
    torch.testing.assert_close(head.distribution.log_probs, values, rtol=0, atol=1e-12)
    assert torch.equal(head.distribution.token_ids, ids)


@pytest.mark.parametrize("order", ["ascending", "descending", "constant", "two values", "spike per block"])
def test_any_order_of_the_vocabulary(order):
    vocab, keep = 500, 9
    ramp = torch.arange(vocab, dtype=torch.float64) / 50
    logits = {
        "ascending": ramp,  # every block beats all before it
        "descending": ramp.flip(0),
        "constant": torch.zeros(vocab, dtype=torch.float64),
        "two values": (torch.arange(vocab) % 2).double(),
        "spike per block": (torch.arange(vocab) % 64 == 63).double() * 5,
    }[order].expand(6, vocab)
    labels = torch.tensor([0, 1, 63, 64, 498, 499])
    for chunk_vocab in (64, 100, 1000):
        head = head_of_logits(logits, labels, support_size=keep, chunk_tokens=4, chunk_vocab=chunk_vocab)
        check(head, logits, labels, keep)


@settings(max_examples=60, deadline=None)
@given(
    vocab=st.integers(1, 200),
    keep=st.integers(1, 40),
    chunk_vocab=st.integers(1, 220),
    chunk_tokens=st.integers(1, 6),
    dropped_mass=st.sampled_from([0.0, 1e-7, 1e-3, 0.0937, 0.871]),
    spread=st.sampled_from([0.0, 1.0, 5.0, 20.0]),
    seed=st.integers(0, 2**31),
)
@example(vocab=1, keep=5, chunk_vocab=1, chunk_tokens=1, dropped_mass=0.0, spread=1.0, seed=0)
def test_keeps_what_the_rule_says(vocab, keep, chunk_vocab, chunk_tokens, dropped_mass, spread, seed):
    random = torch.Generator().manual_seed(seed)
    # Whole numbers: many exact ties.
    logits = (spread * torch.randn(5, vocab, generator=random, dtype=torch.float64)).round()
    labels = torch.randint(vocab, (5,), generator=random)
    options = {"chunk_tokens": chunk_tokens, "chunk_vocab": chunk_vocab}
    head = head_of_logits(logits, labels, support_size=keep, dropped_mass=dropped_mass, **options)
    check(head, logits, labels, keep, dropped_mass)


@pytest.mark.parametrize("dropped_mass", [1e-5, 1e-7])
def test_small_dropped_mass_is_resolved_in_float32(dropped_mass):
    # Probabilities 1/2, 1/4, ...: after n tokens 2^-n remains, far below float32's resolution near 1.
    logits = -torch.arange(40, dtype=torch.float32).mul(torch.log(torch.tensor(2.0))).expand(2, 40)
    head = head_of_logits(logits, torch.tensor([0, 0]), support_size=40, dropped_mass=dropped_mass)
    needed = next(n for n in range(40) if 2.0**-n <= dropped_mass)
    assert (head.distribution.token_ids >= 0).sum(1).tolist() == [needed, needed]


def test_impossible_tokens_are_not_kept_but_an_impossible_label_is():
    logits = torch.tensor([[0.0, -torch.inf, 1.0, -torch.inf], [0.0, -torch.inf, 1.0, -torch.inf]])
    zero, labels = torch.zeros(2, 1), torch.tensor([2, 3])
    head = lm_head(zero, torch.zeros(4, 1), labels, bias=logits[0], support_size=4)
    assert head.distribution.token_ids.tolist() == [[2, 0, -1, -1], [2, 0, 3, -1]]
    assert head.label_log_probs[1] == -torch.inf
    assert (head.distribution.tail_log_prob == -torch.inf).all()


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_old_and_new_policy_agree_when_the_weights_do(dtype, options):
    case = make_case(33, 47, 211, 9, options, dtype)
    arguments = case.arguments(case.leaves())
    chunks = {"chunk_tokens": 8, "chunk_vocab": 50}
    old = lm_head(**arguments, support_size=16, dropped_mass=1e-3, **chunks)
    new = lm_head(**arguments, support=old.distribution.token_ids, **chunks)
    assert not old.label_log_probs.requires_grad and not old.distribution.log_probs.requires_grad
    assert error(new.label_log_probs, old.label_log_probs) < 4e-6
    assert error(new.entropy, old.entropy) < 4e-6
    assert error(new.distribution.log_probs, old.distribution.log_probs) < 4e-6
    assert error(new.distribution.tail_log_prob, old.distribution.tail_log_prob) < 4e-6
    arguments.pop("labels")
    truth = dense_head(
        dense_logits(**{k: to_double(v) for k, v in arguments.items()}), case.labels, case.support
    )
    assert error(old.label_log_probs, truth["label"]) < 2e-5


def to_double(value):
    return value.double() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("dropped_mass", [0.0, 1e-5, 1e-2])
@pytest.mark.parametrize("keep", [1, 8, 64])
def test_agrees_with_the_dense_reference_path(keep, dropped_mass):
    torch.manual_seed(0)
    logits = 4 * torch.randn(40, 200, dtype=torch.float64)
    labels = torch.randint(200, (40,))
    want = sparsify(logits, keep, dropped_mass, labels)
    head = head_of_logits(
        logits, labels, support_size=keep, dropped_mass=dropped_mass, chunk_tokens=16, chunk_vocab=70
    )
    assert torch.equal(head.distribution.token_ids, want.token_ids)
    assert error(head.distribution.log_probs, want.log_probs) < 1e-12
    assert error(head.distribution.tail_log_prob, want.tail_log_prob) < 1e-10
