"""What every trust region promises, checked for each registered name and for the rule of the README."""

import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from policy_cases import Case, make_case
from refusals import refused
from torch import Tensor

from troll.algorithms.aggregation import AGGREGATIONS, aggregate
from troll.algorithms.distributions import SparseLogProbs
from troll.algorithms.divergences import kl_divergence
from troll.algorithms.trust_regions import (
    TRUST_REGIONS,
    GroupRewards,
    TokenLosses,
    TokenPolicy,
    TrustRegion,
    make_trust_region,
    register,
)
from troll.algorithms.trust_regions.quatro import solve_duals
from troll.common.errors import UserError

README = Path(__file__).parents[2] / "README.md"


def _readme_rule():
    """The rule that the README tells people to write, word for word, under a name for these tests."""
    fences = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (text,) = [fence for fence in fences if "def soft_wall" in fence]
    names: dict[str, Any] = {}
    exec(text, names)
    register("my-rule", names["soft_wall"])


def _careless(new, old, advantages, mask, *, coefficient: float = 1.0):
    """Careless: minds neither masks nor gradients, and reports what it likes."""
    ratio = (new.log_probs - old.log_probs).clamp(max=20.0).exp()
    spread = new.distribution.atoms().exp().sum(-1) - old.distribution.atoms().exp().sum(-1)
    per_token = coefficient * (ratio - old.log_probs.exp() / old.log_probs.detach().exp()).square()
    return TokenLosses(-advantages * ratio + per_token + 0.0 * spread, {"everywhere": 1.0 + ratio})


_readme_rule()
register("careless", _careless, needs_distribution=True)
RULES = sorted(TRUST_REGIONS)
# A rule outside of the package, alone: `make contract RULE=my_rules.py:soft_wall`.
if OWN := os.environ.get("TROLL_CONTRACT"):
    try:
        RULES = [TRUST_REGIONS.find(OWN).name]
    except UserError as error:  # without pytest's traceback: the line says what is wrong with the file
        raise pytest.Collector.CollectError(f"error: {error}") from None
WITH_DISTRIBUTION = [name for name in RULES if TRUST_REGIONS[name].needs_distribution]
# Other tests list all rules, and those of this file are no part of the package.
MINE = {name: TRUST_REGIONS._entries.pop(name) for name in ("my-rule", "careless")}


@pytest.fixture(autouse=True, scope="module")
def _registered():
    TRUST_REGIONS._entries.update(MINE)
    yield
    for name in MINE:
        del TRUST_REGIONS._entries[name]


def shown(name: str) -> str:
    """A rule in the names of tests; `make contract` and `troll rank` choose one's own by `own_rule`."""
    return f"own_rule-{name}" if OWN else name


every_rule = pytest.mark.parametrize("name", RULES, ids=shown)
# Terms that pull the policy whatever the advantage says; off for tests of the policy gradient.
PULLS = {"regression_weight": 0.0, "coefficient": 0.0}
# Rules that pick tokens of the old policy itself: the share that they pick.
PICKS = {"share": 0.0}


def region(name: str, **settings: float) -> TrustRegion:
    return make_trust_region(name, **settings)


def without(name: str, settings: dict[str, float]) -> TrustRegion:
    known = TRUST_REGIONS[name].settings
    return region(name, **{key: value for key, value in settings.items() if key in known})


def call(
    rule: TrustRegion,
    case: Case,
    advantages: Tensor | None = None,
    new: TokenPolicy | None = None,
    old: TokenPolicy | None = None,
) -> TokenLosses:
    """A rule on the case, or on other advantages or policies in its place."""
    return rule(
        case.new if new is None else new,
        case.old if old is None else old,
        case.advantages if advantages is None else advantages,
        case.mask,
        case.group_rewards if rule.info.needs_group_rewards else None,
    )


