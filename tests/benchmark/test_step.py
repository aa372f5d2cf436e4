"""The step benchmark measures what it says: real steps, support for TROLL alone, a critic's memory."""

import pytest
import torch

from troll.benchmark import step as cost_step
from troll.benchmark.step_worker import METHODS, Learner, Work
from troll.common.errors import UserError


@pytest.mark.parametrize("method", METHODS)
def test_a_step_moves_what_the_method_trains_and_nothing_else_is_there(method, monkeypatch):
    supports = []
    original = Learner.policy

    def policy(self, keep=None, support=None):
        supports.append((keep is not None, support is not None))
        return original(self, keep, support)

    monkeypatch.setattr(Learner, "policy", policy)
    learner = Learner(Work(method, "tiny", 2, 8, 16, 64, 1, "cpu"))
    parts = [learner.model, *([learner.critic.model] if learner.critic else [])]
    before = [torch.nn.utils.parameters_to_vector(part.parameters()).detach().clone() for part in parts]
    learner.score()
    learner.step()
    after = [torch.nn.utils.parameters_to_vector(part.parameters()) for part in parts]
    assert all(bool((one != two).any()) for one, two in zip(before, after, strict=True))
    assert (learner.critic is not None) == ("critic" in method)
    # Clip never pays for a distribution; TROLL asks for one in both of its passes.
    assert supports == ([(True, False), (False, True)] if method == "troll" else [(False, False)] * 2)


@pytest.mark.slow
def test_the_table_has_ratios_to_clip_and_a_critic_takes_memory(tmp_path):
    sizes = {"responses": 2, "prompt": 8, "response": 16, "steps": 2, "repeats": 1, "device": "cpu"}
    table = cost_step.run_step_cost(tmp_path, shape="20m", **sizes).set_index("method")
    assert table.loc["clip", "time_ratio"] == table.loc["clip", "memory_ratio"] == 1.0
    # Twice the weights, states and gradients, but for the output layer's and the activations.
    assert table.loc["clip, critic", "memory_ratio"] > 1.2
    expected = table.loc["troll", "seconds_low"] / table.loc["clip", "seconds_low"]
    assert table.loc["troll", "time_ratio"] == pytest.approx(expected)
    assert "A critic beside the policy" in (tmp_path / "cost_step.md").read_text()


def test_unknown_shapes_and_devices_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"qwen3-0\.6b"):
        cost_step.run_step_cost(tmp_path, shape="huge")
    with pytest.raises(UserError, match=r"steps must be at least 1 \(found 0\)"):
        cost_step.run_step_cost(tmp_path, shape="tiny", device="cpu", steps=0)
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="'cuda' is not available"):
            cost_step.run_step_cost(tmp_path, shape="tiny", device="cuda")
