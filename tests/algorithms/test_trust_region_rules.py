"""What each rule does on its own: values and gradients against the formulas, on single tokens."""

import math

import pytest
import scipy.optimize
import torch
from policy_cases import make_case
from torch import Tensor

from troll.algorithms.distributions import DEFAULT_LOG_PROB, SparseLogProbs, align, on_support, sparsify
from troll.algorithms.divergences import kl_divergence
from troll.algorithms.projection import project
from troll.algorithms.trust_regions import GroupRewards, TokenPolicy, make_trust_region
from troll.algorithms.trust_regions.projected import DEFAULT_KL_BOUND
from troll.algorithms.trust_regions.quatro import solve_duals


def one_token(name: str, ratio: float, advantage: float, old: float = 0.3, **settings: float):
    """Loss, d loss / d log pi and metrics of one token with the given probability ratio."""
    new = torch.tensor([[math.log(old * ratio)]], dtype=torch.float64, requires_grad=True)
    policy_old = TokenPolicy(torch.tensor([[math.log(old)]], dtype=torch.float64))
    losses = make_trust_region(name, **settings)(
        TokenPolicy(new), policy_old, torch.full((1, 1), advantage, dtype=torch.float64), torch.ones(1, 1)
    )
    (slope,) = torch.autograd.grad(losses.per_token.sum(), new)
    return losses.per_token.item(), slope.item(), {key: value.item() for key, value in losses.metrics.items()}


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope", "outside"),
    [
        (1.1, 2.0, -2.2, -2.2, 0),
        (1.35, 2.0, -2.56, 0.0, 1),  # above 1 + high with A > 0
        (0.5, 2.0, -1.0, -1.0, 0),  # moving back is never clipped
        (0.7, -2.0, 1.6, 0.0, 1),  # below 1 - low with A < 0
        (1.5, -2.0, 3.0, 3.0, 0),
        (4.0, -2.0, 6.0, 0.0, 1),  # dual clip at 3
    ],
)
def test_clip_with_asymmetric_bounds_and_dual_clip(ratio, advantage, loss, slope, outside):
    result = one_token("clip", ratio, advantage, 0.1, epsilon_low=0.2, epsilon_high=0.28, dual_clip=3.0)
    assert result[:2] == pytest.approx((loss, slope), rel=1e-12, abs=1e-12)
    assert result[2]["clip_fraction"] == outside
    assert result[2]["clipped_up"] + result[2]["clipped_down"] == outside


def test_without_a_dual_clip_large_ratios_keep_their_gradient():
    assert one_token("clip", 9.0, -1.0, 0.1)[1] == pytest.approx(9.0)


def test_ratios_are_cut_at_twenty_nats():
    loss, slope, metrics = one_token("none", math.exp(25.0), -1.0, 1e-12)
    assert (
        loss == pytest.approx(math.exp(20.0))
        and slope == 0
        and metrics["ratio"] == pytest.approx(math.exp(20))
    )


@pytest.mark.parametrize(("name", "limit"), [("cispo", 5.0), ("cispo-verl", 1.2)])
def test_cispo_cuts_the_weight_and_keeps_the_gradient(name, limit):
    loss, slope, metrics = one_token(name, 6.0, 1.5, 0.1)
    assert slope == pytest.approx(-1.5 * limit)
    assert loss == pytest.approx(-1.5 * limit * math.log(0.6))
    assert metrics["clip_fraction"] == 1


def test_cispo_conventions_differ_below_one():
    assert one_token("cispo", 0.1, 1.0)[1] == pytest.approx(-0.1)
    assert one_token("cispo-verl", 0.1, 1.0)[1] == pytest.approx(-0.8)


@pytest.mark.parametrize(("advantage", "tau"), [(1.0, 1.0), (-1.0, 1.05)])
@pytest.mark.parametrize("ratio", [0.3, 1.0, 2.0, 3.0])
def test_sapo_gates_the_gradient(advantage, tau, ratio):
    loss, slope, metrics = one_token("sapo", ratio, advantage)
    soft = 1 / (1 + math.exp(-tau * (ratio - 1)))
    assert loss == pytest.approx(-advantage * 4 / tau * soft)
    assert slope == pytest.approx(-advantage * 4 * soft * (1 - soft) * ratio)
    assert metrics["gate"] == pytest.approx(4 * soft * (1 - soft))


