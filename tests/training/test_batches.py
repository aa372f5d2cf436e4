"""Rows of rollout batches by hand: groups with a signal, padding, DAPO's penalty."""

from itertools import pairwise

import pytest
import torch
from accelerate import Accelerator
from hypothesis import given
from hypothesis import strategies as st

from troll.algorithms.aggregation import RELEASED, aggregate
from troll.training.batches import (
    RESPONSE_WEIGHTS,
    balanced,
    cut_by_tokens,
    join_rows,
    mixed_groups,
    overlong_penalty,
    split_to,
    take_rows,
    trim,
    with_response_weights,
)


def test_groups_without_signal_are_found():
    rewards = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.5, 0.25])
    assert mixed_groups(rewards, 2).tolist() == [False, False, True, True]
    assert mixed_groups(rewards, 4).tolist() == [True, True]
    assert mixed_groups(rewards, 1).tolist() == [False] * 8


def test_overlong_penalty_by_hand():
    # DAPO's own numbers: nothing up to 16384 tokens, then down to -1 at 20480.
    lengths = torch.tensor([1.0, 16384.0, 17408.0, 18432.0, 20480.0, 30000.0])
    found = overlong_penalty(lengths, 20480, 4096)
    assert found.tolist() == pytest.approx([0.0, 0.0, -0.25, -0.5, -1.0, -1.0])
    assert overlong_penalty(torch.tensor([7.0]), 8, 2, factor=0.5).tolist() == [-0.25]


@given(st.integers(1, 100), st.data())
def test_overlong_penalty_falls_from_nothing_to_the_factor(limit, data):
    buffer = data.draw(st.integers(1, limit))
    penalty = overlong_penalty(torch.arange(limit + 1.0), limit, buffer, factor=2.0)
    assert (penalty.diff() <= 0).all()
    assert penalty[0] <= 0 and (penalty[: limit - buffer + 1] == 0).all() and penalty[-1] == -2.0


def test_rows_are_taken_and_joined_with_the_right_padding():
    first = {
        "prompt_ids": torch.tensor([[5, 6], [7, 8]]),
        "prompt_mask": torch.ones(2, 2, dtype=torch.long),
        "completion_ids": torch.tensor([[1], [2]]),
        "old_token_ids": torch.tensor([[[1, 3]], [[2, 3]]]),
        "old_support_log_probs": torch.full((2, 1, 2), -0.5),
        "old_tail_log_prob": torch.full((2, 1), -3.0),
        "rewards": torch.tensor([0.0, 1.0]),
        "num_items_in_batch": torch.tensor(2),
    }
    second = {
        "prompt_ids": torch.tensor([[9, 9, 9]]),
        "prompt_mask": torch.ones(1, 3, dtype=torch.long),
        "completion_ids": torch.tensor([[4, 4]]),
        "old_token_ids": torch.tensor([[[4, 0], [4, 0]]]),
        "old_support_log_probs": torch.full((1, 2, 2), -0.5),
        "old_tail_log_prob": torch.full((1, 2), -3.0),
        "rewards": torch.tensor([0.5]),
        "num_items_in_batch": torch.tensor(2),
    }
    joined = join_rows([take_rows(first, torch.tensor([False, True])), second], pad_token_id=99)
    assert joined["prompt_ids"].tolist() == [[99, 7, 8], [9, 9, 9]]
    assert joined["prompt_mask"].tolist() == [[0, 1, 1], [1, 1, 1]]
    assert joined["completion_ids"].tolist() == [[2, 99], [4, 4]]
    assert joined["old_token_ids"][0].tolist() == [[2, 3], [-1, -1]]
    assert joined["rewards"].tolist() == [1.0, 0.5]
    assert joined["num_items_in_batch"] == 4
    # Every row is a distribution, padding included: kept mass and tail add up to what they did.
    mass = joined["old_support_log_probs"].exp().sum(-1) + joined["old_tail_log_prob"].exp()
    assert mass[0, 1] == 1.0 and mass[0, 0] == mass[1, 1]


def test_parts_by_tokens_by_hand():
    lengths = torch.tensor([3, 10, 4, 4, 25, 1])
    assert [rows.tolist() for rows in cut_by_tokens(lengths, 12)] == [[4], [1], [2, 3, 0], [5]]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 120), st.data())
def test_parts_hold_every_response_once_within_the_budget(lengths, budget, data):
    lengths = torch.tensor(lengths)
    groups = cut_by_tokens(lengths, budget)
    for parts in (groups, split_to(groups, data.draw(st.integers(len(groups), len(lengths))))):
        assert sorted(row for rows in parts for row in rows.tolist()) == list(range(len(lengths)))
        assert all(len(rows) == 1 or len(rows) * int(lengths[rows].max()) <= budget for rows in parts)
    assert len(parts) >= len(groups)
    # Of two neighbours, the second one's longest response would not have fitted into the first.
    for first, second in pairwise(groups):
        assert (len(first) + 1) * int(lengths[first[0]]) > budget
        assert lengths[first].min() >= lengths[second].max()


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.data())
def test_groups_are_balanced(costs, data):
    count = data.draw(st.integers(1, len(costs)))
    groups = [rows.tolist() for rows in balanced(costs, count)]
    assert len(groups) == count and sorted(row for rows in groups for row in rows) == list(range(len(costs)))
    sums = [sum(costs[row] for row in rows) for rows in groups]
    assert max(sums) - min(sums) <= max(costs)


