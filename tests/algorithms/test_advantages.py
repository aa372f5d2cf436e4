"""Advantage estimators against hand-computed cases and the definitions in plain Python."""

import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from troll.algorithms.advantages import ESTIMATORS, make_estimator
from troll.algorithms.advantages.types import whiten

GROUPED = [name for name, info in ESTIMATORS.items() if info.uses_groups]


def run(name: str, rewards: list[float], groups: list[int], lengths: list[int], **extra):
    settings = {key: extra.pop(key) for key in list(extra) if key in ESTIMATORS[name].settings}
    longest = max([*lengths, 1])
    mask = (torch.arange(longest) < torch.tensor(lengths).unsqueeze(1)).float()
    info = ESTIMATORS[name]
    if info.needs_values:
        extra.setdefault("values", torch.zeros(len(rewards), longest))
    if info.needs_greedy:
        extra.setdefault("greedy_rewards", torch.zeros(len(rewards)))
    estimator = make_estimator(name, **settings)
    return estimator(torch.tensor(rewards), torch.tensor(groups), mask, **extra), mask


def per_response(
    name: str, rewards: list[float], groups: list[int], lengths: list[int] | None = None, **extra
):
    result, _ = run(name, rewards, groups, lengths or [2] * len(rewards), **extra)
    return result.advantages[:, 0].tolist()


REWARDS, GROUPS = [1.0, 0.0, 0.5, 2.0, 2.5], [4, 9, 4, 9, 4]


def members(group: int) -> list[float]:
    return [r for r, g in zip(REWARDS, GROUPS, strict=True) if g == group]


def test_grpo_is_the_z_score_with_the_unbiased_deviation():
    expected = [
        (r - statistics.mean(members(g))) / (statistics.stdev(members(g)) + 1e-6)
        for r, g in zip(REWARDS, GROUPS, strict=True)
    ]
    assert per_response("grpo", REWARDS, GROUPS) == pytest.approx(expected, rel=1e-6)
    softer = per_response("grpo", REWARDS, GROUPS, epsilon=1.0)
    assert softer[0] == pytest.approx((1 - 4 / 3) / (statistics.stdev(members(4)) + 1.0))


def test_dr_grpo_only_subtracts_the_mean():
    expected = [r - statistics.mean(members(g)) for r, g in zip(REWARDS, GROUPS, strict=True)]
    assert per_response("dr-grpo", REWARDS, GROUPS) == pytest.approx(expected, abs=1e-7)
    assert make_estimator("dr-grpo").info.aggregation == "seq-mean-token-sum-norm"


def test_rloo_leaves_the_response_out_of_its_baseline():
    expected = []
    for index, (reward, group) in enumerate(zip(REWARDS, GROUPS, strict=True)):
        others = [REWARDS[j] for j in range(5) if GROUPS[j] == group and j != index]
        expected.append(reward - statistics.mean(others))
    assert per_response("rloo", REWARDS, GROUPS) == pytest.approx(expected, abs=1e-6)


def test_opo_weighs_the_baseline_by_length():
    lengths = [1, 2, 3, 4, 5]
    baseline = {4: (1 * 1 + 0.5 * 3 + 2.5 * 5) / 9, 9: (0 * 2 + 2.0 * 4) / 6}
    expected = [r - baseline[g] for r, g in zip(REWARDS, GROUPS, strict=True)]
    assert per_response("opo", REWARDS, GROUPS, lengths) == pytest.approx(expected, abs=1e-6)


def test_remax_subtracts_the_greedy_reward_and_has_returns_to_go():
    extra = torch.tensor([[0.1, 0.2, 0.3]])
    result, _ = run("remax", [1.0], [0], [3], greedy_rewards=torch.tensor([0.4]), token_rewards=extra)
    assert result.advantages[0].tolist() == pytest.approx([1.6 - 0.4, 1.5 - 0.4, 1.3 - 0.4], abs=1e-6)