def loss_of(rule: TrustRegion, case: Case, advantages: Tensor | None = None) -> Tensor:
    losses = call(rule, case, advantages)
    return aggregate(losses.per_token, case.mask, rule.info.aggregation or "token-mean")


def gradient(rule: TrustRegion, case: Case, advantages: Tensor | None = None) -> Tensor:
    (result,) = torch.autograd.grad(loss_of(rule, case, advantages), case.logits)
    return result


def equal_rewards(case: Case) -> Case:
    """For rules that learn from rewards: no reward differs, so no response is better than another."""
    rewards = torch.ones_like(case.group_rewards.own)
    group_rewards = GroupRewards(rewards, torch.ones_like(case.group_rewards.of_group))
    return replace(case, group_rewards=group_rewards)


@every_rule
def test_zero_advantage_gives_zero_policy_gradient(name):
    case = equal_rewards(make_case())
    result = gradient(without(name, PULLS), case, torch.zeros_like(case.advantages))
    assert result.abs().max() == 0


@every_rule
def test_first_on_policy_step_is_the_policy_gradient(name):
    case = make_case(shift=0.0)
    rule = without(name, PICKS)
    advantages = case.advantages
    if rule.info.needs_group_rewards:
        # The reconstruction learns from rewards with a soft baseline of its own.
        multiplier, log_z = solve_duals(case.group_rewards.of_group, 0.05)
        advantages = (case.group_rewards.own - multiplier * log_z).unsqueeze(-1).expand_as(advantages)
        signal = case.group_rewards.of_group.nan_to_num(0).std(-1) > 0
        advantages = advantages * signal.unsqueeze(-1)
    expected_loss = aggregate(
        -advantages * case.new.log_probs, case.mask, rule.info.aggregation or "token-mean"
    )
    (expected,) = torch.autograd.grad(expected_loss, case.logits)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(gradient(rule, case), expected, rtol=1e-5, atol=1e-9)


@every_rule
def test_masked_positions_are_never_read(name):
    """Rubbish at masked positions, NaN included, changes neither losses nor gradients nor metrics."""
    case, rule = make_case(), region(name)
    clean = call(rule, case)
    (expected,) = torch.autograd.grad(clean.per_token.sum(), case.logits)
    masked = case.mask == 0

    def spoil(policy: TokenPolicy) -> TokenPolicy:
        dist = policy.distribution
        return TokenPolicy(
            policy.log_probs.masked_fill(masked, math.nan),
            SparseLogProbs(
                dist.token_ids.masked_fill(masked.unsqueeze(-1), -1),
                dist.log_probs.masked_fill(masked.unsqueeze(-1), math.nan),
                dist.tail_log_prob.masked_fill(masked, math.nan),
            ),
            policy.entropy,
            policy.token_ids,
        )

    spoilt = call(rule, case, case.advantages.masked_fill(masked, math.nan), spoil(case.new), spoil(case.old))
    (found,) = torch.autograd.grad(spoilt.per_token.sum(), case.logits)
    assert torch.equal(spoilt.per_token, clean.per_token)
    assert (clean.per_token[masked] == 0).all()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert (found[masked] == 0).all()
    for key, value in clean.metrics.items():
        assert torch.equal(spoilt.metrics[key], value), key
        assert (value[masked] == 0).all(), key


@every_rule
def test_nan_at_masked_positions_reaches_no_gradient(name):
    """As a model gives it: NaN in the tensors that are differentiated."""
    case, rule = make_case(), region(name)
    masked = case.mask == 0
    new = case.new
    spoilt = [
        values.detach().masked_fill(masked if values.dim() == 2 else masked.unsqueeze(-1), math.nan)
        for values in (new.log_probs, new.distribution.log_probs, new.distribution.tail_log_prob)
    ]
    leaves = [values.requires_grad_() for values in spoilt]
    policy = TokenPolicy(
        leaves[0], SparseLogProbs(new.distribution.token_ids, *leaves[1:]), None, new.token_ids
    )
    losses = call(rule, case, new=policy)
    for found in torch.autograd.grad(losses.per_token.sum(), leaves, allow_unused=True):
        assert found is None or (found[masked] == 0).all()


