"""What may stand in one table, and what may be released."""

import itertools
from pathlib import Path

import pandas as pd
import pytest
import synthetic
from refusals import refused

from troll.analysis.data.provenance import DIGESTS, check_clean
from troll.analysis.data.provenance import check_digests as check_table
from troll.analysis.data.results import Results
from troll.analysis.data.runs import checked, read_directories
from troll.analysis.data.tidy import Tidy
from troll.analysis.report.make import table
from troll.analysis.report.readme import provenance
from troll.common import numerics

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def run(name, task="chains", model="tiny", place="", version=0, rule="clip", experiment="e", **digests):
    made = {"experiment": experiment, "model": model, "task": task, "run_id": name, "place": place}
    return (
        made
        | {"rule": rule, "numerics": version}
        | {f"digest_{key}": digests.get(key, "") for key in DIGESTS}
    )


def check_digests(runs, *, allow_mixed=False):
    return list(check_table(pd.DataFrame(runs), allow_mixed=allow_mixed))


def test_each_digest_is_compared_within_its_own_scope():
    runs = [
        run("a", environment="e", data="d1", base_model="b1", test_data="t1"),
        run("b", environment="e", data="d2", base_model="b2", test_data="t2", task="functions"),
        run("c", environment="e", data="d1", base_model="b3", test_data="t1", model="large"),
        run("d", environment="f", data="d4", base_model="b4", test_data="t4", experiment="other"),
    ]
    assert check_digests(runs) == [False] * 4


@pytest.mark.parametrize("name", ["environment", "data", "base_model", "test_data"])
def test_any_disagreement_is_refused(name):
    with refused(f"digests.{name}"):
        check_digests([run("a", **{name: "1"}), run("b", **{name: "2"})])


def test_another_place_may_have_other_libraries_and_base_models_and_no_other_data():
    """A base model that is trained again on another processor has other bits."""
    for name in ("environment", "base_model"):
        here = [run(letter, place="here", **{name: "1"}) for letter in "ab"]
        assert check_digests([*here, run("c", place="there", **{name: "2"})]) == [False] * 3
        with refused(f"digests.{name}", "1 in a, b", "2 in d", "allow_mixed: true"):
            check_digests([*here, run("d", place="here", **{name: "2"})])
    for name in ("data", "test_data"):
        with refused(f"digests.{name}", "experiment e", "task chains"):
            check_digests([run("a", place="here", **{name: "1"}), run("b", place="there", **{name: "2"})])


def test_places_are_told_by_machine_and_libraries_of_the_rows(tmp_path):
    root = tmp_path / "testbed"
    dirs = [
        synthetic.write_run(root, "chains", "clip", "grpo", "stale", seed, batches=1) for seed in range(3)
    ]
    tidy = read_directories(dirs)
    last = tidy.runs["run_id"].str.endswith("seed2")

    def made(**changes):
        other = {name: tidy.runs[name].astype(str).mask(last, value) for name, value in changes.items()}
        return Tidy(tidy.runs.assign(**other), tidy.items)

    assert not checked(made(), by_place=False).runs["mixed"].any()
    bits = {"digest_base_model": "0" * 64}
    with refused("digests.base_model"):
        checked(made(**bits), by_place=True)
    for place in ({"hardware": '{"processor": "another"}'}, {"digest_environment": "1" * 64}):
        assert not checked(made(**bits, **place), by_place=True).runs["mixed"].any()
        with refused("digests"):
            checked(made(**bits, **place))
        marked = checked(made(**bits, **place), allow_mixed=True)
        for frame in (marked.runs, marked.items):
            assert set(frame.loc[frame["mixed"], "seed"]) == {2}


def test_a_table_says_in_how_many_places_its_runs_were_made(runs, items):
    def notes(runs):
        said = table("main", Results(runs, items)).attrs["notes"]
        return [note for note in said if "places" in note]

    assert notes(runs) == []
    there = runs["seed"] == 2
    hardware = runs["hardware"].astype(str).mask(there, '{"processor": "Xeon", "capability": "AVX2"}')
    environment = runs["digest_environment"].astype(str).mask(there, "1" * 64)
    assert notes(runs.assign(hardware=hardware, digest_environment=environment)) == [
        "The runs were made in 2 places: 32 on an unknown processor with versions eeeeeee and 16 on Xeon "
        "AVX2 with versions 1111111."
    ]
    gpu = runs["hardware"].astype(str).mask(there, '{"processor": "Xeon", "gpus": ["A card", "A card"]}')
    assert "and 16 on A card with versions" in notes(runs.assign(hardware=gpu))[0]


