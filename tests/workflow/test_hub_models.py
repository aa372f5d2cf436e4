"""A model of the hub from download to table, with real data: a mirror stands in for the hub, offline."""

import json
import os
import re
import shutil

import pytest
import yaml
from forked_snakemake import named_server
from forked_snakemake import snakemake as forked_snakemake

from troll.analysis.data.tidy import read_tidy

TEMPLATE = "{% for m in messages %}<user>{{ m.content }}</user>{% endfor %}<answer>"


@pytest.fixture(scope="module")
def models(tiny_base, tmp_path_factory):
    """A mirror with a random model that has no chat template, and another's tokenizer that has one."""
    from troll.experiment.model_settings import ModelSettings
    from troll.training.base_model import new_model
    from troll.training.outputs import save_model
    from troll.training.tokenizer import load_tokenizer

    mirror = tmp_path_factory.mktemp("mirror")
    tokenizer = load_tokenizer(tiny_base)
    sizes = {"vocabulary": 400, "layers": 1, "width": 64, "heads": 2, "key_value_heads": 1, "context": 4096}
    model = new_model(ModelSettings(**sizes), tokenizer, seed=3)
    save_model(model, tokenizer, mirror / "example/plain")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(mirror / "example/chatty")
    shutil.copy(mirror / "example/plain/config.json", mirror / "example/chatty")
    return mirror


def snakemake(directory, *arguments, **environment):
    environment = {**os.environ, **named_server(), "HF_HUB_OFFLINE": "1", **environment}
    return forked_snakemake("--cores", "2", *arguments, cwd=directory, timeout=1200, env=environment)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.snakemake
@pytest.mark.timeout(1300)
def test_a_model_of_the_hub_is_trained_and_evaluated_on_real_data(checkout, models, real_data):
    mirrors = {"TROLL_MODEL_MIRROR": str(models), "TROLL_DATA_MIRROR": str(real_data)}
    result = snakemake(checkout, "smoke", "--configfile", "tests/workflow/hub.yaml", **mirrors)
    assert result.returncode == 0, result.stderr[-4000:]
    assert "GPU-hours" not in result.stderr  # of models this small there is nothing to budget
    root = checkout / "results/hub"

    base = root / "base/plain/gsm8k"
    weights = base / "checkpoint/model.safetensors"
    assert weights.is_symlink() and weights.resolve().is_relative_to(models)
    assert (base / "checkpoint/chat_template.jinja").read_text() == TEMPLATE
    provenance = json.loads((base / "manifest.json").read_text())["hub"]
    assert provenance["id"] == "example/plain" and provenance["source"] == "mirror"
    assert provenance["files"]["model.safetensors"]["bytes"] == weights.stat().st_size

    train = [json.loads(line) for line in (root / "data/gsm8k/train.jsonl").read_text().splitlines()]
    assert len(train) == 24 and "Please reason step by step" in train[0]["prompt"]
    for method in ("clip", "troll"):
        run = root / f"runs/plain/gsm8k/{method}/grpo/stale1x/seed0"
        config = yaml.safe_load((run / "run.yaml").read_text())
        assert config["model"] == {
            "name": "plain",
            "hub": {"id": "example/plain", "chat_template_of": "example/chatty"},
        }
        manifest = json.loads((run / "manifest.json").read_text())
        assert 0 < manifest["overlong_train"] < 20, "some prompts have more than 300 tokens"
        assert len((run / "metrics.jsonl").read_text().splitlines()) == 2
        for kind in ("results_*.json", "samples_gsm8k_*.jsonl"):
            assert len(list((run / "lm_eval").glob(f"*/{kind}"))) == 1
        suites = json.loads((run / "suites/graded.json").read_text())
        assert [len(problem["passed"]) for problem in suites["amc23"]["problems"].values()] == [2] * 4

    group = root / "groups/smoke"
    runs = read_tidy(group).runs
    assert set(runs["trust_region"]) == {"base", "clip", "troll"}
    tested = set(runs.loc[runs["source"] == "test", "metric"])
    assert {"amc23/pass@1", "amc23/official/pass@1", "official/pass@1", "disagreements"} <= tested
    main = (group / "tables/main.md").read_text()
    assert "gsm8k" in main and "| Official pass@1 (%) | pass@1 (%) |" in main
    assert not (root / "tidy").exists(), "the group is a part of the experiment"

    again = snakemake(checkout, "-n", "smoke", "--configfile", "tests/workflow/hub.yaml", **mirrors)
    assert "Nothing to be done" in again.stdout + again.stderr


def planned(result, rule):
    found = re.search(rf"^{re.escape(rule)}\s+(\d+)$", result.stdout + result.stderr, re.MULTILINE)
    return int(found[1]) if found else 0


@pytest.mark.slow
@pytest.mark.snakemake
def test_a_selection_plans_its_runs_and_a_seed_adds_its_own(checkout):
    arguments = ("-n", "-p", "paper_ablations", "--configfile", "workflow/config/paper.yaml")
    one, two = snakemake(checkout, *arguments), snakemake(checkout, *arguments, "--config", "seeds=[0,1]")
    for result in (one, two):
        assert result.returncode == 0, result.stderr[-2000:]
        budget = result.stderr.split("How the estimates")[0]
        assert "paper_ablations" in budget, "the budget comes first"
        assert "paper_sizes" not in budget, "it is that of the group alone"
    assert [planned(result, "train") for result in (one, two)] == [7, 14]
    for rule in ("hub_model", "problems", "collect-paper_ablations"):
        assert planned(one, rule) == planned(two, rule) == 1, rule
    assert "--table published_ablations" in one.stdout + one.stderr
