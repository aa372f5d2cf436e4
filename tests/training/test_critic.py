"""The critic by itself: its loss, its state, and whether it learns."""

import copy
import math

import pytest
import torch
from accelerate import Accelerator
from refusals import refused
from transformers import AutoModelForCausalLM

from troll.experiment.settings import Critic as CriticSettings
from troll.training.critic import Critic, explained_variance, value_loss
from troll.training.trainer import TrustRegionTrainer

GOOD, BAD, PROMPT = 40, 70, 5


@pytest.fixture
def policy(tiny_base):
    return AutoModelForCausalLM.from_pretrained(tiny_base, dtype=torch.float32)


@pytest.fixture
def make_critic(policy):
    def build(chunk=8, checkpointing=False, **settings):
        accelerator = Accelerator(cpu=True)
        accelerator.gradient_state._set_sync_gradients(True)
        return Critic(policy, CriticSettings(**settings), accelerator, chunk, checkpointing=checkpointing)

    return build


def coin_tosses(seed, rows=64, length=8):
    """Responses of good and bad tokens; the reward is the share of good ones. Its value function is known."""
    generator = torch.Generator().manual_seed(seed)
    good = torch.randint(0, 2, (rows, length), generator=generator)
    before = good.cumsum(1) - good
    left = length - torch.arange(length)
    value = (before + 0.5 * left) / length
    reward = good.sum(1, keepdim=True) / length
    inputs = {
        "prompt_ids": torch.full((rows, 2), PROMPT),
        "prompt_mask": torch.ones(rows, 2, dtype=torch.long),
        "completion_ids": torch.where(good.bool(), GOOD, BAD),
        "completion_mask": torch.ones(rows, length, dtype=torch.long),
        "returns": reward.expand(rows, length).float(),
        "values": torch.zeros(rows, length),
        "step_tokens": torch.tensor(float(rows * length)),
    }
    return inputs, value


def weights(critic):
    return torch.cat([p.detach().flatten() for p in critic.model.parameters()])


def test_value_loss_is_its_definition():
    generator = torch.Generator().manual_seed(0)
    values, old, returns = (torch.randn(3, 5, generator=generator) for _ in range(3))
    values.requires_grad_()
    losses, clipped = value_loss(values, old, returns, 0.5)
    losses.sum().backward()
    for i in range(3):
        for t in range(5):
            v, o, r = values[i, t].item(), old[i, t].item(), returns[i, t].item()
            bounded = min(max(v, o - 0.5), o + 0.5)
            expected = 0.5 * max((v - r) ** 2, (bounded - r) ** 2)
            assert losses[i, t].item() == pytest.approx(expected, rel=1e-5)
            pulled_back = (bounded - r) ** 2 > (v - r) ** 2
            assert clipped[i, t].item() == pulled_back
            assert values.grad[i, t].item() == pytest.approx(0.0 if pulled_back else v - r, abs=1e-6)
    assert clipped.any() and not clipped.all()
    plain, none = value_loss(values, old, returns, None)
    torch.testing.assert_close(plain, 0.5 * (values - returns).square())
    assert not none.any()


def test_explained_variance():
    returns = torch.tensor([[0.0, 1.0, 4.0], [1.0, 0.0, 9.0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 0]])
    assert explained_variance(returns + 3.0, returns, mask) == pytest.approx(1.0)
    assert explained_variance(torch.zeros(2, 3), returns, mask) == pytest.approx(0.0)
    assert explained_variance(-returns, returns, mask) == pytest.approx(-3.0)
    assert math.isnan(explained_variance(returns, torch.ones(2, 3), mask))
    assert math.isnan(explained_variance(returns, returns, torch.zeros(2, 3)))


def test_values_start_at_zero_and_see_the_past_only(make_critic):
    critic = make_critic()
    inputs, _ = coin_tosses(0, rows=4)
    mask = inputs["completion_mask"].clone()
    assert (critic.values(inputs, mask) == 0).all()
    torch.nn.init.normal_(critic.model.head.weight, generator=torch.Generator().manual_seed(1))
    before = critic.values(inputs, mask)
    changed = inputs | {"completion_ids": inputs["completion_ids"].clone()}
    changed["completion_ids"][:, 3] = 99
    after = critic.values(changed, mask)
    torch.testing.assert_close(after[:, :4], before[:, :4])
    assert ((after - before)[:, 4:].abs() > 1e-4).all()
    mask[1, 2:] = 0
    assert (critic.values(inputs, mask)[1, 2:] == 0).all()


def test_chunks_and_padding_do_not_change_values(make_critic):
    critic = make_critic(chunk=64)
    torch.nn.init.normal_(critic.model.head.weight, generator=torch.Generator().manual_seed(1))
    inputs, _ = coin_tosses(0, rows=5)
    mask = inputs["completion_mask"]
    whole = critic.values(inputs, mask)
    critic._chunk = 2
    torch.testing.assert_close(critic.values(inputs, mask), whole)
    padded = dict(inputs)
    for key in ("prompt_ids", "prompt_mask"):
        padded[key] = torch.cat([torch.zeros(5, 3, dtype=torch.long), inputs[key]], dim=1)
    torch.testing.assert_close(critic.values(padded, mask), whole, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_the_critic_learns_a_known_value_function(make_critic):
    critic = make_critic(learning_rate=1e-3, value_clip=None)
    for step in range(150):
        inputs, _ = coin_tosses(step)
        critic.update(inputs, inputs["completion_mask"])
    inputs, known = coin_tosses(10_000)
    mask = inputs["completion_mask"]
    # It has seen rewards only, never the values: what it explains is the expectation behind them.
    assert explained_variance(critic.values(inputs, mask), known, mask) > 0.9


def test_the_policy_is_not_touched(policy, make_critic):
    before = copy.deepcopy(policy.state_dict())
    critic = make_critic(learning_rate=0.1)
    inputs, _ = coin_tosses(0)
    for _ in range(2):
        critic.update(inputs, inputs["completion_mask"])
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())
    assert all(p.grad is None for p in policy.parameters())