CHANGES = (
    numerics.Change(1, "all"),
    numerics.Change(2, "one rule", ("kl-penalty",)),
    numerics.Change(3, "two rules", ("clip", "troll")),
)


def test_what_a_later_version_changes_may_not_stand_beside_its_runs(monkeypatch):
    monkeypatch.setattr(numerics, "CHANGES", CHANGES)
    older = [run("a", version=1, rule="clip"), run("base/tiny/chains", version=1, rule="")]
    assert check_digests(older) == [False, False], "a later version that none was made with is no matter"
    assert check_digests([*older, run("b", version=2, rule="kl-penalty")]) == [False] * 3, "another rule"
    assert check_digests([*older, run("b", version=3, experiment="other")]) == [False] * 3, "another table"
    mixed = [*older, run("b", version=3, rule="clip")]
    with refused("numerics", "experiment e", "1 in a", "3 in others", "allow_mixed: true"):
        check_digests(mixed)
    assert check_digests(mixed, allow_mixed=True) == [True, False, False]
    with refused("numerics", "0 in a, base/tiny/chains", 1):
        check_digests([run("a"), run("base/tiny/chains", rule=""), run("b", version=1, rule="none")])


@pytest.mark.parametrize("rule", ["", "clip", "kl-penalty", "none"])
def test_a_run_changes_between_two_versions_where_its_last_change_does(monkeypatch, rule):
    monkeypatch.setattr(numerics, "CHANGES", CHANGES)
    for old, until in itertools.combinations_with_replacement(range(5), 2):
        between = [one for one in CHANGES if old < one.numerics <= until]
        changed = any(one.rules is None or rule in one.rules for one in between)
        assert numerics.changed_since(old, rule, until=until) == changed, (old, until)
        assert numerics.changed_since(old, rule) == (numerics.last_change(rule) > old)


def test_digests_of_further_data_sets_are_told_apart_in_the_message():
    """They stand behind the digest of a run's own test problems, which is the same then."""
    own, further = "1" * 64, "2" * 64
    with refused("digests.test_data", "111111111111 in a", "111111111111+222222222222 in b"):
        check_digests([run("a", test_data=own), run("b", test_data=own + further)])


def test_libraries_are_compared_across_tasks():
    with refused("digests.environment"):
        check_digests([run("a", environment="1"), run("b", environment="2", task="functions")])


def test_missing_digests_are_not_compared():
    assert check_digests([run("a", data="1"), run("b"), run("c", data="")]) == [False] * 3


def test_marks_do_not_depend_on_the_order_even_in_a_tie():
    runs = [run("a", data="2"), run("b", data="1")]
    assert check_digests(runs, allow_mixed=True) == [True, False]
    assert check_digests(runs[::-1], allow_mixed=True) == [False, True]


def test_long_lists_of_runs_are_cut():
    runs = [run(f"r{i}", data="1") for i in range(9)] + [run("odd", data="2")]
    with refused("r0, r1, r2", 6, "2 in odd"):
        check_digests(runs)


def made(runs, commits):
    """Single rows of some runs with these commits."""
    rows = runs[runs["trust_region"] != "base"].drop_duplicates("run_id").head(len(commits))
    return rows.assign(run_id=list(commits), git_commit=list(commits.values()))


@pytest.mark.parametrize("commit", [f"{COMMIT}-dirty", ""])
def test_a_run_from_source_in_no_commit_is_not_released_and_refused_in_one_line(runs, commit):
    with refused("results/mine", "1 of 2", "b"):
        check_clean(made(runs, {"a": COMMIT, "b": commit}), Path("results/mine"))
    check_clean(made(runs, {"a": COMMIT, "b": "f" * 40}), Path("results/mine"))


def test_the_readme_tells_where_runs_come_from(runs):
    (line,) = provenance(made(runs, {"a": COMMIT, "b": f"{COMMIT}-dirty", "c": ""}))
    assert line.startswith(
        "- `results/released/testbed`: 3 runs: 1 at no known commit, 1 at commit `0123456` and 1 at commit "
        "`0123456` (with changes that were not committed); "
    )
