"""What a run learns from beside outcome rewards: a critic, a reference, demonstrations."""

from types import SimpleNamespace

import pytest
import torch
from refusals import refused
from trainer_cases import PROMPTS, SeededGRPOTrainer, digits, parameters, trained

from troll.experiment.settings import Critic as CriticSettings
from troll.experiment.settings import Overlong, Pretraining, Regulariser
from troll.training.rewards import check_greedy
from troll.training.trainer import TrustRegionTrainer

GAE = {"trust_region": "clip", "estimator": "gae", "critic": CriticSettings(learning_rate=1e-3)}


def rollout(trainer):
    trainer.model.train()
    torch.manual_seed(0)
    return trainer._generate_and_score_completions([{"prompt": p} for p in PROMPTS for _ in range(4)])


def disturb(model, size=0.05):
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(size * torch.randn(p.shape, generator=generator))


def text_rewards(trainer, output):
    texts = [
        trainer.processing_class.decode(ids[mask.bool()], skip_special_tokens=True)
        for ids, mask in zip(output["completion_ids"], output["completion_mask"], strict=True)
    ]
    return trainer.reward_funcs[0](texts)


def test_gae_through_the_trainer_is_its_definition(make):
    trainer = make(
        TrustRegionTrainer,
        **GAE,
        estimator_settings={"gamma": 0.9, "lam": 0.8, "whitened": False},
        regulariser=Regulariser(estimate="k1", applied_to="reward", coefficient=0.5),
    )
    torch.nn.init.normal_(trainer.critic.model.head.weight, generator=torch.Generator().manual_seed(1))
    disturb(trainer.model)
    output = rollout(trainer)
    rewards = text_rewards(trainer, output)
    penalty = 0.5 * (output["old_per_token_logps"] - output["ref_per_token_logps"])
    assert penalty.abs().max() > 0.01 and output["values"].abs().max() > 0.01
    for i, length in enumerate(output["completion_mask"].sum(1).tolist()):
        v = [*output["values"][i, :length].tolist(), 0.0]
        r = (-penalty[i, :length]).tolist()
        r[-1] += rewards[i]
        delta = [r[t] + 0.9 * v[t + 1] - v[t] for t in range(length)]
        expected = [sum(0.72 ** (k - t) * delta[k] for k in range(t, length)) for t in range(length)]
        assert output["advantages"][i, :length].tolist() == pytest.approx(expected, abs=1e-4)
        returns = [a + b for a, b in zip(expected, v, strict=False)]
        assert output["returns"][i, :length].tolist() == pytest.approx(returns, abs=1e-4)
    assert (output["advantages"] * (1 - output["completion_mask"]) == 0).all()


@pytest.mark.slow
def test_values_are_computed_once_per_rollout_batch_and_travel_with_it(make):
    trainer = make(TrustRegionTrainer, **GAE, steps=8, config={"num_iterations": 2})
    calls, seen = [], []
    values, update = trainer.critic.values, trainer.critic.update
    trainer.critic.values = lambda *args: calls.append(values(*args)) or calls[-1]
    trainer.critic.update = lambda inputs, *rest, **named: (
        seen.append(inputs["values"]) or update(inputs, *rest, **named)
    )
    trainer.train()
    assert len(calls) == 1 and len(seen) == 8
    whole = sorted(map(tuple, calls[0].tolist()))
    for half in (seen[:4], seen[4:]):
        assert sorted(map(tuple, torch.cat(half).tolist())) == whole