@every_rule
def test_a_batch_of_empty_responses_gives_zero(name):
    case = make_case()
    case.mask.zero_()
    rule = region(name)
    for aggregation in AGGREGATIONS:
        losses = call(rule, case)
        loss = aggregate(losses.per_token, case.mask, aggregation)
        assert loss.item() == 0
        (found,) = torch.autograd.grad(loss, case.logits)
        assert (found == 0).all()
        assert all((value == 0).all() for value in losses.metrics.values())


@every_rule
@pytest.mark.parametrize("scale", [1.0, 60.0])
def test_finite_in_bfloat16_on_extreme_inputs(name, scale):
    """Logits in bfloat16 whose moves reach hundreds of nats, large advantages of both signs."""
    case = make_case(dtype=torch.bfloat16, shift=scale, keep=4, seed=1)
    case.advantages = case.advantages * 100
    rule = region(name)
    losses = call(rule, case)
    assert losses.per_token.isfinite().all()
    assert all(value.isfinite().all() for value in losses.metrics.values())
    (found,) = torch.autograd.grad(aggregate(losses.per_token, case.mask, "token-mean"), case.logits)
    assert found.isfinite().all()


@every_rule
def test_inputs_in_bfloat16_are_accepted(name):
    """log-probs themselves in bfloat16, as an autocast head may give them."""
    case, rule = make_case(shift=2.0), region(name)

    def low(policy: TokenPolicy) -> TokenPolicy:
        dist = policy.distribution
        return TokenPolicy(
            policy.log_probs.bfloat16(),
            SparseLogProbs(dist.token_ids, dist.log_probs.bfloat16(), dist.tail_log_prob.bfloat16()),
            None,
            policy.token_ids,
        )

    losses = call(rule, case, case.advantages.bfloat16(), low(case.new), low(case.old))
    (found,) = torch.autograd.grad(losses.per_token.sum(), case.logits)
    assert found.isfinite().all() and losses.per_token.isfinite().all()


@every_rule
def test_common_metrics_are_the_same_measure_for_every_rule(name):
    case = make_case()
    metrics = call(region(name), case).metrics
    on = case.mask.bool()
    new, old = case.new, case.old
    expected = kl_divergence(new.distribution.atoms(), old.distribution.atoms()).detach() * on
    torch.testing.assert_close(metrics["kl_to_old"], expected)
    torch.testing.assert_close(metrics["ratio"], ((new.log_probs - old.log_probs).exp() * on).detach())
    torch.testing.assert_close(
        metrics["kept_mass"], old.distribution.log_probs.exp().sum(-1) * on, rtol=1e-6, atol=1e-9
    )
    assert (metrics["kl_to_old_sampled"] >= 0).all()
    assert set(metrics["clip_fraction"].unique().tolist()) <= {0.0, 1.0}
    for key, value in metrics.items():
        assert value.shape == case.mask.shape and not value.requires_grad, key


@every_rule
def test_a_tail_that_one_policy_rounded_to_nothing_stays_finite(name):
    case, rule = make_case(), region(name)

    def cut(policy: TokenPolicy) -> TokenPolicy:
        dist = policy.distribution
        tail = torch.full_like(dist.tail_log_prob, -math.inf)
        return replace(policy, distribution=replace(dist, tail_log_prob=tail))

    for new, old in ((cut(case.new), case.old), (case.new, cut(case.old)), (cut(case.new), cut(case.old))):
        losses = call(rule, case, new=new, old=old)
        (found,) = torch.autograd.grad(losses.per_token.sum(), case.logits)
        assert found.isfinite().all() and losses.per_token.isfinite().all()
        assert all(value.isfinite().all() for value in losses.metrics.values())


