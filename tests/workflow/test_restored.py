"""Targets beside the whole experiment look for restored runs and base models where the archive puts them."""

import re
import shutil
import subprocess
import sys

import pytest
import yaml

from troll.analysis.data.archive import archive_run
from troll.common.files import write_json
from troll.experiment.experiment import resolve, resolve_base
from troll.experiment.files import load_experiment, write_run_file
from troll.training.manifest import source_digest

pytestmark = pytest.mark.snakemake


@pytest.fixture
def archived(repository, tmp_path):
    """A checkout whose archive holds all runs and base models of an experiment with a group."""
    directory = tmp_path / "checkout"
    directory.mkdir()
    shutil.copy(repository / "Snakefile", directory)
    for name in ("workflow", "envs"):
        (directory / name).symlink_to(repository / name)
    contents = yaml.safe_load((repository / "tests/workflow/reduced.yaml").read_text())
    contents["tasks"].pop("functions")
    contents |= {"archive": True, "matrix": [{"group": "few", "trust_regions": ["clip"]}, {}]}
    (directory / "few.yaml").write_text(yaml.safe_dump(contents))
    experiment = load_experiment(directory / "few.yaml")
    evaluation = experiment.evaluation.model_dump() | {
        "max_tokens": experiment.training.max_response_tokens,
        "suites": {},
    }
    made = {f"runs/{run.run_id}": resolve(experiment, run) for run in experiment.runs()}
    bases = {
        f"base/{model}/{task}": resolve_base(experiment, model, task) for model, task in experiment.bases()
    }
    for name, config in {**made, **bases}.items():
        place = tmp_path / name
        digests = dict.fromkeys(("environment", "data", "base_model"), "d") | {"source": source_digest()}
        manifest = {"run_id": config.run_id, "config": config.model_dump(), "digests": digests}
        write_json(place / "manifest.json", manifest)
        problems = {"p": {"passed": [True], "status": ["passed"]}}
        write_json(place / "grades.json", {"metrics": {}, "problems": problems, "data_sha256": "d"})
        if name in made:
            write_run_file(place / "run.yaml", config)
            (place / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
        archive_run(place, directory / f"results/reduced/archive/{name}.zip", evaluation)
    return directory


def planned(directory, target):
    """What Snakemake would do for a target, commands included."""
    command = [sys.executable, "-m", "snakemake", "-n", "-p", "--cores", "1", "--configfile", "few.yaml"]
    result = subprocess.run(
        [*command, "--", target], cwd=directory, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout + result.stderr


def test_a_group_collects_the_directories_that_the_archive_fills(archived):
    plan = planned(archived, "few")
    (collect,) = re.findall(r"troll --log \S+ collect (.+) --out results/reduced/groups/few", plan)
    names = ["runs/tiny/chains/clip/grpo/stale/seed0", "base/tiny/chains"]
    assert collect.split() == [f"results/reduced/restored/{name}" for name in names]


def test_difficulty_reads_weights_and_samples_which_no_archive_holds(archived):
    plan = planned(archived, "difficulty")
    assert "difficulty results/reduced/base/tiny/chains --out" in plan
    assert re.search(r"^base_model +1$", plan, re.MULTILINE) and not re.search(
        r"^restore ", plan, re.MULTILINE
    )