@pytest.mark.parametrize(
    ("new", "old", "advantage", "masked"),
    [
        (0.50, 0.30, 1.0, True),  # TV 0.20 > 0.15, moving with its advantage
        (0.40, 0.30, 1.0, False),  # TV 0.10
        (0.10, 0.30, 1.0, False),  # against its advantage
        (0.10, 0.30, -1.0, True),
        (0.50, 0.30, -1.0, False),
        (1e-3, 1e-6, 1.0, False),  # a ratio of 1000, but hardly any probability
    ],
)
def test_dppo_masks_by_probability_not_by_ratio(new, old, advantage, masked):
    _, slope, metrics = one_token("dppo-binary-tv", new / old, advantage, old)
    assert metrics["divergence"] == pytest.approx(abs(new - old), rel=1e-5)
    assert metrics["clip_fraction"] == masked
    assert slope == pytest.approx(0.0 if masked else -advantage * min(new / old, 20.0))


def test_dppo_binary_kl_is_old_to_new():
    _, _, metrics = one_token("dppo-binary-kl", 2.0, 1.0, 0.3)
    expected = 0.3 * math.log(0.3 / 0.6) + 0.7 * math.log(0.7 / 0.4)
    assert metrics["divergence"] == pytest.approx(expected)
    assert expected > 0.05 and metrics["clip_fraction"] == 1.0  # its threshold


@pytest.mark.parametrize("name", ["dppo-topk-tv", "dppo-topk-kl"])
def test_dppo_top_k_counts_the_tail_as_one_bucket(name):
    case = make_case()
    metrics = make_trust_region(name)(case.new, case.old, case.advantages, case.mask).metrics
    q, p = case.new.distribution.atoms().exp(), case.old.distribution.atoms().exp()
    expected = 0.5 * (q - p).abs().sum(-1) if name.endswith("tv") else (p * (p / q).log()).sum(-1)
    torch.testing.assert_close(metrics["divergence"], (expected * case.mask).detach())


def test_gspo_weighs_every_token_by_the_sequence_ratio():
    case = make_case(shift=0.1)
    losses = make_trust_region("gspo-clip")(case.new, case.old, case.advantages, case.mask)
    on = case.mask
    difference = ((case.new.log_probs - case.old.log_probs) * on).detach()
    sequence = (difference.sum(-1) / on.sum(-1).clamp(min=1)).exp().unsqueeze(-1)
    torch.testing.assert_close(losses.per_token.detach(), -case.advantages * sequence * on)
    (found,) = torch.autograd.grad(losses.per_token.sum(), case.logits)
    surrogate = (-case.advantages * sequence * on * case.new.log_probs).sum()
    (expected,) = torch.autograd.grad(surrogate, case.logits)
    torch.testing.assert_close(found, expected)


def test_the_two_gspo_entries_have_the_published_bounds():
    loose, tight = make_trust_region("gspo-clip").settings, make_trust_region("gspo-clip-tight").settings
    assert (loose["epsilon_low"], loose["epsilon_high"]) == (0.2, 0.2)
    assert (tight["epsilon_low"], tight["epsilon_high"]) == (3e-4, 4e-4)


# TROLL


def dense_troll(case, bound: float, alpha: float, sequence: bool) -> Tensor:
    """The method's loss written down on dense log-probs, per token."""
    q, p = case.logits.log_softmax(-1), case.old_logits.log_softmax(-1)
    pi = project(q, p, bound).log_probs
    ids = case.token_ids.unsqueeze(-1)
    log_ratio = (pi.gather(-1, ids) - p.gather(-1, ids)).squeeze(-1)
    weight = log_ratio.exp()
    if sequence:
        mean = (log_ratio * case.mask).sum(-1, keepdim=True) / case.mask.sum(-1, keepdim=True).clamp(min=1)
        weight = (mean.detach() + log_ratio - log_ratio.detach()).exp()
    regression = (q.exp() * (q - pi.detach())).sum(-1)
    return (-case.advantages * weight + alpha * regression) * case.mask


