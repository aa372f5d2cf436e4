"""The workflow as others use it: as a module, from Snakemake's catalogue, in a container."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
import yaml
from forked_snakemake import named_server
from forked_snakemake import snakemake as forked_snakemake

from troll import warm

pytestmark = pytest.mark.snakemake

EXPERIMENT = """
experiment: mine
seeds: [0, 1]
tasks:
  chains: {train: 16, validation: 2, test: 4, settings: {operations: [2]}}
models:
  tiny:
    {vocabulary: 400, layers: 1, width: 32, heads: 2, key_value_heads: 1,
     supervised: {steps: 2, batch_size: 4, demonstrations_for_tokenizer: 300}}
trust_regions:
  soft-wall: {rule: "my_rules.py:soft_wall", settings: {coefficient: 0.5}}
estimators: {grpo: {rule: grpo}}
conditions: {stale: {learning_rate: 1.0e-3}}
training:
  {rollout_batches: 1, prompts_per_batch: 2, responses_per_prompt: 2, mini_batches: 2, max_response_tokens: 4,
   validate_every: 1, checkpoint_every: 1}
evaluation: {samples: 1}
claims: [my_claims.yaml]
"""
CLAIM = {
    "id": "moves-little",
    "sentence": "The soft wall stays within 1 nat of the old policy",
    "source": "a test",
    "trust_region": "soft-wall",
    "baseline": 1.0,
    "metric": "late_kl",
    "direction": "lower",
    "least_seeds": 2,
}


def snakemake(folder, *arguments, **settings):
    return forked_snakemake("--cores", "2", *arguments, cwd=folder, timeout=900, **settings)


def example(repository, first):
    """A block of the page on adding things that begins with this line."""
    page = (repository / "docs/adding.md").read_text()
    return next(body for body in re.findall(r"```\w*\n(.*?)```", page, re.DOTALL) if body.startswith(first))


@pytest.fixture
def folder(repository, tmp_path):
    """A folder with a Snakefile of five lines, an experiment, a claim, and the rule of the worked example."""
    snakefile = example(repository, "# file: Snakefile").partition("\n")[2]
    assert len([line for line in snakefile.splitlines() if line.strip()]) == 5
    (tmp_path / "Snakefile").write_text(snakefile.replace("/path/to/checkout", str(repository)))
    (tmp_path / "my_rules.py").write_text(example(repository, "# file: my_rules.py"))
    (tmp_path / "my_experiment.yaml").write_text(EXPERIMENT)
    (tmp_path / "my_claims.yaml").write_text(yaml.safe_dump([CLAIM]))
    return tmp_path


def test_a_module_plans_what_its_folder_says(folder):
    result = snakemake(folder, "-n")
    assert result.returncode == 0, result.stderr[-3000:]
    assert re.search(r"^train +2$", result.stdout + result.stderr, re.MULTILINE)
    assert "results/mine/page.html" in result.stdout + result.stderr


@pytest.mark.slow
def test_a_module_runs_to_a_verdict_in_a_folder_of_its_own(folder):
    result = snakemake(folder, "claims", env=os.environ | named_server() | {"TROLL_BASE_MODELS": ""})
    assert result.returncode == 0, result.stderr[-4000:]
    assert list(folder.glob("resources/base-models/chains-*/record.json")), "where the folder's owner works"
    (claim,) = json.loads((folder / "results/mine/claims.json").read_text())["claims"]
    assert claim["verdict"] == "supported everywhere", claim["reason"]
    runs = folder / "results/mine/runs/tiny/chains/soft-wall/grpo/stale"
    assert len(list(runs.glob("seed[01]/manifest.json"))) == 2
    assert "my_rules.py:soft_wall" in (runs / "seed0/run.yaml").read_text()
    assert "Finished jobid" in result.stderr, "what the terminal shows is for the folder's owner to say"


@pytest.mark.skipif(not warm.usable(), reason="no warm server is started on this machine")
def test_jobs_of_a_module_are_forked_too_and_the_users_own_hook_is_called(folder):
    own = """
onstart:
    open("begun", "w").close()

"""
    ask = """
rule which:
    output: "which"
    shell: "command -v troll > {output}"
"""
    path = folder / "Snakefile"
    path.write_text(own + path.read_text() + ask)
    result = snakemake(folder, "which", env=os.environ)  # without the tests' own server
    assert result.returncode == 0, result.stderr[-3000:]
    assert (folder / "which").read_text().endswith("/warm/bin/troll\n"), "the client, not the program"
    assert (folder / "begun").exists()


def test_it_is_what_the_catalogue_asks_for(repository):
    assert (repository / "workflow/Snakefile").is_file() and (repository / "config/README.md").is_file()
    readme = (repository / "README.md").read_text().lower()
    assert "snakemake" in readme and "workflow" in readme
    assert list((repository / "workflow/rules").glob("*.smk"))
    usage = yaml.safe_load((repository / ".snakemake-workflow-catalog.yml").read_text())["usage"]
    assert usage["software-stack-deployment"] == {"conda": True, "report": True}, "no image is published"
    # What Snakedeploy copies, and names in the Snakefile that it writes.
    default = (repository / "workflow/config/testbed.yaml").read_text()
    copied = (repository / "config/config.yaml").read_text()
    assert copied == default.replace("=../../", "=../", 1), "`make docs` writes it"


FAKE = """#!/bin/sh
[ "$1" = --version ] && { echo apptainer version 1.3.0; exit; }
echo "$@" >> container
while [ "$1" != bash ]; do shift; done
exec "$@"
"""


def test_containers_are_used_where_they_are_asked_for_and_nowhere_else(repository, tmp_path):
    """With a program that stands for Apptainer, which need not be here: what it is asked to run, it runs."""
    binary = tmp_path / "bin/apptainer"
    binary.parent.mkdir()
    binary.write_text(FAKE)
    binary.chmod(0o755)
    (tmp_path / "my.sif").touch()
    path = f"{binary.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    target = "results/reduced/runs/tiny/chains/clip/grpo/stale/seed0/run.yaml"
    common = ["-s", str(repository / "workflow/Snakefile"), target, "--configfile"]
    common.append(str(repository / "tests/workflow/reduced.yaml"))
    asked = {"env": os.environ | {"PATH": path, "TROLL_CONTAINER": str(tmp_path / "my.sif")}}
    result = snakemake(tmp_path, *common, "--sdm", "apptainer", **asked)
    assert result.returncode == 0, result.stderr[-3000:]
    assert (tmp_path / target).exists()
    assert f"{tmp_path}/my.sif bash -c" in (tmp_path / "container").read_text()
    # Without them the rules have no image, so that nothing that is there has to be made again for its sake.
    (tmp_path / target).unlink()
    (tmp_path / "container").unlink()
    result = snakemake(tmp_path, *common, **asked)
    assert result.returncode == 0, result.stderr[-3000:]
    assert (tmp_path / target).exists() and not (tmp_path / "container").exists()