def whitened(values: list[list[float]], lengths: list[int]) -> np.ndarray:
    """Whitening in plain Python over the real tokens only; unbiased variance."""
    tokens = [v for row, n in zip(values, lengths, strict=True) for v in row[:n]]
    mean, variance = statistics.mean(tokens), statistics.variance(tokens)
    return np.array(
        [
            [(v - mean) / math.sqrt(variance + 1e-8) if t < n else 0.0 for t, v in enumerate(row)]
            for row, n in zip(values, lengths, strict=True)
        ]
    )


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_reinforce_plus_plus_whitens_discounted_returns(gamma):
    rewards, lengths = [1.0, 0.0, 2.0], [3, 1, 2]
    token_rewards = torch.tensor([[0.1, -0.2, 0.3], [0.5, 7.0, 7.0], [0.0, 0.4, 7.0]])
    result, _ = run("reinforce++", rewards, [0, 0, 1], lengths, token_rewards=token_rewards, gamma=gamma)
    returns = []
    for row, length in enumerate(lengths):
        earned = token_rewards[row, :length].tolist()
        earned[-1] += rewards[row]
        to_go = [sum(gamma ** (k - t) * earned[k] for k in range(t, length)) for t in range(length)]
        returns.append(to_go + [0.0] * (3 - length))
    np.testing.assert_allclose(result.advantages.numpy(), whitened(returns, lengths), atol=1e-5)


def test_reinforce_plus_plus_is_verls_but_for_masked_tokens_inside():
    """verl's loop (core_algos.py) in numpy: equal on plain responses; it forgets what precedes a tool."""

    def verls(rewards: torch.Tensor, mask: torch.Tensor) -> np.ndarray:
        returns, running = np.zeros(mask.shape), np.zeros(len(mask))
        for t in reversed(range(mask.shape[1])):
            running = rewards[:, t].numpy() + 0.9 * running
            returns[:, t] = running
            running = running * mask[:, t].numpy()
        on = mask.numpy().astype(bool)
        mean, variance = returns[on].mean(), returns[on].var(ddof=1)
        return np.where(on, (returns - mean) / np.sqrt(variance + 1e-8), 0.0)

    outcome = torch.tensor([1.0, -0.5, 2.0])
    plain = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])
    earned = torch.zeros(3, 4, dtype=torch.float64)
    earned[torch.arange(3), plain.sum(1) - 1] = outcome.double()
    estimator = make_estimator("reinforce++", gamma=0.9)
    ours = estimator(outcome, torch.zeros(3), plain).advantages
    np.testing.assert_allclose(ours.numpy(), verls(earned, plain), atol=1e-6)
    with_tool = plain.clone()
    with_tool[0, 2] = 0
    ours = estimator(outcome, torch.zeros(3), with_tool).advantages
    # Before the tool call: the discounted outcome, two steps away for us; nothing at all in verl.
    assert ours[0, 0] != pytest.approx(verls(earned, with_tool)[0, 0], abs=0.1)
    tokens = [[0.81, 0.9, 1.0], [-0.45, -0.5], [2.0]]
    values = [value for row in tokens for value in row]
    mean, deviation = statistics.mean(values), statistics.stdev(values)
    assert ours[0, 0].item() == pytest.approx((0.81 - mean) / deviation, abs=1e-5)


def test_reinforce_plus_plus_baseline_whitens_group_differences_over_tokens():
    lengths = [1, 2, 3, 4, 5]
    differences = [r - statistics.mean(members(g)) for r, g in zip(REWARDS, GROUPS, strict=True)]
    result, _ = run("reinforce++-baseline", REWARDS, GROUPS, lengths)
    expected = whitened([[d] * 5 for d in differences], lengths)
    np.testing.assert_allclose(result.advantages.numpy(), expected, atol=1e-5)


