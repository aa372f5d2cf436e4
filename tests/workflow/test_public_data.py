"""What the workflow does with public data sets: all of it where they are, one line where they are not."""

import os
import re
import shutil

import pandas as pd
import pytest
from forked_snakemake import named_server
from forked_snakemake import snakemake as forked_snakemake

from troll.tasks.sandbox.pool import sandbox_available

pytestmark = [
    pytest.mark.snakemake,
    pytest.mark.slow,
    pytest.mark.skipif(not sandbox_available()[0], reason=f"no sandbox: {sandbox_available()[1]}"),
]
TABLE = "results/public/public/benchmarks.csv"


@pytest.fixture
def checkout(repository, tmp_path):
    """A directory with the workflow but without any results."""
    shutil.copy(repository / "Snakefile", tmp_path)
    for name in ("workflow", "envs", "tests/workflow"):
        shutil.copytree(repository / name, tmp_path / name)
    return tmp_path


def snakemake(directory, *arguments, mirror=None):
    environment = {key: value for key, value in os.environ.items() if key != "TROLL_DATA_MIRROR"}
    environment |= named_server() | ({"TROLL_DATA_MIRROR": str(mirror)} if mirror else {})
    given = ("--cores", "2", "--configfile", "tests/workflow/public.yaml", *arguments)
    result = forked_snakemake(*given, cwd=directory, env=environment, timeout=1000)
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout + result.stderr


def planned(text):
    """How many jobs of each rule a dry run announces."""
    return {rule: int(count) for rule, count in re.findall(r"^(\w+)\s+(\d+)$", text, re.MULTILINE)}


def test_without_data_nothing_is_sampled_or_audited_and_the_table_says_why(checkout):
    jobs = planned(snakemake(checkout, "-n"))
    assert jobs["benchmarks"] == 1
    assert not {"audit", "oracle", "sample_benchmark", "grade_benchmark", "benchmark_problems"} & set(jobs)
    snakemake(checkout, "--", TABLE)
    text = (checkout / TABLE).with_suffix(".md").read_text()
    assert text.strip() == "Not run: audit, humaneval+, omni-math; TROLL_DATA_MIRROR is not set."


def test_with_data_all_of_it_is_planned(checkout):
    jobs = planned(snakemake(checkout, "-n", mirror=checkout))
    assert {rule: jobs.get(rule) for rule in ("audit", "oracle", "sample_benchmark", "benchmarks")} == {
        "audit": 1,
        "oracle": 2,
        "sample_benchmark": 2,  # the base model of the task of the same kind
        "benchmarks": 1,
    }


@pytest.mark.nightly  # by day its jobs are planned, and graders tried on the same data elsewhere
@pytest.mark.timeout(1000)
def test_oracle_and_base_models_are_graded_on_real_benchmarks(checkout, real_data):
    snakemake(checkout, "--", TABLE, mirror=real_data)
    frame = pd.read_csv((checkout / TABLE).with_suffix(".csv")).set_index(["task", "answers"])
    bases = {"omni-math ‡": "chains", "humaneval+": "functions"}
    assert set(frame.index) == {
        (task, answers) for task, of in bases.items() for answers in ("oracle", f"base of {of} (tiny)")
    }
    assert (frame["problems"] == 4).all() and (frame["data"] == "mirror").all()
    assert (frame.xs("oracle", level="answers")["pass@1"] == 1.0).all()
    assert (frame.drop("oracle", level="answers")["pass@1"] == 0.0).all()
    both = ["official", "official_base", "base/pass@1"]
    assert frame.loc[("humaneval+", "oracle"), both].tolist() == [1.0, 1.0, 1.0]
    assert (frame["official"] == frame["pass@1"]).all() and (frame["disagreements"] == 0).all()
    assert list((checkout / TABLE).parent.glob("omni-math/oracle/lm_eval/*/results_*.json"))
    assert "(omni-math: the 2,821" in (checkout / TABLE).with_suffix(".md").read_text()
