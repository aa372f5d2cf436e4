"""Run by test_lm_head_triton.py in a process of its own: TRITON_INTERPRET is read when triton is imported."""

import os

import pytest
import torch
from head_oracle import (
    OPTIONS,
    OUTPUTS,
    assert_no_worse,
    gradients,
    make_case,
    outputs_of,
    run_dense,
)

from troll.algorithms.lm_head.head import lm_head

assert os.environ["TRITON_INTERPRET"] == "1"


def run(case, backend, chunk_tokens=8, chunk_vocab=70):
    leaves = case.leaves()
    head = lm_head(
        **case.arguments(leaves),
        support=case.support,
        backend=backend,
        chunk_tokens=chunk_tokens,
        chunk_vocab=chunk_vocab,
    )
    return outputs_of(head), leaves


@pytest.mark.parametrize(
    ("dtype", "options"),
    [*((torch.float32, name) for name in OPTIONS), (torch.bfloat16, "plain"), (torch.bfloat16, "all")],
    ids=str,
)
def test_triton_is_no_worse_than_dense_logits(dtype, options):
    case = make_case(13, 17, 130, 9, options, dtype)
    truth, true_leaves = run_dense(case, torch.float64)
    naive, naive_leaves = run_dense(case, dtype)
    got, leaves = run(case, "triton")

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
    ours, leaves = run(case, "triton", 2, 2500)
    theirs, other = run(case, "torch", 2, 2500)
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
