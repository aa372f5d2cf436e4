"""A second experiment takes the base models of the first: by the workflow, with its line of progress."""

import json
import os
import shutil

import pytest
import yaml
from forked_snakemake import named_server, snakemake

pytestmark = [pytest.mark.snakemake, pytest.mark.slow]


@pytest.fixture
def make(repository, tmp_path):
    """Makes the base model of an experiment of this name; returns its directory and what was said."""
    for name in ("workflow", "envs"):
        shutil.copytree(repository / name, tmp_path / name)
    shutil.copy(repository / "Snakefile", tmp_path)
    experiment = yaml.safe_load((repository / "tests/workflow/reduced.yaml").read_text())
    # A model and its steps must only be the same: they need not have learnt anything.
    experiment["models"]["tiny"] |= {"layers": 1, "width": 64, "heads": 2, "key_value_heads": 1}
    experiment["models"]["tiny"]["supervised"] |= {"steps": 4, "demonstrations_for_tokenizer": 500}

    def run(name, train, **variables):
        experiment["experiment"], experiment["tasks"]["chains"]["train"] = name, train
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(experiment))
        target = f"results/{name}/base/tiny/chains"
        result = snakemake(
            *("--cores", "1", f"{target}/manifest.json", "--configfile", f"{name}.yaml"),
            cwd=tmp_path,
            env=os.environ | named_server() | {"TROLL_BASE_MODELS": ""} | variables,
        )
        assert result.returncode == 0, result.stderr[-4000:]
        return tmp_path / target, result.stderr

    return run


def test_a_second_experiment_begins_at_once(make, tmp_path):
    first, said = make("first", 32)
    assert "taken from" not in said and "made_by" not in json.loads((first / "manifest.json").read_text())
    (stored,) = tmp_path.glob("resources/base-models/chains-*")
    second, said = make("second", 16)
    (line,) = [line for line in said.splitlines() if line.startswith("[base]")]
    assert line.startswith(f"[base] tiny/chains/base: taken from {stored.relative_to(tmp_path)}, trained in ")
    assert "made_by" in json.loads((second / "manifest.json").read_text())
    assert "[train]" not in (tmp_path / "results/second/logs/base_model/tiny/chains.log").read_text()
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (second / "checkpoint" / name).read_bytes() == (first / "checkpoint" / name).read_bytes()
    other, said = make("third", 16, TROLL_BASE_MODELS="0")
    assert "taken from" not in said and "made_by" not in json.loads((other / "manifest.json").read_text())
    assert (other / "checkpoint/model.safetensors").read_bytes() == (
        first / "checkpoint/model.safetensors"
    ).read_bytes()
