"""A slow, dense, float64 head: what every fast path of `troll.algorithms.lm_head.head` is judged by."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from troll.algorithms.lm_head.head import lm_head

OUTPUTS = ("label", "entropy", "log_probs", "tail")
OPTIONS = {
    "plain": {},
    "bias": {"bias": True},
    "temperature": {"temperature": 0.6},
    "scale": {"logit_scale": 1.7},
    "softcap": {"logit_softcap": 2.5},
    "all": {"bias": True, "temperature": 1.3, "logit_scale": 0.4, "logit_softcap": 4.0},
}


@dataclass
class Case:
    hidden: Tensor
    weight: Tensor
    labels: Tensor
    support: Tensor
    options: dict[str, object] = field(default_factory=dict)

    def leaves(self, dtype: torch.dtype | None = None) -> list[Tensor]:
        """hidden, weight (and bias) as fresh leaves, exactly converted to ``dtype``."""
        tensors = [self.hidden, self.weight]
        if "bias" in self.options:
            tensors.append(self.options["bias"])
        return [x.detach().to(dtype or x.dtype).clone().requires_grad_() for x in tensors]

    def arguments(self, leaves: list[Tensor]) -> dict[str, object]:
        options = dict(self.options)
        if "bias" in options:
            options["bias"] = leaves[2]
        return {"hidden": leaves[0], "weight": leaves[1], "labels": self.labels, **options}


def make_case(tokens, width, vocab, keep, options="plain", dtype=torch.float64, seed=0) -> Case:
    random = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype)

    settings = dict(OPTIONS[options])
    if settings.pop("bias", False):
        settings["bias"] = normal(vocab)
    labels = torch.randint(vocab, (tokens,), generator=random)
    support = torch.stack([torch.randperm(vocab, generator=random)[:keep] for _ in range(tokens)])
    # Half of the rows hold their label; one row in three has unused slots, one in seven none but those.
    without = ~(support == labels.unsqueeze(1)).any(1) & (torch.arange(tokens) % 2 == 0)
    support[without, 0] = labels[without]
    support[::3, keep // 2 + 1 :] = -1
    support[5::7] = -1
    return Case(normal(tokens, width) * 2 / width**0.5, normal(vocab, width), labels, support, settings)


def dense_logits(hidden, weight, bias=None, temperature=1.0, logit_scale=1.0, logit_softcap=None) -> Tensor:
    logits = hidden @ weight.T
    if bias is not None:
        logits = logits + bias
    logits = logits * logit_scale
    if logit_softcap is not None:
        logits = logit_softcap * torch.tanh(logits / logit_softcap)
    return logits / temperature


def dense_head(logits: Tensor, labels: Tensor, support: Tensor) -> dict[str, Tensor]:
    """All four outputs from full logits, in at least float32."""
    log_probs = (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)
    taken = torch.zeros(*log_probs.shape[:-1], log_probs.shape[-1] + 1, dtype=torch.bool)
    taken.scatter_(1, support % taken.shape[-1], True)  # -1 goes to the extra last column
    taken = taken[:, :-1]
    return {
        "label": log_probs.gather(1, labels.unsqueeze(1)).squeeze(1),
        "entropy": -(log_probs.exp() * log_probs.clamp(min=-1e4)).sum(-1),
        "log_probs": log_probs.gather(1, support.clamp(min=0)).masked_fill(support < 0, -torch.inf),
        "tail": log_probs.masked_fill(taken, -torch.inf).logsumexp(-1),
    }


def run_dense(case: Case, dtype: torch.dtype) -> tuple[dict[str, Tensor], list[Tensor]]:
    """All four outputs from full logits in ``dtype``, and the leaves that they came from."""
    leaves = case.leaves(dtype)
    arguments = case.arguments(leaves)
    labels = arguments.pop("labels")
    return dense_head(dense_logits(**arguments), labels, case.support), leaves


def outputs_of(head) -> dict[str, Tensor]:
    return {
        "label": head.label_log_probs,
        "entropy": head.entropy,
        "log_probs": head.distribution.log_probs,
        "tail": head.distribution.tail_log_prob,
    }


def run_head(
    case: Case, chunk_tokens=None, chunk_vocab=None, **options
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """All four outputs of `lm_head`, and the leaves that they came from."""
    leaves = case.leaves()
    options |= {"chunk_tokens": chunk_tokens, "chunk_vocab": chunk_vocab}
    return outputs_of(lm_head(**case.arguments(leaves), support=case.support, **options)), leaves


def gradients(outputs: dict[str, Tensor], wanted: str, leaves: list[Tensor], seed: int = 1) -> list[Tensor]:
    """Gradients of a random weighting of one output, or of all of them ("all")."""
    random = torch.Generator().manual_seed(seed)
    loss = leaves[0].new_zeros((), dtype=torch.float64)
    for name in OUTPUTS:
        weights = torch.randn(outputs[name].shape, generator=random, dtype=torch.float64)
        if wanted in (name, "all"):
            finite = outputs[name] > -torch.inf
            loss = loss + (outputs[name].double() * weights)[finite].sum()
    return list(torch.autograd.grad(loss, leaves))


def gradients_of(run: tuple[dict[str, Tensor], list[Tensor]], wanted: str) -> list[Tensor]:
    """`gradients` of outputs and the leaves that they came from."""
    outputs, leaves = run
    return gradients(outputs, wanted, leaves)


def error(got: Tensor, want: Tensor) -> float:
    """Largest difference; infinities must be in the same places."""
    got, want = got.detach().double(), want.detach().double()
    assert torch.equal(got.isinf(), want.isinf())
    assert not got.isnan().any()
    return (got - want)[want.isfinite()].abs().max().item() if want.isfinite().any() else 0.0


def assert_no_worse(got: Tensor, naive: Tensor, truth: Tensor, case: Case, what: str) -> None:
    """Cut-cross-entropy's criterion: error <= error of the naive way in the same precision + tolerance.

    The tolerance: a few units in the last place of the largest logit in the precision of the sums (times the
    largest entry where that is above 1), and for bf16 results half a unit of their own: one last rounding.
    """
    finite = truth[truth.isfinite()].abs()
    largest = max(1.0, finite.max().item() if finite.numel() else 0.0)
    leaves = [x.detach() for x in case.leaves(torch.float64)]
    arguments = case.arguments(leaves)
    del arguments["labels"]
    logits = dense_logits(**arguments).abs().max().item()
    sums = torch.float64 if got.dtype == torch.float64 else torch.float32
    tolerance = 4 * torch.finfo(sums).eps * max(1.0, logits) * largest
    if got.dtype == torch.bfloat16:
        tolerance += torch.finfo(got.dtype).eps / 2 * largest
    assert error(got, truth) <= error(naive, truth) + tolerance, what


def centred(raw: Tensor, shift: Tensor, slope: float, dtype: torch.dtype) -> Tensor:
    """slope * raw - shift from a tile of 16 bits: raw scores are rounded about the shift, not about zero."""
    centre = (shift / -slope).to(dtype).float()
    tile = (raw + centre.unsqueeze(1)).to(dtype).float()
    return tile * slope - (shift + slope * centre).unsqueeze(1)
