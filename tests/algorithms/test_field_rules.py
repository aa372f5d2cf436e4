"""Rules of the field are their originals': TRL's own code where it has them, else the formula, written down.

Formulas are loops over single tokens in plain floats, so that nothing is shared with the rules under test;
gradients are those of the same formula by finite differences, or its closed form where it stops gradients.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from policy_cases import make_case
from test_trl_equality import assert_same, ours, random_batch, trl_loss
from torch import Tensor
from trl.experimental.gmpo.gmpo_trainer import GMPOTrainer

from troll.algorithms.trust_regions import StepTokens, TokenPolicy, make_trust_region

# TRL's own code

LUSPO = {"loss_type": "luspo", "importance_sampling_level": "sequence"}
TRL = {
    "vespo": ("vespo", {}, "token-mean", {"loss_type": "vespo"}, 0.3),
    "vespo other": (
        "vespo",
        {"k_positive": 1.0, "lambda_positive": 0.5, "k_negative": 2.5, "lambda_negative": 1.5},
        "token-mean",
        {
            "loss_type": "vespo", "vespo_k_pos": 1.0, "vespo_lambda_pos": 0.5, "vespo_k_neg": 2.5,
            "vespo_lambda_neg": 1.5,
        },
        0.7,
    ),
    "luspo": (
        "luspo", {}, "seq-mean-token-sum", {**LUSPO, "epsilon_low": 2e-3, "epsilon_high": 2.5e-3}, 2e-2,
    ),
    "luspo wide": (
        "luspo", {"epsilon_low": 0.2, "epsilon_high": 0.2}, "seq-mean-token-sum", LUSPO, 0.5,
    ),
    "opsm": ("opsm", {"threshold": 0.02}, "token-mean", {"off_policy_mask_threshold": 0.02}, 0.3),
    "opsm strict": ("opsm", {}, "token-mean", {"off_policy_mask_threshold": 1e-4}, 0.3),
}  # fmt: skip


@pytest.mark.parametrize("pair", TRL)
@pytest.mark.parametrize("seed", range(3))
def test_same_loss_and_gradient_as_trl(pair, seed):
    name, settings, aggregation, options, shift = TRL[pair]
    new, batch = random_batch(seed, shift)
    per_token, metrics = ours(name, new, batch, **settings)
    assert_same(new, batch, per_token, aggregation, trl_loss(new, batch, **options))
    outside = metrics["clip_fraction"][batch.mask.bool()]
    assert 0 < outside.mean() < 1


@pytest.mark.parametrize("seed", range(3))
def test_gmpo_is_trls(seed):
    new, batch = random_batch(seed, 0.6)
    same = {"gather": lambda x: x, "reduce": lambda x, reduction: x}
    trainer = SimpleNamespace(
        top_entropy_quantile=1.0, beta=0.0, epsilon_low=0.4, epsilon_high=0.4,
        model=SimpleNamespace(training=False), accelerator=SimpleNamespace(**same),
        _metrics={"eval": {key: [] for key in (
            "entropy", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean",
            "clip_ratio/low_min", "clip_ratio/high_max",
        )}},
        _get_per_token_logps_and_entropies=lambda *a, **k: (new, torch.zeros_like(new), None),
    )  # fmt: skip
    inputs = {
        "prompt_ids": torch.zeros(6, 1, dtype=torch.int64),
        "prompt_mask": torch.ones(6, 1, dtype=torch.int64),
        "completion_ids": torch.zeros(new.shape, dtype=torch.int64),
        "completion_mask": batch.mask,
        "advantages": batch.advantages,
        "old_per_token_logps": batch.old,
    }
    expected = GMPOTrainer._compute_loss(trainer, None, inputs)
    per_token, metrics = ours("gmpo", new, batch)
    assert_same(new, batch, per_token, "seq-mean-token-mean", expected)
    assert 0 < metrics["clip_fraction"][batch.mask.bool()].mean() < 1


# Formulas token by token: value and d value / d log p, from log p, log q and A


def _clip(r: float, a: float, low: float, high: float) -> tuple[float, float]:
    cut = min(max(r, low), high)
    loss = max(-a * r, -a * cut)
    return loss, (-a * r if -a * r >= -a * cut else 0.0)


def drpo(p, q, a):
    r = p / q
    return -a * r + abs(a) * q * (r - 1) ** 2 / 25, -a * r + abs(a) * q * (r - 1) * r / 12.5


def spo(p, q, a):
    r = p / q
    return -a * r + abs(a) * (r - 1) ** 2 / 25, -a * r + abs(a) * (r - 1) * r / 12.5


def ipo(p, q, a, e=0.3, t=0.0):
    r, on = p / q, abs(p - q) <= e
    log = math.log(r)
    return -a * r * on + t * log**2, -a * r * on + 2 * t * log


def icepop(p, q, a):
    r = p / q
    on = 0.5 <= r <= 5
    return -a * r * on, -a * r * on


def dcpo(p, q, a, dual=None):
    low = 0.5 + 0.5 * math.sqrt(max(1 - 0.8 / q, 0))
    high = min(0.5 + 0.5 * math.sqrt(1 + 1.12 / q), 10)
    loss, slope = _clip(p / q, a, low, high)
    if dual is not None and a < 0 and -a * dual < loss:
        return -a * dual, 0.0
    return loss, slope


def ripo(p, q, a):
    e = math.sqrt(0.05 / q)
    return _clip(p / q, a, max(1 - e, 0.5), min(1 + e, 10))


def aspo(p, q, a):
    r = p / q
    if a <= 0:
        return _clip(r, a, 0.8, 1.2)
    weight = 0.0 if r > 1.2 else min(1 / r, 3)
    return -a * weight * math.log(p), -a * weight


def ce_gppo(p, q, a, low=0.25, high=1.0, dual=None):
    r = p / q
    slope = -a * r
    if a < 0 and r < 0.8:
        slope = -low * 0.8 * a
    elif a > 0 and r > 1.2:
        slope = -high * 1.2 * a
    if dual is not None and a < 0 and -a * dual < slope:
        return -a * dual, 0.0
    return slope, slope


TOKENWISE = {
    "drpo": ("drpo", {}, drpo),
    "spo": ("spo", {}, spo),
    "ipo": ("ipo", {}, ipo),
    "ipo strict": ("ipo", {"epsilon": 0.1, "coefficient": 1e-3}, lambda p, q, a: ipo(p, q, a, 0.1, 1e-3)),
    "icepop": ("icepop", {}, icepop),
    "dcpo": ("dcpo", {}, dcpo),
    "dcpo dual": ("dcpo", {"dual_clip": 3.0}, lambda p, q, a: dcpo(p, q, a, 3.0)),
    "ripo": ("ripo", {}, ripo),
    "aspo": ("aspo", {}, aspo),
    "ce-gppo": ("ce-gppo", {}, ce_gppo),
    "ce-gppo dual": (
        "ce-gppo",
        {"beta_low": 0.75, "dual_clip": 3.0},
        lambda p, q, a: ce_gppo(p, q, a, 0.75, 1.0, 3.0),
    ),
}


@pytest.mark.parametrize("case", TOKENWISE)
@pytest.mark.parametrize("seed", range(2))
def test_same_loss_and_gradient_as_the_formula(case, seed):
    name, settings, formula = TOKENWISE[case]
    generator = torch.Generator().manual_seed(seed)
    # Probabilities up to 0.98, so that tokens of every kind occur; ratios below and above 3.
    old = -4 * torch.rand(20, 30, generator=generator, dtype=torch.float64).square() - 0.02
    new = old + 0.9 * torch.randn(20, 30, generator=generator, dtype=torch.float64)
    new = new.clamp(max=-1e-3).requires_grad_()
    advantages = torch.randn(20, 30, generator=generator, dtype=torch.float64)
    mask = torch.ones(20, 30)
    losses = make_trust_region(name, **settings)(TokenPolicy(new), TokenPolicy(old), advantages, mask)
    pairs = [
        formula(math.exp(n), math.exp(o), a)
        for n, o, a in zip(*(x.detach().flatten().tolist() for x in (new, old, advantages)), strict=True)
    ]
    value, slope = (torch.tensor(x, dtype=torch.float64).view(20, 30) for x in zip(*pairs, strict=True))
    torch.testing.assert_close(losses.per_token, value, rtol=1e-10, atol=1e-12)
    (gradient,) = torch.autograd.grad(losses.per_token.sum(), new)
    torch.testing.assert_close(gradient, slope, rtol=1e-10, atol=1e-12)
    plain = -advantages * (new - old).exp()
    assert (gradient != torch.autograd.grad(plain.sum(), new)[0]).double().mean() > 0.01
    if name not in ("drpo", "spo"):  # their thresholds bind for few tokens
        assert 0.01 < losses.metrics["clip_fraction"].mean() < 0.9


@pytest.mark.parametrize("adaptive", [True, False])
def test_cppo_is_its_algorithm(adaptive):
    new, batch = random_batch(5, 0.5)
    per_token, metrics = ours("cppo", new, batch, adaptive_budget=adaptive, threshold=0.1)
    (gradient,) = torch.autograd.grad(per_token.sum(), new)
    dropped = by_prefix = 0
    for row in range(len(new)):
        length, a = int(batch.mask[row].sum()), float(batch.advantages[row])
        p, q = (x[row, :length].detach().exp().numpy() for x in (new, batch.old))
        divergence = np.abs(p - q)
        budget = min(max(np.quantile(divergence, 0.9), 0.02), 0.04) if adaptive else 0.02
        summed = weights = 0.0
        for t in range(length):
            weight = 1 - 0.2 * t / max(length - 1, 1)
            allowed = min(0.1, 0.1 + budget * weights - summed)
            keep = a * (p[t] / q[t] - 1) <= 0 or weight * divergence[t] <= allowed
            dropped += not keep
            by_prefix += not keep and divergence[t] * weight <= 0.1
            summed, weights = summed + weight * divergence[t], weights + weight
            expected = -a * p[t] / q[t] * keep
            assert per_token[row, t].item() == pytest.approx(expected, rel=1e-10)
            assert gradient[row, t].item() == pytest.approx(expected, rel=1e-10)
    assert metrics["clip_fraction"].sum() == dropped > by_prefix > 0


@pytest.mark.parametrize("normalised", [True, False])
def test_topr_tapers_negative_responses_alone(normalised):
    new, batch = random_batch(2, 0.3)
    per_token, metrics = ours("topr", new, batch, length_normalised=normalised)
    (gradient,) = torch.autograd.grad(per_token.sum(), new)
    for row in range(len(new)):
        on, a = batch.mask[row].bool(), float(batch.advantages[row])
        difference = (new - batch.old)[row][on].detach()
        statistic = difference.mean() if normalised else difference.sum()
        weight = 1.0 if a > 0 else min(1.0, math.exp(statistic))
        torch.testing.assert_close(per_token[row][on], -a * weight * new[row][on])
        torch.testing.assert_close(gradient[row][on], torch.full_like(difference, -a * weight))
        assert (metrics["clip_fraction"][row][on] == float(a < 0 and statistic > 0)).all()


def test_dppo_predictive_sees_where_a_token_takes_the_distribution():
    """The predicted change is the derivative of KL(mu || pi) along the gradient of the sampled log-prob."""
    case = make_case(keep=12, shift=1.0)
    case.support = torch.arange(12).expand(4, 6, 12)
    losses = make_trust_region("dppo-predictive")(case.new, case.old, case.advantages, case.mask)
    mu = case.old_logits.softmax(-1)
    logits = case.logits.detach()

    def divergence(values: Tensor) -> Tensor:
        return (mu * (mu.log() - values.log_softmax(-1))).sum(-1)

    sampled = torch.nn.functional.one_hot(case.token_ids, 12)
    direction = sampled - logits.softmax(-1)
    slope = (divergence(logits + 1e-5 * direction) - divergence(logits - 1e-5 * direction)) / 2e-5
    on = case.mask.bool()
    torch.testing.assert_close(losses.metrics["predicted_change"][on], slope[on], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(losses.metrics["divergence"][on], divergence(logits)[on], rtol=1e-6, atol=1e-9)
    keep = ~((divergence(logits) > 0.15) & (case.advantages * slope > 0))
    ratio = (case.new.log_probs - case.old.log_probs).exp().detach()
    expected = -case.advantages * ratio.clamp(max=5.0) * keep * case.new.log_probs * case.mask
    torch.testing.assert_close(losses.per_token, expected)
    by_ratio = case.advantages * (ratio - 1) > 0
    assert (losses.metrics["clip_fraction"].bool() != (by_ratio & (divergence(logits) > 0.15) & on)).any()


# Decisions over a whole optimiser step


def flat(new: Tensor, batch: SimpleNamespace) -> tuple[list[float], list[float], list[float]]:
    """Log p, log q and A of the response tokens, in the order of responses."""
    on = batch.mask.bool()
    advantages = batch.advantages.unsqueeze(1).expand_as(new)
    return tuple(x[on].detach().tolist() for x in (new, batch.old, advantages))


def check_tokens(name: str, new: Tensor, batch: SimpleNamespace, per_token: Tensor, expected: list) -> None:
    on = batch.mask.bool()
    (gradient,) = torch.autograd.grad(per_token.sum(), new)
    value, slope = (torch.tensor(x, dtype=torch.float64) for x in zip(*expected, strict=True))
    torch.testing.assert_close(per_token[on], value, rtol=1e-10, atol=1e-12, msg=name)
    torch.testing.assert_close(gradient[on], slope, rtol=1e-10, atol=1e-12, msg=name)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("threshold", [0.04, 0.01, 1e-9])
def test_m2po_is_its_algorithm(seed, threshold):
    new, batch = random_batch(seed, 0.5)
    per_token, metrics = ours("m2po", new, batch, threshold=threshold)
    tokens = list(zip(*flat(new, batch), strict=True))
    moving = [i for i, (n, o, a) in enumerate(tokens) if a * (n - o) > 0]
    squares = {i: (tokens[i][0] - tokens[i][1]) ** 2 for i in moving}
    while moving and sum(squares[i] for i in moving) / len(moving) > threshold:
        moving.remove(max(moving, key=squares.get))
    dropped = set(squares) - set(moving)
    losses = [0.0 if i in dropped else -a * math.exp(n - o) for i, (n, o, a) in enumerate(tokens)]
    check_tokens("m2po", new, batch, per_token, [(x, x) for x in losses])
    assert metrics["clip_fraction"].sum() == len(dropped) > 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("offset", [-0.6, 0.0, 0.9])
def test_bapo_is_its_recipe(seed, offset):
    new, batch = random_batch(seed, 0.5)
    batch.advantages = batch.advantages + offset
    per_token, metrics = ours("bapo", new, batch)
    tokens = list(zip(*flat(new, batch), strict=True))
    low, high = 0.6, 1.2

    def enough() -> bool:
        positive = sum(a * min(math.exp(n - o), high) for n, o, a in tokens if a >= 0)
        negative = sum(-a * max(math.exp(n - o), low) for n, o, a in tokens if a < 0)
        return negative <= 0 or positive / (negative + 1e-8) >= 1.0

    while not enough() and low < 0.8:
        low = min(low + 0.05, 0.8)
    while not enough() and high < 2.0:
        high = min(high + 0.05, 2.0)
    on = batch.mask.bool()
    assert metrics["ratio_low_bound"][on].unique().tolist() == pytest.approx([low])
    assert metrics["ratio_high_bound"][on].unique().tolist() == pytest.approx([high])
    check_tokens("bapo", new, batch, per_token, [_clip(math.exp(n - o), a, low, high) for n, o, a in tokens])


def test_bapo_moves_its_bounds_by_the_balance():
    found = set()
    for offset in (-0.6, 0.95, 2.0):
        new, batch = random_batch(1, 0.6)
        batch.advantages = batch.advantages + offset
        metrics = ours("bapo", new, batch)[1]
        found.add((metrics["ratio_low_bound"].max().item(), metrics["ratio_high_bound"].max().item()))
    assert (0.6, 1.2) in found and (0.8, 2.0) in found and len(found) == 3


def covariances(tokens: list[tuple[float, float, float]]) -> list[float]:
    mean_log = sum(n for n, _, _ in tokens) / len(tokens)
    mean_a = sum(a for _, _, a in tokens) / len(tokens)
    return [(a - mean_a) * (n - mean_log) for n, _, a in tokens]


@pytest.mark.parametrize("share", [2e-4, 0.2])
def test_kl_cov_penalises_the_tokens_that_covary_most(share):
    new, batch = random_batch(3, 0.5)
    per_token, metrics = ours("kl-cov", new, batch, share=share, coefficient=0.7)
    tokens = list(zip(*flat(new, batch), strict=True))
    order = sorted(range(len(tokens)), key=covariances(tokens).__getitem__, reverse=True)
    chosen = set(order[: max(1, int(share * len(tokens)))])
    expected = []
    for i, (n, o, a) in enumerate(tokens):
        extra = 0.7 if i in chosen else 0.0
        r = math.exp(n - o)
        expected.append((-a * r + extra * abs(n - o), -a * r + extra * math.copysign(1, n - o)))
    check_tokens("kl-cov", new, batch, per_token, expected)
    assert metrics["penalised_fraction"].sum() == len(chosen)


@pytest.mark.parametrize("share", [2e-4, 0.1])
def test_clip_cov_drops_a_few_of_the_tokens_that_covary(share):
    new, batch = random_batch(3, 0.5)
    advantages = batch.advantages.unsqueeze(1).expand_as(new)
    rule = make_trust_region("clip-cov", share=share, covariance_min=0.2, covariance_max=2.0)
    tokens = list(zip(*flat(new, batch), strict=True))
    clipped = [_clip(math.exp(n - o), a, 0.8, 1.2) for n, o, a in tokens]
    candidates = {
        i
        for i, c in enumerate(covariances(tokens))
        if 0.2 < c < 2.0 and not (clipped[i][1] == 0 and tokens[i][2] != 0)
    }
    count = max(1, int(share * len(tokens)))
    seen = set()
    for seed in range(30):
        losses = rule(TokenPolicy(new), TokenPolicy(batch.old), advantages, batch.mask, seed=seed)
        dropped = losses.metrics["masked_fraction"][batch.mask.bool()].nonzero().flatten().tolist()
        again = rule(TokenPolicy(new), TokenPolicy(batch.old), advantages, batch.mask, seed=seed)
        assert torch.equal(again.per_token, losses.per_token)
        assert len(dropped) == min(count, len(candidates)) and set(dropped) <= candidates
        expected = [(0.0, 0.0) if i in dropped else pair for i, pair in enumerate(clipped)]
        check_tokens("clip-cov", new, batch, losses.per_token, expected)
        seen |= set(dropped)
    assert len(candidates) > count and seen == candidates


@pytest.mark.parametrize("name", ["m2po", "bapo", "clip-cov", "kl-cov"])
def test_decisions_are_those_of_the_step_however_it_is_cut(name):
    """Parts of a step, in any order, get the losses of the whole; alone, they would decide otherwise."""
    new, batch = random_batch(1, 0.6)
    batch.advantages = batch.advantages + 0.6  # BAPO's bounds then stop on their way
    settings = {"share": 0.1, "covariance_min": 0.1} if name == "clip-cov" else {}
    settings = {"share": 0.1} if name == "kl-cov" else settings
    rule = make_trust_region(name, **settings)
    advantages = batch.advantages.unsqueeze(1).expand_as(new)
    old, on = batch.old, batch.mask.bool()
    whole = rule(TokenPolicy(new), TokenPolicy(old), advantages, batch.mask, seed=7)
    step = StepTokens.of(TokenPolicy(new), TokenPolicy(old), advantages, on, seed=7)
    alone = []
    for rows in (slice(4, 6), slice(0, 1), slice(1, 4)):
        part = StepTokens(**vars(step) | {"start": int(on[: rows.start].sum())})
        arguments = TokenPolicy(new[rows]), TokenPolicy(old[rows]), advantages[rows], batch.mask[rows]
        found = rule(*arguments, step_tokens=part)
        assert torch.equal(found.per_token, whole.per_token[rows])
        for key in whole.metrics:
            assert torch.equal(found.metrics[key], whole.metrics[key][rows]), key
        alone.append(torch.equal(rule(*arguments, seed=7).per_token, found.per_token))
    assert not all(alone)


# kl-stop


def test_kl_stop_leaves_the_batch_once_and_comes_back_for_the_next():
    rule = make_trust_region("kl-stop", kl_bound=0.1)
    stopped = []
    for batch in ([0.05, 0.2, 0.01], [0.05, 0.1, 0.1]):
        rule.start_batch()
        for kl in batch:
            rule.after_step({"kl_to_old": kl, "kl_to_old_sampled": 5.0})
            stopped.append(rule.stopped)
    assert stopped == [False, True, True, False, False, False]
    rule.after_step({"kl_to_old_sampled": 0.2})
    resumed = make_trust_region("kl-stop", kl_bound=0.1)
    resumed.load_state_dict(rule.state_dict())
    assert rule.stopped and resumed.stopped
    assert not make_trust_region("clip").stopped


def test_kl_stop_is_the_unbounded_policy_gradient_otherwise():
    new, batch = random_batch(0)
    assert torch.equal(ours("kl-stop", new, batch)[0], ours("none", new, batch)[0])