def test_micro_batches_do_not_change_the_update(make_critic):
    inputs, _ = coin_tosses(0, rows=8)
    mask = inputs["completion_mask"].clone()
    mask[:3, 4:] = 0
    inputs["step_tokens"] = mask.sum().float()
    results = []
    for parts in (1, 4):
        critic = make_critic(learning_rate=0.01)
        torch.nn.init.ones_(critic.model.head.weight)
        for part in range(parts):
            rows = slice(part * 8 // parts, (part + 1) * 8 // parts)
            micro = {key: value[rows] if value.dim() else value for key, value in inputs.items()}
            metrics = critic.update(micro, mask[rows], last=part == parts - 1)
            assert bool(metrics) == (part == parts - 1)
        results.append((weights(critic), metrics))
    torch.testing.assert_close(results[1][0], results[0][0], rtol=0, atol=1e-6)
    assert results[1][1] == pytest.approx(results[0][1], rel=1e-4)


def test_a_saved_critic_goes_on_exactly_where_it_was(make_critic, tmp_path):
    def learn(critic, steps):
        for step in steps:
            inputs, _ = coin_tosses(step, rows=4)
            critic.update(inputs, inputs["completion_mask"])

    whole, resumed = make_critic(learning_rate=0.01), make_critic(learning_rate=0.01)
    learn(whole, range(3))
    whole.save(tmp_path)
    learn(whole, range(3, 6))
    resumed.prepare()
    resumed.load(tmp_path)
    learn(resumed, range(3, 6))
    assert torch.equal(weights(whole), weights(resumed))
    assert [path.name for path in tmp_path.iterdir()] == ["critic.pt"]


def test_mistakes_are_named(make_critic, tmp_path):
    critic = make_critic()
    with refused(tmp_path / "critic.pt"):
        critic.load(tmp_path)
    inputs, _ = coin_tosses(0, rows=2)
    inputs["returns"] = torch.full_like(inputs["returns"], torch.inf)
    with refused("loss", "inf", "critic.learning_rate"):
        critic.update(inputs, inputs["completion_mask"])
    torch.nn.init.constant_(critic.model.head.weight, torch.nan)
    with refused("values", "critic.learning_rate"):
        critic.values(inputs, inputs["completion_mask"])


def test_checkpointing_saves_activations_and_changes_no_gradient(make_critic):
    """The critic is copied before the training loop enables checkpointing for the policy."""
    inputs, _ = coin_tosses(seed=3, rows=4)
    mask, found = inputs["completion_mask"].float(), {}
    for checkpointing in (False, True):
        critic = make_critic(checkpointing=checkpointing)
        saved = []

        def keep(tensor, into=saved):
            into.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            critic.update(inputs, mask, last=False)
        gradients = torch.cat([p.grad.flatten() for p in critic.model.parameters() if p.grad is not None])
        found[checkpointing] = gradients, sum(saved)
    torch.testing.assert_close(found[True][0], found[False][0])
    assert found[True][1] < 0.5 * found[False][1]


def test_the_trainers_critic_checkpoints_like_the_policy(make):
    config = {"gradient_checkpointing": True}
    trainer = make(TrustRegionTrainer, config=config, trust_region="clip", estimator="gae", critic={})
    assert trainer.critic.model.backbone.is_gradient_checkpointing


def test_with_fp16_the_policy_is_unscaled_once_and_the_critic_learns(policy, monkeypatch, tmp_path):
    monkeypatch.setattr(Accelerator, "mixed_precision", property(lambda _: "fp16"))
    inputs, _ = coin_tosses(0, rows=8)
    mask = inputs["completion_mask"]
    found = {}
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=2.0**16)):
        accelerator = Accelerator(cpu=True)
        accelerator.scaler, accelerator.native_amp = scaler, False
        accelerator.gradient_state._set_sync_gradients(True)
        if scaler is None:
            monkeypatch.setattr(accelerator, "unscale_gradients", lambda *_: None)
        model = copy.deepcopy(policy)
        optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
        critic = Critic(model, CriticSettings(learning_rate=0.01, gradient_clipping=0.1), accelerator, 8)
        torch.nn.init.ones_(critic.model.head.weight)
        critic.prepare()
        accelerator.native_amp = scaler is not None
        before = weights(critic)
        accelerator.backward(model(inputs["completion_ids"]).logits.logsumexp(-1).mean())
        metrics = critic.update(inputs, mask)
        norm = accelerator.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        changed = torch.cat([p.detach().flatten() for p in model.parameters()])
        found[scaler is None] = float(norm), metrics["critic/grad_norm"], changed
        assert not torch.equal(weights(critic), before)
        critic._scaler and critic._scaler.update(8.0)
        critic.save(tmp_path)
        resumed = Critic(model, critic.settings, accelerator, 8)
        accelerator.native_amp = False
        resumed.prepare()
        resumed.load(tmp_path)
        assert scaler is None or (resumed._scaler.get_scale(), accelerator.scaler.get_scale()) == (
            8.0,
            2.0**16,
        )
    for scaled, plain in zip(found[False], found[True], strict=True):
        torch.testing.assert_close(scaled, plain, rtol=0.02, atol=1e-5)  # float16 rounds
    assert found[True][0] > 0.05 and found[True][1] > 0.1
