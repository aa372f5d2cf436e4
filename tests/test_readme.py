"""What the README says holds: examples run, links lead somewhere, generated parts are up to date."""

import ast
import json
import os
import re
import subprocess
import sys

import pytest

BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def readme(repository):
    return (repository / "README.md").read_text()


@pytest.mark.slow
def test_the_example_of_the_trainer_runs_as_it_stands(repository, tmp_path):
    page = (repository / "docs/trainer.md").read_text()
    example = next(block for block in BLOCK.findall(page) if "TrustRegionTrainer(" in block)
    environment = os.environ | {
        "PYTHONPATH": str(repository),
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
    }
    result = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr[-3000:]
    logged = [ast.literal_eval(line) for line in result.stdout.splitlines() if line.startswith("{'loss'")]
    assert len(logged) == 3
    assert any(float(row["kl_to_old_max"]) > 0.05 and float(row["clip_fraction"]) > 0 for row in logged)
    assert all(float(row["kl_projected_max"]) < 0.05 * (1 + 1e-4) for row in logged)


def test_the_rule_of_the_readme_is_a_rule(readme, tmp_path, monkeypatch):
    from troll import TrustRegionConfig
    from troll.algorithms.trust_regions import make_trust_region

    monkeypatch.chdir(tmp_path)
    example = next(block for block in BLOCK.findall(readme) if "TokenLosses(" in block)
    (tmp_path / "my_rules.py").write_text(example)
    assert "my_rules.py:soft_wall" in readme
    assert make_trust_region("my_rules.py:soft_wall", coefficient=2.0).settings == {"coefficient": 2.0}
    args = TrustRegionConfig("out", bf16=False, trust_region="my_rules.py:soft_wall")
    assert args.resolve().rule_settings == {"coefficient": 1.0}


def test_it_counts_the_rules(readme, repository):
    reference = (repository / "docs/configuration.md").read_text()
    table = reference.split("\n## Trust regions\n")[1].split("\n## ")[0]
    rules = re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)
    assert "troll" in rules and f"{len(rules) - 1} other rules" in readme
    plans = [json.loads(path.read_text()) for path in repository.glob("results/released/*/plan.json")]
    run = {entry["rule"] for plan in plans for entry in plan["expected"]}
    assert run <= {*rules} and f"{len(run)} of the {len(rules)} have\nresults so far" in readme


def test_its_options_of_the_trainer_exist(readme):
    from troll import TrustRegionConfig

    example = next(block for block in BLOCK.findall(readme) if "TrustRegionConfig(" in block)
    names = {"TrustRegionConfig": lambda **options: TrustRegionConfig(bf16=False, **options)}
    exec(example, names)
    assert names["args"].resolve().rule_settings["kl_bound"] == 0.05


def test_it_is_short_and_begins_with_the_answer_and_the_commands(readme):
    lines = readme.splitlines()
    assert len(lines) <= 120
    first = [lines.index(text) for text in ("<!-- generated:front -->", "## Reproduce")]
    commands = [n for n, line in enumerate(lines) if line.startswith(("make results ", "make test "))]
    assert first[0] < 12 and first[0] < commands[0] < first[1] < 50
    rows = [line for line in lines[first[0] : first[1]] if line.startswith("| ")][2:]
    assert 1 <= len(rows) <= 7


def test_the_findings_count_as_many_claims_as_the_front_page(readme, repository):
    pattern = re.compile(r"^Of \d+ claims with runs: .+? have no runs yet\.", re.MULTILINE)
    (here,), there = pattern.findall(readme), pattern.findall((repository / "docs/findings.md").read_text())
    assert there == [here]


def test_the_generated_blocks_are_those_of_the_tracked_table(repository, tracked, troll):
    root = repository / "results/released/testbed"
    names = (
        *("README.md", "docs/findings.md", "docs/leaderboard.md", "docs/results.md"),
        "results/released/README.md",
    )
    pages = [repository / name for name in names]
    arguments = ["--check", *pages, "--results", root]
    plans = [name for name in tracked if re.fullmatch("results/released/[^/]+/plan.json", name)]
    others = [(repository / path).parent for path in plans]
    arguments += [f"--also={path}" for path in others if path != root]
    result = troll("release", "readme", *arguments)
    assert result.returncode == 0, result.stderr