@pytest.mark.slow
def test_the_policy_stands_still_while_the_critic_warms_up(make):
    critic = CriticSettings(learning_rate=1e-3, warmup_steps=4)
    found = {}
    for steps in (4, 5):
        # Weight decay would move a policy that takes optimiser steps without a gradient.
        trainer = make(
            TrustRegionTrainer, **GAE | {"critic": critic}, steps=steps, config={"weight_decay": 0.1}
        )
        before = parameters(trainer).clone()
        value_before = trainer.critic.model.head.weight.detach().clone()
        trainer.train()
        found[steps] = (parameters(trainer) - before).abs().max().item()
        assert not torch.equal(
            trainer.accelerator.unwrap_model(trainer.critic.model).head.weight, value_before
        )
        rows = [row for row in trainer.state.log_history if "critic/loss" in row]
        assert [row["step"] for row in rows] == list(range(1, steps + 1))
        assert "critic/explained_variance" in rows[0]
    assert found[4] == 0.0 and found[5] > 0.0


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
def test_a_kl_in_the_loss_ends_in_the_parameters_of_trl(make, weighted):
    config = {"beta": 0.3, "use_bias_correction_kl": weighted}
    theirs = trained(make, SeededGRPOTrainer, steps=8, config=config)
    regulariser = Regulariser(estimate="k3", applied_to="loss", coefficient=0.3, importance_weighted=weighted)
    for ours in ({"config": config}, {"regulariser": regulariser}):
        trainer = trained(make, steps=8, trust_region="clip", **ours)
        torch.testing.assert_close(parameters(trainer), parameters(theirs), rtol=0, atol=2e-5)
    without = trained(make, steps=8, trust_region="clip")
    assert (parameters(without) - parameters(theirs)).abs().max() > 1e-4


def test_an_adaptive_coefficient_moves_towards_its_target_and_is_saved(make):
    settings = Regulariser(estimate="k3", applied_to="reward", coefficient=0.1, target=1e-6, horizon=32)
    trainer = make(TrustRegionTrainer, trust_region="clip", estimator="reinforce++", regulariser=settings)
    disturb(trainer.model)
    rollout(trainer)
    # 16 responses with a KL far over the target: 1 + 0.2 * 16 / 32.
    assert trainer.reference_kl.controller.coefficient == pytest.approx(0.11)
    # The rollout batch was penalised with the coefficient it was measured under.
    assert trainer._metrics["train"]["kl_coefficient"] == [0.1]
    other = make(TrustRegionTrainer, trust_region="clip", estimator="reinforce++", regulariser=settings)
    other.load_method_state(trainer.method_state())
    assert other.reference_kl.controller.coefficient == trainer.reference_kl.controller.coefficient
    assert other.generated_samples == trainer.generated_samples == 16


def test_the_overlong_penalty_is_learnt_from_but_is_no_success(make):
    trainer = make(TrustRegionTrainer, trust_region="clip", estimator="rloo", overlong=Overlong(buffer=10))
    output = rollout(trainer)
    plain = torch.tensor(text_rewards(trainer, output))
    shaped = plain - output["completion_mask"].sum(1) / 10
    grouped = shaped.view(-1, 4)
    expected = (grouped - grouped.mean(1, keepdim=True)) * 4 / 3
    torch.testing.assert_close(output["advantages"][:, 0], expected.flatten())
    assert trainer._metrics["train"]["reward"][0] == pytest.approx(plain.mean().item())


def test_the_greedy_responses_of_remax_are_in_no_measure_of_the_samples(make):
    def reward(completions, log_metric, log_extra, **_):
        log_metric("rated", float(len(completions)))
        log_extra("text", list(completions))
        return digits(completions)

    found = {}
    for estimator in ("rloo", "remax"):
        trainer = make(TrustRegionTrainer, trust_region="clip", estimator=estimator, reward=reward)
        logged = []
        trainer._log_metric = lambda name, value, to=logged: to.append(value)
        rollout(trainer)
        found[estimator] = (
            {k: v for k, v in trainer._metrics["train"].items() if k != "generated_samples"},
            trainer.state.num_input_tokens_seen,
            {name: list(values) for name, values in trainer._logs["extra"].items()},
            dict(trainer._pending_metrics),
            dict(trainer._pending_extra_logs),
        )
        assert logged == ([16.0] if estimator == "rloo" else [16.0, 4.0])
    greedy = found["remax"][0].pop("greedy_success")
    assert found["remax"] == found["rloo"] and len(greedy) == 1


def test_metrics_of_rewards_are_those_of_the_samples_alone(make):
    def reward(completions, log_metric, **_):
        log_metric("rated", float(len(completions)))
        return digits(completions)

    trainer = make(TrustRegionTrainer, trust_region="clip", estimator="remax", reward=reward)
    for _ in range(2):
        rollout(trainer)
    assert trainer._metrics["train"]["rated"] == [16.0, 16.0]


