import pytest

from troll.evaluation.audit.speed import speed
from troll.tasks.sandbox.pool import sandbox_available


@pytest.mark.slow
@pytest.mark.skipif(not sandbox_available()[0], reason=f"no sandbox: {sandbox_available()[1]}")
def test_all_measurements_do_the_whole_work(real_data):
    rows = speed(problems=4, completions=64, programs=16)
    assert [row["count"] for row in rows] == [4, 4, 4, 64, 16]
    assert [row["passed"] for row in rows[:3]] == [4, 4, 4] and rows[4]["passed"] == 16
    assert 0 < rows[3]["passed"] < 64
    assert all(row["seconds"] > 0 for row in rows)