@pytest.mark.parametrize("name", ["troll", "troll-seq", "troll-adaptive"])
@pytest.mark.parametrize("alpha", [0.0, 1.0, 0.3])
def test_troll_on_all_tokens_is_the_dense_formula(name, alpha):
    case = make_case(keep=12, shift=1.0)
    case.support = torch.arange(12).expand(4, 6, 12)
    rule = make_trust_region(name, kl_bound=0.05, regression_weight=alpha)
    losses = rule(case.new, case.old, case.advantages, case.mask)
    assert losses.metrics["clip_fraction"].sum() > 0
    expected = dense_troll(case, 0.05, alpha, name == "troll-seq")
    torch.testing.assert_close(losses.per_token, expected, rtol=1e-7, atol=1e-9)
    (found,) = torch.autograd.grad(losses.per_token.sum(), case.logits)
    (gradient,) = torch.autograd.grad(expected.sum(), case.logits)
    torch.testing.assert_close(found, gradient, rtol=1e-6, atol=1e-8)


def constant_pair(logits: Tensor, old_logits: Tensor, tokens: Tensor, keep: int):
    """Both policies [1, T] as the paper's code has them: each keeps its own tokens, 1e-12 for the rest."""
    pair = [sparsify(values, keep, 1e-3, tokens, tail="constant") for values in (logits, old_logits.detach())]
    policies = []
    for values, sparse in zip((logits, old_logits), align(*pair, missing="default"), strict=True):
        sampled = values.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        policies.append(TokenPolicy(sampled, sparse, None, tokens))
    return policies


def dense_with_constant(logits: Tensor, tokens: Tensor, keep: int) -> Tensor:
    """The same as log-probabilities over the whole vocabulary, written down for each row."""
    rows = []
    for row, token in zip(logits, tokens.tolist(), strict=True):
        probabilities = row.detach().softmax(-1)
        order = [i for i in row.argsort(descending=True).tolist() if i != token]
        chosen = [token, *order[: keep - 1]]
        chosen.sort(key=lambda i: -float(probabilities[i]))
        left, kept = 1.0, []
        for i in chosen:
            if left > 1e-3 or i == token:
                kept.append(i)
            left -= float(probabilities[i])
        constant = math.exp(DEFAULT_LOG_PROB)
        share = row[kept].log_softmax(-1) + math.log1p(-constant * (len(row) - len(kept)))
        full = torch.full_like(row, DEFAULT_LOG_PROB)
        rows.append(full.index_put((torch.tensor(kept),), share))
    return torch.stack(rows)


@pytest.mark.parametrize("shift", [0.1, 0.7, 2.0])
def test_troll_with_a_constant_tail_is_the_dense_formula(shift):
    """Twelve tokens, five kept by each policy: loss and gradient equal those over the whole vocabulary."""
    generator = torch.Generator().manual_seed(4)
    old = 1.5 * torch.randn(40, 12, generator=generator, dtype=torch.float64)
    new = (old + shift * torch.randn(40, 12, generator=generator, dtype=torch.float64)).requires_grad_()
    tokens = old.softmax(-1).multinomial(1, generator=generator).squeeze(-1)
    advantages = torch.randn(40, generator=generator, dtype=torch.float64)
    policies = constant_pair(new[None], old[None], tokens[None], 5)
    losses = make_trust_region("troll")(*policies, advantages[None], torch.ones(1, 40))
    q, p = dense_with_constant(new, tokens, 5), dense_with_constant(old, tokens, 5)
    projection = project(q, p, DEFAULT_KL_BOUND)
    slot = tokens.unsqueeze(-1)
    ratio = (projection.log_probs.gather(-1, slot) - p.gather(-1, slot)).exp().squeeze(-1)
    pull = kl_divergence(q, projection.log_probs.detach())
    expected = -advantages * ratio + torch.where(projection.active, pull, 0.0)
    torch.testing.assert_close(losses.per_token[0], expected, rtol=1e-7, atol=1e-9)
    (found,) = torch.autograd.grad(losses.per_token.sum(), new, retain_graph=True)
    (wanted,) = torch.autograd.grad(expected.sum(), new)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-9)
    assert projection.active.any() or shift < 0.5
    kept = policies[1].distribution.kept_mass()
    torch.testing.assert_close(losses.metrics["kept_mass"], kept)
    assert kept.min() < 0.8