def test_remax_refuses_rollouts_that_have_no_greedy_response(make):
    def ours(prompts, trainer):
        raise AssertionError("nothing may be sampled")

    with refused("'remax'", "rollout_func"):
        make(TrustRegionTrainer, trust_region="clip", estimator="remax", rollout_func=ours)
    make(TrustRegionTrainer, trust_region="clip", estimator="rloo", rollout_func=ours)
    with refused("'remax'", "environment_factory"):
        check_greedy(SimpleNamespace(rollout_func=None, environment_factories={None: object}))


def test_remax_decodes_each_prompt_greedily_once(make):
    trainer = make(TrustRegionTrainer, trust_region="clip", estimator="remax")
    calls = []
    turn = trainer._generate_single_turn
    trainer._generate_single_turn = lambda ids, *rest: calls.append(len(ids)) or turn(ids, *rest)
    output = rollout(trainer)
    assert calls == [16, 4] and trainer.generated_samples == 20
    for i, prompt in enumerate(PROMPTS):
        ids = trainer.processing_class(prompt, return_tensors="pt").input_ids
        best = trainer.model.generate(ids, do_sample=False, max_new_tokens=10)[0, ids.shape[1] :]
        greedy = trainer.reward_funcs[0]([trainer.processing_class.decode(best, skip_special_tokens=True)])[0]
        assert output["greedy_rewards"][4 * i : 4 * i + 4].tolist() == pytest.approx([greedy] * 4)
    rewards = torch.tensor(text_rewards(trainer, output))
    expected = rewards - output["greedy_rewards"]
    torch.testing.assert_close(output["advantages"][:, 0], expected)
    assert trainer.generation_config.do_sample


def test_the_pretraining_loss_is_the_likelihood_of_demonstrations(make):
    rows = [
        {"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]},
        {"input_ids": [9, 10], "labels": [-100, 10]},
    ]
    trainer = make(
        TrustRegionTrainer,
        trust_region="clip",
        pretraining=Pretraining(coefficient=2.0, demonstrations=6),
        pretraining_rows=rows,
    )
    ids, attention, learnt = trainer.pretraining._draw(torch.device("cpu"), step=3)
    assert {tuple(r[m.bool()].tolist()) for r, m in zip(ids, learnt, strict=True)} == {(7, 8), (10,)}
    loss = trainer.pretraining(trainer.model, torch.device("cpu"), step=3)
    found = []
    for row, on, labels in zip(ids, attention.bool(), learnt, strict=True):
        logits = trainer.model(input_ids=row[on].unsqueeze(0)).logits[0].double().log_softmax(-1)
        for t in range(1, int(on.sum())):
            if labels[on][t]:
                found.append(-logits[t - 1, row[on][t]].item())
    assert loss.item() == pytest.approx(sum(found) / len(found), rel=1e-5)
    with refused("pretraining", "demonstrations"):
        make(TrustRegionTrainer, trust_region="clip", pretraining=Pretraining())


@pytest.mark.slow
def test_the_pretraining_loss_raises_the_likelihood(make):
    rows = [{"input_ids": [5, 6, 7, 8], "labels": [-100, 6, 7, 8]}]
    losses = []
    for coefficient in (1e-9, 50.0):
        method = {"pretraining": Pretraining(coefficient=coefficient), "pretraining_rows": rows}
        trainer = trained(make, steps=8, trust_region="clip", **method)
        losses.append(trainer.pretraining(trainer.model, torch.device("cpu"), step=0).item())
    assert losses[1] < losses[0] - 0.5


def test_remax_needs_a_greedy_decode(make):
    with refused("'remax'", "use_transformers_continuous_batching"):
        make(
            TrustRegionTrainer,
            trust_region="clip",
            estimator="remax",
            config={"use_transformers_continuous_batching": True},
        )


@pytest.mark.slow
def test_rules_that_compare_a_group_see_the_rewards_of_all_its_responses(make):
    trainer = make(TrustRegionTrainer, trust_region="quatro-recon-gradient", estimator="dr-grpo", steps=2)
    assert trainer.trust_region.info.needs_group_rewards
    output = rollout(trainer)
    groups = output["rewards"].view(4, 4).repeat_interleave(4, dim=0)
    assert torch.equal(output["group_rewards"].sort(1).values, groups.sort(1).values)
    before = parameters(trainer).clone()
    trainer.train()
    assert not torch.equal(parameters(trainer), before)
