"""The step benchmark measures what it says: both methods learn alike, and only TROLL asks for support."""

import pytest
import torch

from troll.analysis import cost_step
from troll.errors import UserError


@pytest.mark.slow
def test_both_methods_take_real_steps_and_the_table_has_their_ratio(tmp_path, monkeypatch):
    steps, supports = [], []
    original, head = cost_step._step, cost_step._Setup.policy

    def step(setup, method, old):
        before = next(setup.model.parameters()).detach().clone()
        original(setup, method, old)
        steps.append((method, bool((next(setup.model.parameters()) != before).any())))

    def policy(setup, keep=None, support=None):
        supports.append((keep, support is None))
        return head(setup, keep, support)

    monkeypatch.setattr(cost_step, "_step", step)
    monkeypatch.setattr(cost_step._Setup, "policy", policy)
    sizes = {"responses": 2, "prompt": 8, "response": 16, "repeats": 2, "device": "cpu"}
    table = cost_step.run_step_cost(tmp_path, shape="tiny", **sizes).set_index("method")
    assert sorted(method for method, _ in steps) == ["clip"] * 4 + ["troll"] * 4
    assert all(moved for _, moved in steps)
    # Clip never pays for a distribution; TROLL asks for one in both of its passes.
    assert sorted({(keep is None, no_support) for keep, no_support in supports}) == [
        (False, True),
        (True, False),
        (True, True),
    ]
    assert table.loc["clip", "time_ratio"] == 1.0
    expected = table.loc["troll", "seconds"] / table.loc["clip", "seconds"]
    assert table.loc["troll", "time_ratio"] == pytest.approx(expected)
    assert (tmp_path / "cost_step.md").exists()


def test_unknown_shapes_and_devices_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"qwen3-0\.6b"):
        cost_step.run_step_cost(tmp_path, shape="huge")
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="'cuda' is not available"):
            cost_step.run_step_cost(tmp_path, shape="tiny", device="cuda")
