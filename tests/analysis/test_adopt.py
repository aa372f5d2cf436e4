"""Making a release of local results: what is copied, what is refused, and that nothing is left unfinished."""

import shutil
import subprocess

import pandas as pd
import pytest
import synthetic
from refusals import refused

from troll.analysis.claims.packaged import claim_files
from troll.analysis.data.archive import FROM_RELEASE, append_run, archived_runs, collect_planned
from troll.analysis.data.results import Plan, read_results, write_plan
from troll.analysis.data.tidy import read_table_file, read_tidy, table_files, write_table_file
from troll.analysis.report.check import check_results
from troll.analysis.report.make import make_table
from troll.operations import adopt as module
from troll.operations.adopt import adopt

COORDINATES = ("model", "task", "trust_region", "estimator", "condition")


def commit(root):
    git = ["git", "-C", str(root), "-c", "user.name=n", "-c", "user.email=e"]
    for command in (["add", "-A"], ["commit", "-qm", "release", "--allow-empty"]):
        subprocess.run([*git, *command], check=True, capture_output=True)


def record_commit(directory, name):
    """Records that all runs were made at a commit."""
    for path in table_files(directory).values():
        write_table_file(
            path,
            [read_table_file(path).assign(git_commit=pd.Categorical([name] * len(read_table_file(path))))],
        )


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A git checkout with one source file, which ignores local results as the repository does."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("results/*\n!results/released/\n")
    (tmp_path / "source.py").write_text("one = 1\n")
    commit(tmp_path)
    monkeypatch.chdir(tmp_path)
    commit_of, is_committed = module.commit_of, module.is_committed
    monkeypatch.setattr(module, "commit_of", lambda: commit_of(tmp_path))
    monkeypatch.setattr(module, "is_committed", lambda paths: is_committed(paths, tmp_path))
    return tmp_path


@pytest.fixture
def local(checkout):
    """The results of a finished experiment, with a table and verdicts, as a run leaves them."""
    root = checkout / "results/testbed"
    runs, bases = synthetic.write_experiment(
        root, tasks=["chains"], conditions=["stale"], estimators=["grpo"], seeds=3, batches=2, problems=4
    )
    synthetic.collect(runs, root, bases)
    record_commit(root, "c0ffee")
    expected = [dict(zip(COORDINATES, path.parts[-6:-1], strict=True)) for path in runs]
    expected = [one | {"seed": int(path.name[4:])} for one, path in zip(expected, runs, strict=True)]
    write_plan(root, Plan(expected=[one | {"rule": one["trust_region"]} for one in expected]))
    results = read_results(root)
    make_table("main", results, root / "tables/main")
    (root / "page.html").write_text("local")
    (root / "logs").mkdir()
    (root / "logs/collect.log").write_text("local")
    return root


def test_a_finished_experiment_becomes_a_release_that_its_check_accepts(local, checkout):
    said = adopt("testbed")
    released = checkout / "results/released/testbed"
    assert said.startswith("results/released/testbed: 6 runs, ")
    names = {str(path.relative_to(released)) for path in released.rglob("*") if path.is_file()}
    assert names == {"README.md", "plan.json", "tables/main.csv", "tidy/all.parquet"}
    for name in ("tidy/all.parquet", "tables/main.csv", "plan.json"):
        assert (released / name).read_bytes() == (local / name).read_bytes()
    compared = check_results(released, claims=claim_files(None))
    assert released / "tables/main.csv" in compared
    assert [path.name for path in released.parent.iterdir()] == ["testbed"], "nothing temporary is left"
    # What was measured for the last release stays; what is no longer made goes.
    (released / "difficulty.md").write_text("measured\n")
    (released / "figures").mkdir()
    (released / "figures/forest.png").write_text("old")
    commit(checkout)
    adopt("testbed")
    assert (released / "difficulty.md").exists() and not (released / "figures").exists()
    assert "difficulty.md" in (released / "README.md").read_text()


def test_the_page_of_the_finished_runs_of_an_unfinished_experiment_becomes_a_release(local, checkout):
    made = local / "finished"
    shutil.move(local, checkout / "elsewhere")
    shutil.move(checkout / "elsewhere", made)
    planned = read_results(made).expected
    write_plan(made, Plan(expected=[*planned, planned[0] | {"seed": 99}]))
    make_table("main", read_results(made), made / "tables/main")
    with refused("results/testbed", "make the results first"):
        adopt("testbed")
    assert adopt("testbed", finished=True).startswith("results/released/testbed: 6 runs, ")
    released = checkout / "results/released/testbed"
    assert (released / "plan.json").read_bytes() == (made / "plan.json").read_bytes()
    assert "6 of 7 planned runs" in (released / "README.md").read_text()
    with refused("results/absent/finished", "troll status FILE --page"):
        adopt("absent", finished=True)


def test_what_could_not_be_traced_or_would_lose_something_is_refused(local, checkout):
    released = checkout / "results/released/testbed"
    (checkout / "source.py").write_text("one = 2\n")
    with refused("adopt", "git status"):
        adopt("testbed")
    commit(checkout)
    released.mkdir(parents=True)
    (released / "claims.md").write_text("mine\n")
    with refused("adopt", "results/released/testbed"):
        adopt("testbed")
    assert (released / "claims.md").read_text() == "mine\n"
    shutil.rmtree(released)
    for name in ("released", "../testbed", "results/testbed"):
        with refused("adopt", name, "results"):
            adopt(name)
    with refused("adopt", "results/other", "tidy/", "protocol.yaml"):
        adopt("other")
    plan = local / "plan.json"
    plan.write_text(plan.read_text().replace('"skipped"', '"rehearsal": true, "skipped"'))
    with refused("adopt", "testbed", "rehearsal"):
        adopt("testbed")
    assert not released.exists() and not [*released.parent.iterdir()]


def test_runs_from_uncommitted_source_are_refused(local):
    record_commit(local, "c0ffee-dirty")
    with refused("results/released/testbed", "7 of 7"):
        adopt("testbed")


def test_the_finished_runs_of_an_unfinished_experiment_are_added_to_those_of_the_release(checkout):
    runs, bases = synthetic.write_experiment(
        checkout / "made/testbed",
        tasks=["chains"],
        conditions=["stale"],
        estimators=["grpo"],
        seeds=2,
        batches=2,
    )
    by_name = {"/".join(path.parts[-6:]): path for path in runs} | {"base/tiny/chains": bases[0]}
    keys = {name: f"key of {name}" for name in by_name}
    first, *rest = by_name
    local, released = checkout / "results/kept", checkout / "results/released/kept"
    append_run(by_name[first], local, keys[first])
    record_commit(local, "c0ffee-dirty")
    with refused("results/released/kept", "1 of 1"):
        adopt("kept")
    assert not released.exists()
    append_run(by_name[first], local, keys[first])  # made again, from committed source
    assert "1 finished runs and base models of an unfinished experiment" in adopt("kept")
    commit(checkout)
    shutil.rmtree(local)
    append_run(by_name[rest[0]], local, keys[rest[0]])
    adopt("kept")
    assert set(archived_runs(released)) == {first, rest[0]}
    commit(checkout)
    append_run(by_name[first], local, keys[first])  # now all released rows are here, too
    adopt("kept")
    assert set(archived_runs(released)) == {first, rest[0]}
    shutil.rmtree(local)
    append_run(by_name[rest[0]], local, keys[rest[0]])
    # Once all are there, the copies are part of the release as any other rows, in a file for each rule.
    collect_planned(local, keys, {name: by_name[name] for name in rest}, released)
    record_commit(local, "c0ffee")
    assert FROM_RELEASE in table_files(local)
    expected = [dict(zip(COORDINATES, name.split("/"), strict=False)) for name in keys if "seed" in name]
    seeds = [int(name[-1]) for name in keys if "seed" in name]
    planned = [
        one | {"seed": seed, "rule": one["trust_region"]} for one, seed in zip(expected, seeds, strict=True)
    ]
    write_plan(local, Plan(expected=planned))
    make_table("main", read_results(local), local / "tables/main")
    adopt("kept")
    assert [*table_files(released)] == ["base", "clip", "troll"]
    pd.testing.assert_frame_equal(
        read_tidy(released).runs.astype(str), read_tidy(local).runs.astype(str), check_like=True
    )