@pytest.mark.parametrize("name", ["troll", "troll-seq"])
@pytest.mark.parametrize("tail", ["constant", "pooled"])
def test_the_loss_is_continuous_at_the_edge_of_the_ball(name, tail):
    """Little mass is kept; a policy moves from just inside of the ball to just outside."""
    generator = torch.Generator().manual_seed(1)
    old = 0.1 * torch.randn(1, 1, 40, generator=generator, dtype=torch.float64)
    way = torch.randn(1, 1, 40, generator=generator, dtype=torch.float64)
    # Nine tokens stay ahead, so that both keep the same: another kept token is a jump of its own.
    old[..., :9] += 1.0
    way[..., 9:] = 0.0
    token = old.argmax(-1)

    def losses(distance: float):
        logits = old + distance * way
        if tail == "constant":
            policies = constant_pair(logits, old, token, 9)
        else:
            ids = sparsify(old, 9, 1e-3, token).token_ids
            policies = []
            for values in (logits, old):
                sampled = values.log_softmax(-1).gather(-1, token.unsqueeze(-1)).squeeze(-1)
                policies.append(TokenPolicy(sampled, on_support(values, ids), None, token))
        return make_trust_region(name)(*policies, torch.ones(1, 1), torch.ones(1, 1))

    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        outside = losses(middle).metrics["clip_fraction"].item() == 1
        low, high = (low, middle) if outside else (middle, high)
    inside, outside = losses(low), losses(high)
    assert inside.metrics["clip_fraction"].item() == 0 and outside.metrics["clip_fraction"].item() == 1
    assert outside.metrics["kl_to_old"].item() == pytest.approx(DEFAULT_KL_BOUND, rel=1e-6)
    assert outside.metrics["kept_mass"].item() < 0.5
    assert outside.per_token.item() == pytest.approx(inside.per_token.item(), rel=1e-6)
    assert abs(outside.per_token.item() + 1) > 0.01


def test_troll_reports_what_the_projection_did():
    case = make_case(shift=1.5)
    metrics = make_trust_region("troll", kl_bound=0.1)(case.new, case.old, case.advantages, case.mask).metrics
    outside = metrics["clip_fraction"].bool()
    assert torch.equal(outside, (metrics["kl_to_old"] > 0.1))
    assert (metrics["kl_projected"] <= 0.1 * (1 + 1e-9)).all() and (metrics["kl_violation"] <= 1e-9).all()
    torch.testing.assert_close(
        metrics["kl_projected"][outside], torch.full_like(metrics["kl_projected"][outside], 0.1)
    )
    assert (metrics["regression"][outside] > 0).all() and (metrics["regression"][~outside] == 0).all()
    assert (metrics["solver_evaluations"][outside] >= 1).all()


def test_troll_survives_an_old_tail_that_was_rounded_to_nothing():
    """New mass where the stored old policy has none is pulled back, by a finite amount."""
    ids = torch.tensor([[[0, 1]]])
    old = TokenPolicy(
        torch.tensor([[-0.7]]),
        SparseLogProbs(ids, torch.tensor([[[-0.693147, -0.693147]]]), torch.tensor([[-math.inf]])),
        token_ids=torch.tensor([[0]]),
    )
    logits = torch.tensor([[[0.0, 0.0, -1.0]]], requires_grad=True)
    log_probs = logits.log_softmax(-1)
    new = TokenPolicy(log_probs[..., 0], SparseLogProbs(ids, log_probs[..., :2], log_probs[..., 2]))
    losses = make_trust_region("troll")(new, old, torch.ones(1, 1), torch.ones(1, 1))
    losses.per_token.sum().backward()
    assert losses.metrics["clip_fraction"].item() == 1 and losses.per_token.isfinite().all()
    # Gradient descent lowers the logit that the old policy does not know.
    assert logits.grad.isfinite().all() and logits.grad[0, 0, 2] > 0


def test_troll_survives_a_kept_token_that_the_old_policy_rules_out():
    """A forced token of old probability zero: KL is infinite, loss and gradient are not."""
    ids = torch.tensor([[[0, 1, 2]]])

    def policy(log_probs: Tensor) -> TokenPolicy:
        kept = SparseLogProbs(ids, log_probs[..., :3], log_probs[..., 3])
        return TokenPolicy(log_probs[..., 0], kept, None, torch.tensor([[0]]))

    logits = torch.zeros(1, 1, 4, requires_grad=True)
    old = torch.tensor([[[0.5, 0.4, 0.0, 0.1]]]).log()
    losses = make_trust_region("troll")(
        policy(logits.log_softmax(-1)), policy(old), torch.ones(1, 1), torch.ones(1, 1)
    )
    losses.per_token.sum().backward()
    assert losses.metrics["kl_to_old"].item() == math.inf and losses.metrics["clip_fraction"].item() == 1
    assert losses.per_token.isfinite().all() and logits.grad.isfinite().all()
    assert logits.grad[0, 0, 2] > 0.1