@given(
    st.floats(0, 1),
    st.floats(0, 1),
    st.lists(st.integers(0, 6), min_size=1, max_size=4),
    st.integers(0, 10**6),
)
def test_gae_is_its_definition(gamma, lam, lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max([*lengths, 1]))
    rewards = torch.randn(len(lengths), generator=generator)
    values = torch.randn(shape, generator=generator)
    token_rewards = torch.randn(shape, generator=generator)
    result, mask = run(
        "gae", rewards.tolist(), [0] * len(lengths), lengths,
        values=values, token_rewards=token_rewards, gamma=gamma, lam=lam, whitened=False,
    )  # fmt: skip
    for i, length in enumerate(lengths):
        v = [*values[i, :length].tolist(), 0.0]
        r = token_rewards[i, :length].tolist()
        if length:
            r[-1] += float(rewards[i])
        delta = [r[t] + gamma * v[t + 1] - v[t] for t in range(length)]
        expected = [sum((gamma * lam) ** (k - t) * delta[k] for k in range(t, length)) for t in range(length)]
        assert result.advantages[i, :length].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-4)
        returns = [a + b for a, b in zip(expected, v, strict=False)]
        assert result.returns[i, :length].tolist() == pytest.approx(returns, rel=1e-4, abs=1e-4)
    assert (result.advantages[mask == 0] == 0).all() and (result.returns[mask == 0] == 0).all()


def test_gae_steps_over_masked_tokens_inside_a_response():
    """Tool output between two turns is no step: the same result as with the tool's tokens cut out."""
    mask = torch.tensor([[1, 1, 0, 0, 1, 1]])
    values = torch.tensor([[0.1, 0.2, 9.0, 9.0, 0.3, 0.4]])
    settings = {"gamma": 0.9, "lam": 0.8, "whitened": False}
    whole = make_estimator("gae", **settings)(torch.ones(1), torch.zeros(1), mask, values)
    cut = make_estimator("gae", **settings)(
        torch.ones(1), torch.zeros(1), torch.ones(1, 4), values[:, [0, 1, 4, 5]]
    )
    assert torch.equal(whole.advantages[:, [0, 1, 4, 5]], cut.advantages)


def test_gae_returns_are_taken_before_whitening():
    values = torch.full((2, 3), 0.25)
    result, mask = run("gae", [1.0, 0.0], [0, 1], [3, 2], values=values)
    # gamma = lambda = 1: the return is the reward, whatever the whitening did.
    torch.testing.assert_close(result.returns, torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]))
    tokens = result.advantages[mask.bool()]
    assert tokens.mean().item() == pytest.approx(0.0, abs=1e-6) and tokens.std().item() == pytest.approx(1.0)


def test_ppo_max_normalises_by_running_moments_and_clips():
    estimator = make_estimator("ppo-max", reward_clip=1.5, lam=1.0)
    seen: list[float] = []
    for batch in ([0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 9.0]):
        seen += batch
        result = estimator(torch.tensor(batch), torch.arange(4), torch.ones(4, 1), torch.zeros(4, 1))
        mean, std = statistics.mean(seen), statistics.pstdev(seen)
        expected = [min(max((r - mean) / std, -1.5), 1.5) for r in batch]
        assert result.advantages[:, 0].tolist() == pytest.approx(expected, rel=1e-6)
    assert result.advantages[3, 0].item() == 1.5
    resumed = make_estimator("ppo-max", reward_clip=1.5, lam=1.0)
    resumed.load_state_dict(estimator.state_dict())
    again = [
        one(torch.tensor([3.0]), torch.zeros(1), torch.ones(1, 1), torch.zeros(1, 1))
        for one in (estimator, resumed)
    ]
    assert torch.equal(again[0].advantages, again[1].advantages)


def test_the_released_code_of_ppo_max_only_divides():
    estimator = make_estimator("ppo-max-code", lam=1.0)
    rewards = [0.0, 4.0, 4.0, 0.0]
    result = estimator(torch.tensor(rewards), torch.arange(4), torch.ones(4, 1), torch.zeros(4, 1))
    assert result.advantages[:, 0].tolist() == pytest.approx([r / 2.0 for r in rewards])


