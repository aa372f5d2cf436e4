"""The workflow as a person runs it, on a copy of its files in a directory of its own; some of it killed."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace

import killed_workflows as kills
import pandas as pd
import pytest
from forked_snakemake import named_server
from forked_snakemake import snakemake as forked_snakemake
from refusals import check_facts, error_of

from troll import warm
from troll.analysis.claims.packaged import claims_file
from troll.analysis.data.archive import archived_runs
from troll.analysis.data.tidy import read_tidy
from troll.tasks.sandbox.pool import sandbox_available

pytestmark = pytest.mark.snakemake
# Twenty and more on a machine that has the time; five take as long as two more experiments.
KILLS = int(os.environ.get("TROLL_TEST_WORKFLOW_KILLS", "5"))


@pytest.fixture
def checkout(repository, tmp_path):
    """The workflow without results, in a directory named as git names it; its path has what shells mind."""
    directory = tmp_path / 'a user\'s "plaçe"' / "troll"
    directory.mkdir(parents=True)
    shutil.copy(repository / "Snakefile", directory)
    for name in ("workflow", "envs", "tests/workflow"):
        shutil.copytree(repository / name, directory / name)
    return directory


def snakemake(directory, *arguments, **settings):
    return forked_snakemake("--cores", "2", *arguments, cwd=directory, **{"timeout": 1200} | settings)


def planned(result, rule):
    """How many jobs of a rule a dry run announces."""
    found = re.search(rf"^{rule}\s+(\d+)$", result.stdout + result.stderr, re.MULTILINE)
    return int(found[1]) if found else 0


def make_results(directory, **settings):
    """What `make results EXPERIMENT=...` runs."""
    command = [sys.executable, "-m", "troll.cli", "run", "tests/workflow/reduced.yaml", "--cores", "2"]
    settings = {"capture_output": True, "text": True, "timeout": 1200} | settings
    return subprocess.run(command, cwd=directory, **settings)


def test_a_second_run_in_the_same_directory_is_refused(checkout):
    (checkout / ".snakemake").mkdir()
    with (checkout / ".snakemake/results.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        result = make_results(checkout)
    error_of(result, "make results")


def test_code_in_an_experiment_file_is_refused_before_it_runs(checkout, troll):
    proof = checkout / "ran"
    file = checkout / "evil.yaml"
    code = (
        f"__use_yte__: true\n__definitions__:\n  - import pathlib\n  - pathlib.Path({str(proof)!r}).touch()\n"
    )
    file.write_text(code + (checkout / "tests/workflow/reduced.yaml").read_text())
    facts = ("evil.yaml", "__use_yte__", "Snakemake")
    for words in (["run", "evil.yaml", "-n", "--config", "seeds=[0]", "--", "all"], ["check", "evil.yaml"]):
        error_of(troll(*words, cwd=checkout), *facts)
    assert not proof.exists()
    result = snakemake(checkout, "-n", "--configfile", "evil.yaml")  # too late, but said
    error_of(result, *facts, alone=False)
    assert proof.exists()


def test_names_of_files_may_have_braces_and_that_of_the_checkout_may_not(checkout):
    (checkout / "{mine}").mkdir()
    shutil.copy(claims_file("default"), checkout / "{mine}/claims.yaml")
    text = (checkout / "tests/workflow/reduced.yaml").read_text() + "claims: ['{mine}/claims.yaml']\n"
    (checkout / "{mine}/{file}.yaml").write_text(text)
    result = snakemake(checkout, "-n", "-p", "--configfile", "{mine}/{file}.yaml")
    assert result.returncode == 0, result.stderr
    assert "claims '{mine}/claims.yaml'" in result.stdout + result.stderr
    assert "--ledger '{mine}/claims.yaml'" in result.stdout + result.stderr

    result = snakemake(
        checkout.rename(checkout.parent / "{troll}"), "-n", "--configfile", "{mine}/{file}.yaml"
    )
    error_of(result, "braces", alone=False)


def test_a_fresh_clone_makes_the_testbed_although_it_comes_with_its_released_results(checkout, repository):
    shutil.copytree(repository / "results/released/testbed", checkout / "results/released/testbed")
    result = snakemake(checkout, "-n")
    assert result.returncode == 0, result.stderr
    assert "results/testbed/page.html" in result.stdout + result.stderr
    assert planned(result, "train") == 48
    assert planned(result, "base_model") == 2


def test_a_mistake_in_the_configuration_is_one_line_before_anything_runs(checkout):
    path = checkout / "workflow/config/testbed.yaml"
    path.write_text(path.read_text().replace("learning_rate: 3.0e-4", "learning_rate: -3.0e-4"))
    result = snakemake(checkout)
    facts = ("workflow/config/testbed.yaml", "conditions.stale.learning_rate", "-0.0003", "> 0")
    error_of(result, *facts, alone=False)
    assert result.stderr.lower().count("error") == 1
    assert not (checkout / "results").exists()


@pytest.fixture
def without_bubblewrap(checkout):
    """An environment with what Snakemake itself needs, and no bubblewrap."""
    programs = checkout / "programs"
    programs.mkdir()
    for name in ("bash", "which"):
        (programs / name).symlink_to(shutil.which(name))
    return os.environ | {"PATH": str(programs)}


def test_an_experiment_of_which_no_task_can_be_run_ends_before_anything_runs(checkout, without_bubblewrap):
    path = checkout / "tests/workflow/reduced.yaml"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith("  chains:")))
    result = snakemake(checkout, "--configfile", str(path), env=without_bubblewrap)
    error_of(result, "tests/workflow/reduced.yaml", alone=False)
    assert not (checkout / "results").exists()
    warning, _ = result.stderr.strip().splitlines()
    check_facts(warning, "warning", "task functions", "bwrap")


def test_a_group_of_which_no_task_can_be_run_says_so_and_the_others_run(checkout, without_bubblewrap):
    path = checkout / "tests/workflow/reduced.yaml"
    groups = "matrix: [{group: sums, tasks: [chains]}, {group: code, tasks: [functions]}]\n"
    path.write_text(path.read_text() + groups)
    result = snakemake(checkout, "-n", "--configfile", str(path), "--", "code", env=without_bubblewrap)
    assert result.returncode == 1
    assert "group code: none of its tasks can be run on this machine" in result.stdout + result.stderr
    result = snakemake(checkout, "-n", "--configfile", str(path), "--", "sums", env=without_bubblewrap)
    assert result.returncode == 0 and planned(result, "train") == 2


def test_adding_a_seed_adds_only_its_runs(checkout):
    """Without it there are four, as the whole chain shows."""
    arguments = ("--configfile", "tests/workflow/reduced.yaml", "--config", "seeds=[0,1]")
    result = snakemake(checkout, "-n", *arguments)
    assert result.returncode == 0, result.stderr
    assert (planned(result, "train"), planned(result, "base_model")) == (8, 2)


def test_a_group_has_tables_figures_verdicts_and_a_page_of_its_own(checkout):
    result = snakemake(
        checkout, "-n", "-p", "--configfile", "workflow/config/testbed-gpu.yaml", "--", "gentle"
    )
    assert result.returncode == 0, result.stderr
    assert planned(result, "train") == 90
    for rule in ("collect-gentle", "claims-gentle", "report-gentle"):
        assert planned(result, rule) == 1, rule
    said = result.stdout + result.stderr
    assert "report results/testbed-gpu/groups/gentle --table comparison" in said
    assert "--figure learning:chains" in said and "--command 'snakemake gentle'" in said


@pytest.mark.skipif(not sandbox_available()[0], reason="no sandbox, so that the task that fails is left out")
def test_a_failure_ends_with_where_to_look(checkout):
    experiment = (checkout / "tests/workflow/reduced.yaml").read_text()
    greedy = experiment.replace("functions: {train: 32", "functions: {train: 300000")
    assert greedy != experiment
    (checkout / "greedy.yaml").write_text(greedy)
    result = snakemake(checkout, "--configfile", "greedy.yaml", "--until", "problems")
    assert result.returncode == 1
    error_of(result, "rule problems", "problems of functions", alone=False)
    assert "task functions: 300000 train problems" in result.stderr
    assert len(result.stderr.splitlines()) < 25, "what failed must not be searched for"
    assert "troll status greedy.yaml" in result.stderr
    assert "claims.md" not in result.stderr


def made_by_command(directory):
    result = make_results(directory, env=os.environ | named_server())
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stderr


@pytest.fixture(scope="module")
def checkouts(tmp_path_factory):
    """Makes directories with the workflow for its reduced experiment."""
    available, reason = sandbox_available()
    if not available:
        pytest.skip(f"no sandbox, so that one of the two tasks is left out: {reason}")

    def make():
        directory = tmp_path_factory.mktemp("a checkoüt")
        kills.checkout(directory)
        return directory

    return make


@pytest.fixture(scope="module")
def whole(checkouts):
    """The reduced experiment: all was killed as its first run trained, and the command typed again."""
    directory = checkouts()
    before = kills.killed_in_training(directory, os.environ | named_server())
    return SimpleNamespace(directory=directory, before=before, said=made_by_command(directory))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_whole_chain(whole, troll):
    arguments = ("--configfile", "tests/workflow/reduced.yaml")
    root = whole.directory / "results/reduced"
    check_what_is_shown(whole.directory, whole.said)
    assert "no claim concerns these runs\n" in whole.said
    assert "everything on one page: results/reduced/page.html" in whole.said
    check_outputs(root, troll)

    result = snakemake(whole.directory, *arguments, "--report", "report.html")
    assert result.returncode == 0, result.stderr[-4000:]
    report = (whole.directory / "report.html").read_text()
    assert "main.png" in report and "main.csv" in report and "Success over training" in report
    result = snakemake(whole.directory, *arguments)
    assert "Nothing to be done" in result.stdout + result.stderr


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_what_is_killed_goes_on_and_what_was_finished_stays(whole):
    assert whole.before.left == [] == kills.left_behind(whole.directory)
    assert whole.before.bases and all(
        path.stat().st_mtime_ns == then for path, then in whole.before.bases.items()
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_is_graded_before_another_is_begun(whole):
    """So that an interrupted experiment holds finished runs, and not many that are half done."""
    log = (whole.directory / full_log(whole.said)).read_text()
    started = re.findall(r"^Job \d+: (train|grade) (?:runs/tiny/)?(?!base)(\S+)", log, re.MULTILINE)
    assert len(started) == len(set(started)) == 8
    rules = [rule for rule, _ in started]
    for position, rule in enumerate(rules):
        if rule == "train":  # beside it runs one other at the most
            assert rules[:position].count("train") - rules[:position].count("grade") <= 1, started


@pytest.fixture(scope="module")
def undisturbed(checkouts):
    """The reduced experiment, of which nothing was killed."""
    directory = checkouts()
    made_by_command(directory)
    return directory


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(300 * (KILLS + 1))
@pytest.mark.skipif(not warm.usable(), reason="no warm server is started on this machine")
def test_an_experiment_goes_on_whatever_was_killed(undisturbed, tmp_path):
    expected = kills.contents(undisturbed)
    assert not kills.left_behind(undisturbed) and len(expected) > 20
    for number in range(0, KILLS, len(kills.KINDS)):
        kinds = kills.KINDS[: KILLS - number]
        found = kills.disturbed(tmp_path / f"killed {number}", kinds, expected)
        assert sum(kill["hit"] for kill in found) >= len(kinds) - 1, found
        for kill in found:
            # A killed server costs nothing but time; the rest ends the workflow.
            assert (kill["status"] == 0) == (kill["kind"] == "server" or not kill["hit"]), kill
            assert kill["left"] == kill["made_again"] == kill.get("differ", []) == [], kill
            assert kill.get("again", 0) == 0, kill


@pytest.mark.slow
@pytest.mark.nightly  # test_kept_runs.py has its plans, with runs that nobody has trained
@pytest.mark.timeout(600)
def test_what_the_tables_hold_counts_as_made_and_the_rest_is_made(undisturbed, tmp_path):
    """On another machine, that is; with the base models for it."""
    checkout = shutil.copytree(undisturbed, tmp_path / "kept")
    check_kept(checkout, checkout / "results/reduced", ("--configfile", "tests/workflow/reduced.yaml"))


def check_what_is_shown(checkout: Path, shown: str) -> None:
    """A few lines of progress, and a log with everything that Snakemake and its jobs have said."""
    assert re.search(r"^\d+ of \d+ jobs(, .+)?; now: ", shown, re.MULTILINE)
    assert len(shown.splitlines()) < 60 and "Reason: " not in shown
    log = (checkout / full_log(shown)).read_text()
    assert "Reason: Missing output files" in log and "steps (100%) done" in log
    assert "[train] tiny/chains/" in log and "[train] tiny/" not in shown


def full_log(shown: str) -> str:
    (name,) = re.findall(r"^full log: (.+)$", shown, re.MULTILINE)
    return name


def check_kept(checkout: Path, root: Path, arguments: tuple[str, ...]) -> None:
    keeping = (*arguments, "--config", "archive=true")
    table = (root / "tables/main.csv").read_bytes()
    more = (*keeping, "seeds=[0, 1]")
    assert dry(checkout, more) == {"configure": 4, "train": 4, "append": 4}
    for name in ("runs", "base", "data", "tables"):
        shutil.rmtree(root / name)
    assert dry(checkout, keeping) == {}
    made = {"base_model": 2, "configure": 4, "train": 4, "append": 4}
    assert dry(checkout, more) == made
    result = snakemake(checkout, *keeping)
    assert result.returncode == 0, result.stderr[-4000:]
    assert (root / "tables/main.csv").read_bytes() == table
    # A run more, as one would add to a release: the others stay as they are.
    run = "results/reduced/runs/tiny/chains/clip/grpo/stale/seed1/appended"
    result = snakemake(checkout, *more, "--", run)
    assert result.returncode == 0, result.stderr[-4000:]
    assert len(archived_runs(root)) == 7
    assert dry(checkout, more) == made | {"base_model": 1, "configure": 3, "train": 3, "append": 3}


def dry(checkout: Path, arguments: tuple[str, ...]) -> dict[str, int]:
    """How many jobs are planned that make runs or append them."""
    result = snakemake(checkout, "-n", *arguments)
    assert result.returncode == 0, result.stderr[-4000:]
    counts = {rule: planned(result, rule) for rule in ("base_model", "configure", "train", "append")}
    return {rule: count for rule, count in counts.items() if count}


def check_outputs(root: Path, troll: Callable[..., CompletedProcess[str]]) -> None:
    runs = read_tidy(root).runs
    trained = runs[runs["trust_region"] != "base"]
    assert set(trained["trust_region"]) == {"clip", "troll"}
    assert set(runs["task"]) == {"chains", "functions"}
    loss = trained[(trained["source"] == "train") & (trained["metric"] == "loss")]
    assert all(list(steps) == [1, 5] for _, steps in loss.groupby("run_id", observed=True)["step"])
    assert (trained.loc[trained["metric"] == "summary/steps", "value"] == 8).all()
    # Whoever has pandas alone can read them.
    rows = pd.read_parquet(root / "tidy")
    assert len(rows) == len(runs) + (rows["source"] == "problem").sum()
    assert not trained.duplicated(["run_id", "step", "metric", "source"]).any()
    for directory in root.glob("runs/*/*/*/*/*/*"):
        manifest = json.loads((directory / "manifest.json").read_text())
        assert manifest["run_id"] == directory.relative_to(root / "runs").as_posix()
        grades = json.loads((directory / "grades.json").read_text())
        assert len(grades["problems"]) == 8
        assert all(len(problem["passed"]) == 2 for problem in grades["problems"].values())
    for name in ("main.png", "learning_chains.png", "learning_functions.png"):
        assert (root / "figures" / name).stat().st_size > 5000
    for suffix in ("csv", "md"):
        assert "troll" in (root / f"tables/main.{suffix}").read_text()
    assert "Success over training" in (root / "page.html").read_text()
    # The same table gives the same bytes.
    figure = root / "figures/main.png"
    digest = hashlib.sha256(figure.read_bytes()).hexdigest()
    assert troll("job", "figure", "main", "--results", root, "--out", root / "again").returncode == 0
    assert hashlib.sha256((root / "again.png").read_bytes()).hexdigest() == digest