def test_a_looser_bound_projects_fewer_tokens():
    case = make_case(shift=0.5)
    counts = []
    for bound in (0.01, 0.05, 0.25, math.inf):
        rule = make_trust_region("troll", kl_bound=bound)
        losses = rule(case.new, case.old, case.advantages, case.mask)
        counts.append(losses.metrics["clip_fraction"].sum().item())
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[2] and counts[-1] == 0


# QUATRO (reconstruction)

DUALS = {
    0.05: {1: 1.0111, 2: 1.2549, 4: 1.4973, 8: 1.5409, 12: 1.1544, 14: 0.7286},
    0.005: {2: 3.5428, 8: 4.9875, 14: 3.0406},
}


@pytest.mark.parametrize("bound", DUALS)
def test_dual_of_binary_rewards_has_its_closed_form(bound):
    for successes, expected in DUALS[bound].items():
        rewards = (torch.arange(16) < successes).double()[torch.randperm(16)].unsqueeze(0)
        multiplier, log_z = solve_duals(rewards, bound)
        assert float(multiplier) == pytest.approx(expected, abs=1e-4)
        s = successes / 16
        assert float(log_z) == pytest.approx(math.log(1 - s + s * math.exp(1 / float(multiplier))))


def test_dual_minimises_the_dual_function_for_any_rewards():
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randn(5, 8, generator=generator, dtype=torch.float64) * 3 + 100
    rewards[2, 5:] = math.nan
    multipliers, log_z = solve_duals(rewards, 0.1)
    for row, found, z in zip(rewards, multipliers, log_z, strict=True):
        present = row[~row.isnan()]

        def dual(log_lambda: float, present: Tensor = present) -> float:
            lam = math.exp(log_lambda)
            return lam * 0.1 + lam * float(torch.logsumexp(present / lam, 0) - math.log(len(present)))

        best = scipy.optimize.minimize_scalar(
            dual, bounds=(-3, 6), method="bounded", options={"xatol": 1e-10}
        )
        assert float(found) == pytest.approx(math.exp(best.x), rel=1e-4)
        assert float(z) == pytest.approx(float(torch.logsumexp(present / found, 0)) - math.log(len(present)))


def test_the_floor_holds_where_all_mass_may_go_to_the_best():
    rewards = torch.tensor([[1.0] * 15 + [0.0]])
    assert float(solve_duals(rewards, 0.5, multiplier_min=0.02)[0]) == 0.02


@pytest.mark.parametrize("log_weight", ["mean", "sum", "token"])
def test_both_forms_vanish_at_the_optimum(log_weight):
    """At log w = A / lambda - log Z nothing moves; beyond it the gradient points back."""
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    group_rewards = GroupRewards.from_groups(rewards, torch.zeros(4, dtype=torch.int64))
    multiplier, log_z = solve_duals(group_rewards.of_group, 0.05)
    target = rewards / multiplier - log_z
    length = 3
    per_token = target / length if log_weight == "sum" else target
    for form in ("gradient", "regression"):
        for extra, sign in ((0.0, 0), (0.1, 1)):
            new = (per_token + extra).unsqueeze(-1).expand(4, length).clone().requires_grad_()
            rule = make_trust_region(f"quatro-recon-{form}", log_weight=log_weight)
            losses = rule(
                TokenPolicy(new), TokenPolicy(torch.zeros_like(new)), torch.ones(4, length),
                torch.ones(4, length), group_rewards,
            )  # fmt: skip
            (slope,) = torch.autograd.grad(losses.per_token.sum(), new)
            assert (slope.abs() < 1e-8).all() if sign == 0 else (slope > 1e-3).all()


def test_group_context_survives_shuffling():
    rewards, groups = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), torch.tensor([7, 3, 7, 3, 7])
    group_rewards = GroupRewards.from_groups(rewards, groups)
    for row, members in enumerate(([1, 3, 5], [2, 4], [1, 3, 5], [2, 4], [1, 3, 5])):
        own = group_rewards.of_group[row]
        assert sorted(own[~own.isnan()].tolist()) == members


