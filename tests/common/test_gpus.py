"""Work that asks for GPUs does not silently run on the CPU."""

import pytest

from troll.common.errors import UserError
from troll.common.gpus import require_gpus


@pytest.mark.parametrize(("shown", "told"), [(0, "shows none; ask for more, or set 0"), (2, "shows 2;")])
def test_fewer_gpus_than_asked_for_are_refused(monkeypatch, shown, told):
    monkeypatch.delenv("TROLL_ALLOW_CPU", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: shown)
    with pytest.raises(UserError, match=f"training.gpus is 4, but this machine {told}"):
        require_gpus(4, "training.gpus")
    assert require_gpus(shown, "training.gpus") == shown and require_gpus(0, "--gpus") == 0


def test_a_rehearsal_may_take_the_cpu_in_place_of_all_gpus_but_not_of_some(monkeypatch):
    monkeypatch.setenv("TROLL_ALLOW_CPU", "1")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert require_gpus(4, "training.gpus") == 0
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(UserError, match="shows 1; ask for more, or set 1"):
        require_gpus(4, "training.gpus")