@pytest.mark.parametrize("name", ESTIMATORS)
def test_padding_and_empty_responses_get_nothing(name):
    rewards, groups, lengths = [1.0, 0.0, 1.0, 0.5], [0, 0, 1, 1], [3, 0, 2, 1]
    garbage = torch.full((4, 3), math.nan)
    mask = torch.arange(3) < torch.tensor(lengths).unsqueeze(1)
    values = torch.where(mask, 0.1, garbage)
    extra = {"values": values} if ESTIMATORS[name].needs_values else {}
    result, mask = run(
        name, rewards, groups, lengths, token_rewards=torch.where(mask.bool(), 0.0, garbage), **extra
    )
    assert result.advantages.isfinite().all() and (result.advantages[mask == 0] == 0).all()
    assert result.advantages.dtype == torch.float32
    empty, _ = run(name, [1.0, 0.0], [0, 0], [0, 0])
    assert (empty.advantages == 0).all()


@pytest.mark.parametrize("name", GROUPED)
def test_groups_of_equal_rewards_get_exactly_nothing(name):
    # 0.1 eight times has a rounded mean; a z-score of the rounding error must not appear.
    result = per_response(name, [0.1] * 8, [0] * 8)
    assert result == pytest.approx([0.0] * 8, abs=1e-7)
    if name in ("grpo", "dr-grpo", "rloo"):
        assert result == [0.0] * 8


@pytest.mark.parametrize("name", ["grpo", "dr-grpo", "rloo", "opo"])
def test_a_group_of_one_has_no_baseline(name):
    assert per_response(name, [0.7, 1.0, 0.0], [5, 6, 6])[0] == pytest.approx(0.7)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_order_of_responses_does_not_matter(name):
    order, lengths = [3, 0, 4, 2, 1], [1, 2, 3, 4, 5]
    straight, _ = run(name, REWARDS, GROUPS, lengths)
    shuffled, _ = run(name, *([row[i] for i in order] for row in (REWARDS, GROUPS, lengths)))
    torch.testing.assert_close(shuffled.advantages, straight.advantages[order])


def test_bad_input_is_refused_in_one_line():
    good = (torch.tensor([1.0, 0.0]), torch.tensor([0, 0]), torch.ones(2, 3))
    with refused("'gpro'", "'grpo'"):
        make_estimator("gpro")
    with refused("grpo", "'eps'", "'epsilon'"):
        make_estimator("grpo", eps=1)
    with refused("gae", "lam", "1.5", "[0, 1]"):
        make_estimator("gae", lam=1.5)
    with refused("gae", "values"):
        make_estimator("gae")(*good)
    with refused("remax", "greedy_rewards"):
        make_estimator("remax")(*good)
    with refused("gae", "values", "(2, 2)", "(2, 3)"):
        make_estimator("gae")(*good, values=torch.zeros(2, 2))
    with refused("grpo", "rewards", "nan"):
        make_estimator("grpo")(torch.tensor([1.0, math.nan]), *good[1:])


@pytest.mark.parametrize("reward", [1000.3, 0.1, -7.7])
@pytest.mark.parametrize("name", ["reinforce++", "reinforce++-baseline", "gae"])
def test_equal_rewards_teach_nothing_even_if_they_are_no_binary_fractions(name, reward):
    result, mask = run(name, [reward] * 6, [0, 0, 0, 1, 1, 1], [3, 1, 2, 5, 4, 3])
    assert (result.advantages == 0).all()
    other, _ = run(name, [reward, reward + 1.0] * 3, [0, 0, 0, 1, 1, 1], [3, 1, 2, 5, 4, 3])
    kept = other.advantages[mask.bool()]
    assert float(kept.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(kept.std()) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whitening_equal_values_gives_zero_whatever_their_sum_is_rounded_to(dtype):
    mask = torch.rand(64, 97, generator=torch.Generator().manual_seed(0)) < 0.7
    for value in (1000.3, 0.1, -3.3e5):
        assert (whiten(torch.full(mask.shape, value, dtype=dtype), mask) == 0).all()
    assert (whiten(torch.ones(2, 3), torch.zeros(2, 3, dtype=torch.bool)) == 0).all()