def test_groups_by_the_differencing_method_by_hand():
    # The classic example: 8, 7, 6, 5, 4 leave a difference of 2, where the best cut has none.
    groups = balanced([8, 7, 6, 5, 4], 2)
    assert sorted(sum([8, 7, 6, 5, 4][row] for row in rows) for rows in groups) == [14, 16]


def micro_batch(prompts, responses):
    """Masks of prompts and responses of these lengths."""
    prompt, response = torch.tensor(prompts), torch.tensor(responses)
    return {
        "prompt_mask": (torch.arange(int(prompt.max())) < prompt.unsqueeze(1)).long(),
        "completion_mask": (torch.arange(int(response.max())) < response.unsqueeze(1)).long(),
    }


def test_the_released_aggregation_is_a_token_mean_of_each_micro_batch():
    """By its formula: sum over micro-batches of (responses in it / all responses) x (its token mean)."""
    generator = torch.Generator().manual_seed(0)
    prompts, responses = [3, 3, 5, 5, 2, 2, 4, 4], [9, 2, 7, 12, 1, 6, 3, 10]
    whole = micro_batch(prompts, responses)
    losses = torch.randn(8, 12, generator=generator, dtype=torch.float64)
    (found,) = with_response_weights([whole], 30, Accelerator(cpu=True))
    lengths = torch.tensor(prompts) + torch.tensor(responses)
    groups = balanced((24576 * lengths + lengths**2).tolist(), 3)  # 78 tokens in three times 30
    mask, weights = whole["completion_mask"].bool(), found[RESPONSE_WEIGHTS]
    assert weights.dtype == torch.float64
    expected = sum(len(rows) / 8 * losses[rows][mask[rows]].mean() for rows in groups)
    assert aggregate(losses, mask, RELEASED, weights=weights).item() == pytest.approx(
        float(expected), rel=1e-12
    )
    assert abs(float(expected) - float(losses[mask].mean())) > 1e-3, "as token-mean, which proves nothing"
    # Cut anywhere for the passes, it is the same.
    parts = [
        take_rows(found, rows) | {"rows": rows}
        for rows in (torch.tensor([5, 0, 2]), torch.tensor([1, 3, 4, 6, 7]))
    ]
    shares = [
        aggregate(losses[part["rows"]], part["completion_mask"], RELEASED, weights=part[RESPONSE_WEIGHTS])
        for part in parts
    ]
    assert sum(shares).item() == pytest.approx(float(expected), rel=1e-12)
    # And in whichever micro-batches they come, the groups are those of the whole mini-batch.
    two = [micro_batch(prompts[:3], responses[:3]), micro_batch(prompts[3:], responses[3:])]
    again = with_response_weights(two, 30, Accelerator(cpu=True))
    assert torch.equal(torch.cat([part[RESPONSE_WEIGHTS] for part in again]), weights)


def test_without_a_budget_released_micro_batches_are_those_given():
    two = [micro_batch([1, 1], [4, 2]), micro_batch([1], [3])]
    found = [
        part[RESPONSE_WEIGHTS].tolist() for part in with_response_weights(two, None, Accelerator(cpu=True))
    ]
    assert found == [pytest.approx([2 / 3 / 6] * 2), pytest.approx([1 / 3 / 3])]


def test_trimming_takes_padding_and_nothing_else():
    batch = {
        "prompt_ids": torch.tensor([[0, 0, 5], [0, 6, 7]]),
        "prompt_mask": torch.tensor([[0, 0, 1], [0, 1, 1]]),
        "completion_ids": torch.tensor([[1, 2, 0, 0], [3, 0, 0, 0]]),
        "completion_mask": torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]]),
        "old_token_ids": torch.arange(2 * 4 * 3).reshape(2, 4, 3),
        "group_rewards": torch.ones(2, 4),  # as wide as the responses, by chance
        "rewards": torch.ones(2),
        "step_tokens": torch.tensor(9.0),
    }
    found = trim(batch)
    assert found["prompt_ids"].tolist() == [[0, 5], [6, 7]] and found["prompt_mask"].shape == (2, 2)
    assert found["completion_ids"].tolist() == [[1, 2], [3, 0]]
    assert torch.equal(found["old_token_ids"], batch["old_token_ids"][:, :2])
    assert found["group_rewards"].shape == (2, 4) and found["rewards"].shape == (2,)
    empty = trim(batch | {"completion_mask": torch.zeros(2, 4, dtype=torch.long)})
    assert empty["completion_ids"].shape == (2, 1)
