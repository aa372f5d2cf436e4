"""Claims before any run: a broken file is found at once, and so is a claim that no run is about."""

import subprocess
import sys

import pytest
import yaml
from typer.testing import CliRunner

from troll.cli.app import app
from troll.cli.claims_ahead import claims_in_words, claims_of, without_runs
from troll.common.errors import UserError
from troll.experiment.files import parse_experiment

CLAIM = {
    "id": "one",
    "sentence": "It ends above clip",
    "source": "us",
    "method": "troll",
    "baseline": "clip",
    "metric": "pass@1",
    "direction": "higher",
}


@pytest.fixture
def write(repository, tmp_path, monkeypatch):
    """Writes the reduced experiment with claims that differ from `CLAIM`; returns its path."""
    monkeypatch.chdir(tmp_path)

    def files(*changes):
        claims = [CLAIM | {"id": f"claim{number}"} | change for number, change in enumerate(changes)]
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(claims))
        data = yaml.safe_load((repository / "tests/workflow/reduced.yaml").read_text())
        path = tmp_path / "experiment.yaml"
        path.write_text(yaml.safe_dump(data | {"claims": ["mine.yaml"]}))
        return path

    return files


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methd": "troll"}, "mine.yaml: claim claim0: methd: unknown key 'methd'"),
        ({"direction": "up"}, "mine.yaml: claim claim0: direction: input should be 'higher'"),
    ],
)
def test_check_reads_the_claims_files(write, change, message):
    path = write(change)
    for words in (["check", str(path)], ["check", str(path), "--names"]):
        result = CliRunner().invoke(app, words)
        assert isinstance(result.exception, UserError) and message in str(result.exception)
        assert not result.stdout


@pytest.mark.parametrize(
    "change",
    [
        {"method": "trol"},
        {"baseline": "none"},
        {"where": {"condition": ["gentle"]}},
        {"where": {"experiment": ["testbed*"]}},
        {"baseline": "gspo*", "at_equal_kl": True},
        {"baseline": "tr*", "at_equal_kl": True},
    ],
)
def test_a_claim_that_no_run_is_about_is_named(write, change):
    path = write({}, change)
    experiment = parse_experiment(yaml.safe_load(path.read_text()), "x")
    claims = claims_of(experiment)
    assert [claim.id for claim in without_runs(claims, experiment)] == ["claim1"]
    shown = CliRunner().invoke(app, ["check", str(path)]).stdout.splitlines()[-1]
    assert shown == "1 of 2 claims has runs here; not claim1"


def test_claims_with_runs_are_none_of_these(write):
    equal = {"baseline": "cl*", "at_equal_kl": True}
    path = write({}, {"method": "tr*"}, {"baseline": "base"}, {"baseline": 0.5}, equal)
    experiment = parse_experiment(yaml.safe_load(path.read_text()), "x")
    assert claims_in_words(claims_of(experiment), experiment) == "5 of 5 claims have runs here"


@pytest.mark.snakemake
def test_snakemake_refuses_a_broken_claims_file_before_any_job(repository, write, tmp_path):
    write({"metric": 3})
    for name in ("Snakefile", "workflow", "envs"):
        (tmp_path / name).symlink_to(repository / name)
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--configfile", "experiment.yaml"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert result.returncode == 1
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert errors == ["error: mine.yaml: claim claim0: metric: input should be a valid string (found 3)"]
    assert not (tmp_path / "results").exists()
