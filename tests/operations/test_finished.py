"""`troll status --page`: what the finished runs show, while others are still to be made."""

import json
import shutil

import pandas as pd
import pytest
import yaml
from refusals import error_of, refused
from typer.testing import CliRunner

from troll.cli.app import app
from troll.experiment.experiment import resolve, resolve_base
from troll.experiment.files import parse_experiment, read_experiment
from troll.operations.finished import write_finished

RUN = "tiny/chains/{}/grpo/stale/seed0"


@pytest.fixture
def file(repository, tmp_path):
    """The reduced experiment on one task, with two groups of runs."""
    settings = yaml.safe_load((repository / "tests/workflow/reduced.yaml").read_text())
    del settings["tasks"]["functions"]
    settings["matrix"] = [{"group": f"only_{rule}", "trust_regions": [rule]} for rule in ("clip", "troll")]
    path = tmp_path / "reduced.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


@pytest.fixture
def results(tmp_path):
    return tmp_path / "results"


@pytest.fixture
def finish(finished, file, results):
    """Puts finished runs, by trust region, and ``base`` into their directories."""

    def to_finish(*names, **changes):
        experiment = parse_experiment(yaml.safe_load(file.read_text()) | changes, "x")
        for run in experiment.runs():
            if run.trust_region in names:
                finished(results / "reduced/runs" / run.run_id, resolve(experiment, run))
        if "base" in names:
            finished(results / "reduced/base/tiny/chains", resolve_base(experiment, "tiny", "chains"))

    return to_finish


def seeds(page):
    table = pd.read_csv(page.parent / "tables/main.csv").set_index("trust_region")
    return table["status"].to_dict()


def files(results):
    return {
        path: path.read_bytes()
        for path in results.rglob("*")
        if path.is_file() and "finished" not in path.parts
    }


@pytest.mark.parametrize("archive", [False, True])
def test_planned_runs_that_are_not_finished_stand_in_the_tables_as_not_run(file, results, finish, archive):
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"archive": archive}))
    finish("clip", "base", archive=archive)
    before = files(results)
    ran = CliRunner().invoke(app, ["status", str(file), "--results", str(results), "--page"])
    page = results / "reduced/finished/page.html"
    told = f"{page}: 1 of 2 planned runs; verdicts may change until the last has ended\n"
    assert ran.exit_code == 0 and ran.stdout == told, ran.output
    assert seeds(page) == {"base": "run", "clip": "run", "troll": "not run"}
    assert f"troll status {file} --page" in page.read_text()
    plan = json.loads((page.parent / "plan.json").read_text())
    assert [run["trust_region"] for run in plan["expected"]] == ["clip", "troll"]
    after = files(results)
    if archive:  # finished runs are kept, as the workflow would keep them
        assert {path.name for path in after.keys() - before.keys()} == {
            ".lock",
            "base.parquet",
            "clip.parquet",
        }
    else:
        assert after == before, "nothing that the workflow makes or reads"
    finish("troll", archive=archive)
    ran = CliRunner().invoke(app, ["status", str(file), "--results", str(results), "--page"])
    assert ran.stdout == f"{page}: 2 of 2 planned runs\n"
    assert seeds(page) == {"base": "run", "clip": "run", "troll": "run"}


def test_a_base_model_that_is_not_graded_yet_and_a_run_of_other_settings_do_not_count(file, results, finish):
    finish("clip", "troll", "base")
    (results / "reduced/base/tiny/chains/grades.json").unlink()
    shutil.rmtree(results / "reduced/runs" / RUN.format("troll"))
    finish("troll", conditions={"stale": {"learning_rate": 9e-3, "mini_batches": 2, "num_iterations": 2}})
    page, ended, planned = write_finished(read_experiment(file), results, command="again")
    assert (ended, planned) == (1, 2)
    assert seeds(page) == {"clip": "run", "troll": "not run"}


def test_a_group_has_a_page_of_its_own(file, results, finish):
    finish("clip", "base")
    page, ended, planned = write_finished(read_experiment(file), results, ["only_clip"], command="again")
    assert page == results / "reduced/groups/only_clip/finished/page.html" and (ended, planned) == (1, 1)
    assert set(seeds(page)) == {"base", "clip"}
    with refused("only_troll", "one group"):
        write_finished(read_experiment(file), results, ["only_clip", "only_troll"], command="again")


def test_without_a_finished_run_nothing_is_written(file, results, finish):
    finish("base")
    before = files(results)
    ran = CliRunner().invoke(app, ["status", str(file), "--results", str(results), "--page"])
    error_of(ran, "none of 2 planned runs is finished")
    assert files(results) == before and not (results / "reduced/finished").exists()
    error_of(CliRunner().invoke(app, ["status", str(file), "--page", "--watch"]), "--page and --watch")