@every_rule
def test_nothing_flows_to_the_old_policy_or_the_advantages(name):
    case, rule = make_case(), region(name)
    case.old_logits.requires_grad_()
    advantages = case.advantages.clone().requires_grad_()
    losses = call(rule, case, advantages, old=case.policy(case.old_logits))
    leaks = torch.autograd.grad(losses.per_token.sum(), (case.old_logits, advantages), allow_unused=True)
    assert leaks == (None, None)


@pytest.mark.parametrize("name", [n for n in RULES if n not in WITH_DISTRIBUTION], ids=shown)
def test_rules_that_need_no_distribution_run_without(name):
    case = make_case()
    bare = {"new": TokenPolicy(case.new.log_probs), "old": TokenPolicy(case.old.log_probs)}
    losses = call(region(name), case, **bare)
    assert losses.per_token.isfinite().all() and "kl_to_old" not in losses.metrics


@pytest.mark.parametrize("name", WITH_DISTRIBUTION, ids=shown)
def test_rules_that_need_distributions_say_so(name):
    case = make_case()
    with refused(name, "distributions"):
        call(region(name), case, new=TokenPolicy(case.new.log_probs))


@pytest.mark.parametrize("name", [n for n in RULES if n.startswith("troll")], ids=shown)
def test_a_sampled_token_that_was_not_kept_is_reported(name):
    case = make_case(keep=3)
    case.token_ids = (case.token_ids + 1) % 12
    with refused("always_keep"):
        call(region(name), case)
    new, old = (TokenPolicy(p.log_probs, p.distribution) for p in (case.new, case.old))
    with refused("token_ids"):
        call(region(name), case, new=new, old=old)


@every_rule
def test_the_registry_entry_is_complete(name):
    info = TRUST_REGIONS[name]
    assert info.summary.endswith((".", ":"))
    assert info.aggregation is None or info.aggregation in AGGREGATIONS
    assert info.reconstruction == ("recon" in name)
    if info.reconstruction:
        assert "RECONSTRUCT" in info.summary
    rule = make_trust_region(name, **{key: s.default for key, s in info.settings.items()})
    assert rule.settings == make_trust_region(name).settings
    rule.load_state_dict(rule.state_dict())


def test_the_rule_of_the_readme_is_among_them():
    assert "my-rule" in RULES


@pytest.mark.parametrize(
    ("losses", "facts"),
    [
        (lambda new: new.log_probs, ("TokenLosses", "Tensor")),
        (lambda new: TokenLosses(new.log_probs.sum(1)), ("losses", "(4, 6)", "(4,)")),
        (lambda new: TokenLosses(new.log_probs, {"mine": new.log_probs[0]}), ("mine", "(4, 6)", "(6,)")),
        (lambda new: TokenLosses(new.log_probs, {"mine": 0.5}), ("mine", "(4, 6)", "float")),
        (lambda new: TokenLosses(new.log_probs, {1: new.log_probs}), ("metric 1", "text")),
    ],
)
def test_a_rule_that_returns_something_else_is_told_so(losses, facts):
    case = make_case()
    info = replace(TRUST_REGIONS["pg"], name="odd", function=lambda new, old, advantages, mask: losses(new))
    with refused("trust region 'odd'", *facts):
        TrustRegion(info, {})(case.new, case.old, case.advantages, case.mask)


def test_unknown_names_and_settings_get_the_nearest():
    with refused("'trol'", "clip", "'troll'"):
        make_trust_region("trol")
    with refused("troll", "'kl_bond'", "'kl_bound'"):
        make_trust_region("troll", kl_bond=0.1)
    with refused("troll-adaptive", "follow", "'kll'", "'projected'", "'kl'", "'schedule'"):
        make_trust_region("troll-adaptive", follow="kll")
    with refused("quatro-recon-gradient", "group_rewards"):
        case = make_case()
        make_trust_region("quatro-recon-gradient")(case.new, case.old, case.advantages, case.mask)
