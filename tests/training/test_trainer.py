"""`TrustRegionTrainer` against TRL's own trainer, and against itself."""

import copy

import pytest
import torch
from trainer_cases import PROMPTS, SeededGRPOTrainer, parameters

from troll.algorithms.trust_regions import ConstraintBreach, Thresholds
from troll.common.errors import UserError
from troll.experiment.settings import Critic
from troll.training.trainer import TrustRegionTrainer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss_type", "rule", "trl_settings"),
    [
        ("grpo", {"trust_region": "clip"}, {}),
        ("dr_grpo", {"trust_region": "clip"}, {"scale_rewards": "none"}),
        (
            "grpo",
            {"trust_region": "clip"},
            {"epsilon": 0.1, "epsilon_high": 0.28},
        ),
        ("grpo", {"trust_region": "gspo-clip"}, {"importance_sampling_level": "sequence"}),
    ],
)
def test_twenty_steps_end_in_the_parameters_of_trl(make, loss_type, rule, trl_settings):
    settings = {"loss_type": loss_type} | trl_settings
    theirs = make(SeededGRPOTrainer, steps=20, config=settings)
    before = parameters(theirs).clone()
    theirs.train()
    # Both vocabularies are scored, but only the support travels: the clipped loss does not depend on it.
    ours = make(TrustRegionTrainer, steps=20, config=settings, **rule)
    ours.train()
    assert (parameters(theirs) - before).abs().max() > 1e-3
    torch.testing.assert_close(parameters(ours), parameters(theirs), rtol=0, atol=2e-5)


@pytest.mark.slow
def test_estimators_equal_trls_advantages(make):
    theirs = make(TrustRegionTrainer, trust_region="clip", config={"scale_rewards": "group"})
    ours = make(
        TrustRegionTrainer,
        trust_region="clip",
        estimator="grpo",
        estimator_settings={"epsilon": 1e-4},
        config={"scale_rewards": "group"},
    )
    for trainer in (theirs, ours):
        trainer.train()
    torch.testing.assert_close(parameters(ours), parameters(theirs), rtol=0, atol=2e-5)


@pytest.mark.slow
def test_micro_batches_do_not_change_the_update(make):
    whole = make(TrustRegionTrainer, trust_region="troll", aggregation="token-mean")
    parts = make(
        TrustRegionTrainer,
        trust_region="troll",
        aggregation="token-mean",
        config={
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "steps_per_generation": 8,
        },
    )
    for trainer in (whole, parts):
        trainer.train()
    torch.testing.assert_close(parameters(parts), parameters(whole), rtol=0, atol=2e-5)


class CountedPasses(TrustRegionTrainer):
    """Keeps the number of tokens, padding included, of every pass that learns."""

    def _part_loss(self, model, inputs, share):
        tokens = inputs["prompt_ids"].shape[1] + inputs["completion_ids"].shape[1]
        self.passes = [*getattr(self, "passes", []), len(inputs["prompt_ids"]) * tokens]
        return super()._part_loss(model, inputs, share)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        {"trust_region": "troll", "aggregation": "token-mean"},
        {"trust_region": "troll", "tail": "constant", "aggregation": "seq-mean-token-mean"},
        {"trust_region": "troll-seq"},
        {"trust_region": "quatro-recon-gradient", "estimator": "grpo"},
        {"trust_region": "clip", "estimator": "gae", "critic": Critic(learning_rate=1e-3, warmup_steps=1)},
    ],
    ids=["pooled", "constant", "sequences", "groups", "critic"],
)
@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_token_budget_does_not_change_the_update(make, method, accumulated):
    config = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": accumulated,
        "steps_per_generation": 2 * accumulated,
        # Adam would turn a gradient that is only rounding into a full step.
        "optim": "sgd",
        "learning_rate": 0.1,
    }
    found = []
    for budget in (None, 45):
        trainer = make(CountedPasses, config=config, micro_batch_tokens=budget, **method)
        trainer.train()
        critic = trainer.critic and trainer.accelerator.unwrap_model(trainer.critic.model)
        weights = [p.detach().flatten() for p in critic.parameters()] if critic else []
        rows = [row for row in trainer.state.log_history if "loss" in row]
        found.append((parameters(trainer), weights, rows, trainer.passes))
    (whole, values, said, passes), (cut, cut_values, cut_said, cut_passes) = found
    torch.testing.assert_close(cut, whole, rtol=0, atol=2e-5)
    torch.testing.assert_close(cut_values, values, rtol=0, atol=2e-5)
    assert len(cut_passes) > len(passes) and max(cut_passes) <= 45 < max(passes)
    for row, cut_row in zip(said, cut_said, strict=True):
        for name in row.keys() & {"loss", "entropy", "kl_to_old", "grad_norm", "critic/loss"}:
            assert cut_row[name] == pytest.approx(row[name], rel=1e-3, abs=2e-5), name


