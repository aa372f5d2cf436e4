"""A rehearsal from the command to its report, on a small experiment; `make rehearsal` does paper.yaml."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import yaml
from forked_snakemake import named_server


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.snakemake
@pytest.mark.timeout(1300)
def test_a_small_experiment_is_rehearsed_to_its_page(repository, tmp_path):
    for name in ("workflow", "envs"):
        shutil.copytree(repository / name, tmp_path / name)
    shutil.copy(repository / "Snakefile", tmp_path)
    contents = yaml.safe_load((repository / "tests/workflow/rehearsal.yaml").read_text())
    # One model and one critic; several processes have tests of their own.
    contents["matrix"] = [{"models": ["Llama-3.2-3B"], "tasks": ["gsm8k"], "estimators": ["ppo-max"]}]
    contents["matrix"][0]["conditions"] = ["stale2x"]
    contents["training"]["gpus"], contents["published"] = 0, False
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(contents))
    command = [sys.executable, "-m", "troll.cli", "rehearse", "small.yaml", "--keep", "--cores", "2"]
    environment = os.environ | named_server() | {"HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1200
    )
    assert result.returncode == 0, result.stderr[-4000:]
    root = tmp_path / "results/rehearsal-small"
    report = json.loads((root / "rehearsal.json").read_text())
    assert report["passed"] and report["runs"] == report["planned"] == 2
    names = {check["name"] for check in report["checks"] if check["state"] == "ok"}
    assert {"runs", "models", "chat templates", "partitions", "figures"} <= names
    assert (root / "page.html").exists()
    assert "No number here means anything" in (root / "tables/main.md").read_text()
    run = next(root.glob("runs/*/*/troll/*/*/seed0"))
    assert json.loads((run / "manifest.json").read_text())["config"]["rehearsal"] is True