# Adaptive strength


def test_penalty_is_the_exact_kl_where_known_and_unbiased_elsewhere():
    case = make_case()
    rule = make_trust_region("kl-penalty", coefficient=2.0)
    losses = rule(case.new, case.old, torch.zeros_like(case.advantages), case.mask)
    expected = kl_divergence(case.old.distribution.atoms(), case.new.distribution.atoms()) * case.mask
    torch.testing.assert_close(losses.per_token, 2.0 * expected)
    # Without distributions: E_old[r - 1 - log r] over the sampled token is the same KL.
    q, p = case.new.distribution.atoms()[0, 0].detach(), case.old.distribution.atoms()[0, 0]
    bare = rule(TokenPolicy(q.unsqueeze(0)), TokenPolicy(p.unsqueeze(0)), torch.zeros(1, 8), torch.ones(1, 8))
    assert float((p.exp() * bare.metrics["penalty_kl"][0]).sum()) == pytest.approx(expected[0, 0].item())


def test_penalty_coefficient_halves_and_doubles_outside_its_band():
    rule = make_trust_region("kl-penalty", target_kl=0.01)
    for measured, expected in ((0.016, 2.0), (0.014, 2.0), (0.0067, 2.0), (0.0066, 1.0), (0.0, 0.5)):
        before = rule.current_settings()
        for step in (0.0, 0.5, measured):  # what counts is where the updates on a batch end
            rule.after_step({"penalty_kl": step})
            assert rule.current_settings() == before
        rule.start_batch()
        assert rule.current_settings()["coefficient"] == expected
    rule.after_step({"penalty_kl": 0.0})
    rule.start_batch()
    assert rule.current_settings()["coefficient"] == 0.5, "one step is measured before it, and tells nothing"
    for _ in range(2):
        rule.after_step({"penalty_kl": 1.0})
    resumed = make_trust_region("kl-penalty", target_kl=0.01)
    resumed.load_state_dict(rule.state_dict())
    for one in (rule, resumed):
        one.start_batch()
        assert one.current_settings()["coefficient"] == 1.0
    fixed = make_trust_region("kl-penalty", adaptive=False)
    fixed.after_step({})
    fixed.start_batch()
    assert fixed.current_settings()["coefficient"] == 1.0


def test_adaptive_bound_moves_towards_its_target():
    rule = make_trust_region("troll-adaptive", target=0.01, rate=1.5)
    rule.after_step({"clip_fraction": 0.012})  # a little too many outside: a little wider
    assert rule.current_settings()["kl_bound"] == pytest.approx(DEFAULT_KL_BOUND * 1.2)
    rule.after_step({"clip_fraction": 0.0})
    assert rule.current_settings()["kl_bound"] == pytest.approx(DEFAULT_KL_BOUND * 1.2 / 1.5)
    for _ in range(50):
        rule.after_step({"clip_fraction": 0.0})
    assert rule.current_settings()["kl_bound"] == 1e-3
    by_kl = make_trust_region("troll-adaptive", follow="kl", target=0.001, rate=2.0)
    by_kl.after_step({"kl_to_old": 0.00125})
    assert by_kl.current_settings()["kl_bound"] == pytest.approx(DEFAULT_KL_BOUND * 0.8)


@pytest.mark.parametrize(("shape", "halfway"), [("linear", 0.03), ("cosine", 0.03)])
def test_scheduled_bound(shape, halfway):
    rule = make_trust_region(
        "troll-adaptive",
        follow="schedule",
        schedule=shape,
        kl_bound=0.05,
        kl_bound_final=0.01,
        schedule_steps=10,
    )
    bounds = []
    for _ in range(12):
        rule.after_step({})
        bounds.append(rule.current_settings()["kl_bound"])
    assert bounds[4] == pytest.approx(halfway) and bounds[9:] == pytest.approx([0.01] * 3)
    assert bounds == sorted(bounds, reverse=True)
    resumed = make_trust_region(
        "troll-adaptive", follow="schedule", schedule=shape, kl_bound=0.05, schedule_steps=10
    )
    resumed.load_state_dict({"kl_bound": bounds[3], "step": 4})
    resumed.after_step({})
    assert resumed.current_settings()["kl_bound"] == pytest.approx(bounds[4])
