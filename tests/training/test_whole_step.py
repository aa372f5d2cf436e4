"""Rules that decide over an optimiser step, or leave a rollout batch, in the trainer."""

import pytest
import torch
from trainer_cases import logged, parameters, trained
from transformers import TrainerCallback

from troll.training.entropy_bonus import high_entropy

# Not kl-cov: where the ratio is 1 up to rounding, so is the sign of its pull.
RULES = {
    "m2po": {"threshold": 1e-4},
    "bapo": {"ratio_min": 0.95, "ratio_min_last": 0.99, "ratio_max": 1.01, "ratio_max_last": 1.3},
    "clip-cov": {"share": 0.1, "covariance_min": 0.0},
}
# One micro-batch, two, and one in parts of like length.
CUTS = {
    "whole": ({"per_device_train_batch_size": 8, "steps_per_generation": 2}, None),
    "halves": (
        {"per_device_train_batch_size": 4, "steps_per_generation": 4, "gradient_accumulation_steps": 2},
        None,
    ),
    "parts": ({"per_device_train_batch_size": 8, "steps_per_generation": 2}, 60),
}


@pytest.mark.parametrize(
    "rule", ["m2po", *(pytest.param(rule, marks=pytest.mark.slow) for rule in RULES if rule != "m2po")]
)
def test_a_rule_decides_the_same_however_a_step_is_cut(make, rule):
    found = {}
    for cut, (config, budget) in CUTS.items():
        config = {"optim": "sgd", "learning_rate": 0.5, **config}
        method = {"trust_region": rule, "trust_region_settings": RULES[rule]}
        trainer = trained(make, steps=4, config=config, micro_batch_tokens=budget, **method)
        found[cut] = parameters(trainer), logged(trainer, "clip_fraction")
    for cut in ("halves", "parts"):
        torch.testing.assert_close(found[cut][0], found["whole"][0], rtol=0, atol=2e-5)
        assert found[cut][1] == pytest.approx(found["whole"][1], abs=1e-6)
    assert max(found["whole"][1]) > 0


class Steps(TrainerCallback):
    """Records the weights after each optimiser step."""

    def __init__(self):
        self.weights = []

    def on_step_end(self, args, state, control, model=None, **_):
        self.weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))


def stopped(make, rule, **settings):
    steps = Steps()
    method = {"trust_region": rule, "trust_region_settings": settings}
    trainer = trained(make, steps=8, config={"weight_decay": 0.1}, callbacks=[steps], **method)
    return trainer, steps.weights


def test_kl_stop_leaves_a_batch_and_changes_nothing_until_the_next(make):
    trainer, weights = stopped(make, "kl-stop", kl_bound=1e-9)
    assert logged(trainer, "update_skipped") == [0, 1, 1, 1] * 2
    # Momentum and weight decay are left alone as well.
    same = [torch.equal(weights[i], weights[i - 1]) for i in range(1, 8)]
    assert same == [True, True, True, False, True, True, True]


@pytest.mark.slow
def test_kl_stop_with_a_bound_that_is_never_passed_is_the_policy_gradient(make):
    trainer, weights = stopped(make, "kl-stop", kl_bound=1e9)
    plain, expected = stopped(make, "none")
    assert torch.equal(weights[-1], expected[-1]) and logged(trainer, "update_skipped") == [0] * 8
    assert not logged(plain, "update_skipped")


@pytest.mark.parametrize(
    "options",
    [
        {"top_entropy_quantile": 0.3},
        {"entropy_coef": 0.5},
        {"top_entropy_quantile": 0.3, "entropy_coef": 0.5},
    ],
    ids=["quantile", "bonus", "both"],
)
def test_options_on_entropies_take_the_whole_step_however_it_is_cut(make, options):
    found = {}
    for cut, (config, budget) in CUTS.items():
        config = {"optim": "sgd", "learning_rate": 0.5, **config, **options}
        trainer = trained(make, steps=2, config=config, micro_batch_tokens=budget, trust_region="clip")
        found[cut] = parameters(trainer), logged(trainer, "grad_norm")
    for cut in ("halves", "parts"):
        torch.testing.assert_close(found[cut][0], found["whole"][0], rtol=0, atol=2e-5)
        assert found[cut][1] == pytest.approx(found["whole"][1], rel=1e-4)


def test_the_tokens_of_highest_entropy_by_hand():
    entropies = torch.tensor([5.0, 1.0, 4.0, 2.0, 3.0])
    threshold, number = high_entropy(entropies, 0.4)
    assert threshold == pytest.approx(3.4) and number == 2  # between the third and the second largest
    threshold, number = high_entropy(entropies[:0], 0.4)
    assert threshold == torch.inf and number == 0
