import pytest

from troll.analysis.data.provenance import check_digests
from troll.common.errors import UserError


def run(name: str, task: str = "chains", model: str = "tiny", **digests: str):
    return {"experiment": "e", "model": model, "task": task, "run_id": name}, digests


def test_each_digest_is_compared_within_its_own_scope() -> None:
    runs = [
        run("a", source="s", environment="e", data="d1", base_model="b1", test_data="t1"),
        run("b", source="s", environment="e", data="d2", base_model="b2", test_data="t2", task="functions"),
        run("c", source="s", environment="e", data="d1", base_model="b3", test_data="t1", model="large"),
    ]
    assert check_digests(runs) == [False, False, False]


@pytest.mark.parametrize("name", ["source", "environment", "data", "base_model", "test_data"])
def test_any_disagreement_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=rf"digests\.{name} of .* disagree"):
        check_digests([run("a", **{name: "1"}), run("b", **{name: "2"})])


def test_digests_of_further_data_sets_are_told_apart_in_the_message() -> None:
    """They stand behind the digest of a run's own test problems, which is the same then."""
    own, further = "1" * 64, "2" * 64
    with pytest.raises(UserError, match=r"disagree: 111111111111 in a; 111111111111\+222222222222 in b"):
        check_digests([run("a", test_data=own), run("b", test_data=own + further)])


def test_source_is_compared_across_tasks() -> None:
    with pytest.raises(UserError, match="source"):
        check_digests([run("a", source="1"), run("b", source="2", task="functions")])


def test_missing_digests_are_not_compared() -> None:
    assert check_digests([run("a", source="1"), run("b")]) == [False, False]


def test_marks_do_not_depend_on_the_order_even_in_a_tie() -> None:
    runs = [run("a", source="2"), run("b", source="1")]
    assert check_digests(runs, allow_mixed=True) == [True, False]
    assert check_digests(runs[::-1], allow_mixed=True) == [False, True]


def test_long_lists_of_runs_are_cut() -> None:
    runs = [run(f"r{i}", source="1") for i in range(9)] + [run("odd", source="2")]
    with pytest.raises(UserError, match=r"r0, r1, r2 and 6 more; 2 in odd"):
        check_digests(runs)