@pytest.mark.slow
def test_the_sparse_support_approaches_the_dense_one(make):
    found = {}
    for keep in (4, 100, 400):
        trainer = make(TrustRegionTrainer, trust_region="troll", keep=keep, dropped_mass=0.0)
        trainer.train()
        found[keep] = parameters(trainer)
    near, far = ((found[keep] - found[400]).norm() for keep in (100, 4))
    assert near < far


def test_old_log_probs_and_distribution_are_those_of_the_policy(make, tiny_base):
    trainer = make(TrustRegionTrainer, keep=8, dropped_mass=0.0)
    model = copy.deepcopy(trainer.model)
    trainer.model.train()
    output = trainer._generate_and_score_completions(
        [{"prompt": prompt} for prompt in PROMPTS for _ in range(4)]
    )
    mask = output["completion_mask"].bool()
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
    attention = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=attention).logits[:, -mask.shape[1] - 1 : -1]
    log_probs = torch.log_softmax(logits.double(), dim=-1)
    sampled = log_probs.gather(-1, output["completion_ids"].unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(output["old_per_token_logps"][mask].double(), sampled[mask], rtol=0, atol=1e-5)
    kept = output["old_token_ids"][mask]
    expected = log_probs[mask].gather(-1, kept)
    torch.testing.assert_close(output["old_support_log_probs"][mask].double(), expected, rtol=0, atol=1e-5)
    assert (kept == output["completion_ids"][mask].unsqueeze(-1)).any(-1).all()
    total = output["old_support_log_probs"].exp().sum(-1) + output["old_tail_log_prob"].exp()
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_breach_of_the_certificate_stops_the_run(make):
    trainer = make(TrustRegionTrainer, trust_region="troll")
    trainer.constraint_check.thresholds = Thresholds(fraction_projected=-1.0)
    with pytest.raises(ConstraintBreach, match="fraction_projected"):
        trainer.train()


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_the_run(make):
    trainer = make(TrustRegionTrainer, trust_region="clip")
    with torch.no_grad():
        next(trainer.model.parameters())[:] = float("inf")
    with pytest.raises((UserError, RuntimeError)):
        trainer.train()


@pytest.mark.slow
def test_a_response_that_nothing_scores_is_refused_where_trl_alone_knows_it(make):
    def reward(completions, **_):
        return [None, *[float(len(text) % 2) for text in completions[1:]]]

    make(TrustRegionTrainer, steps=1, reward=reward, trust_region="clip").train()
    named = make(TrustRegionTrainer, steps=1, reward=reward, trust_region="clip", estimator="grpo")
    with pytest.raises(UserError, match="no reward function gave a number for some response"):
        named.train()


def test_unknown_names_are_refused(make):
    with pytest.raises(UserError, match="clip"):
        make(TrustRegionTrainer, trust_region="clipp")
    with pytest.raises(UserError, match="grpo"):
        make(TrustRegionTrainer, estimator="gpro")
