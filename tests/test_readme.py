"""What the README says holds: examples run, links lead somewhere, generated parts are up to date."""

import re
import subprocess
import sys

import pytest

BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def readme(repository):
    return (repository / "README.md").read_text()


@pytest.mark.slow
def test_the_drop_in_example_runs(readme, tiny_base, tmp_path):
    example = next(block for block in BLOCK.findall(readme) if "TrustRegionTrainer(" in block)
    assert len([line for line in example.splitlines() if line.strip()]) <= 20
    assert "Qwen/Qwen3-0.6B" in example
    example = example.replace("Qwen/Qwen3-0.6B", str(tiny_base))
    # A machine without a GPU, and a model whose context is shorter than TRL's default response.
    example = example.replace(
        'output_dir="out"', 'output_dir="out", use_cpu=True, bf16=False, max_completion_length=8'
    )
    result = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    assert "kl_projected" in result.stdout


def test_the_rule_of_the_readme_is_a_rule(readme):
    from troll.algorithms.trust_regions import TokenLosses, make_trust_region, register, registry

    example = next(block for block in BLOCK.findall(readme) if "register(" in block)
    exec(example, {"TokenLosses": TokenLosses, "register": register})
    try:
        assert make_trust_region("my-rule", coefficient=2.0).settings == {"coefficient": 2.0}
    finally:
        registry._REGISTRY.pop("my-rule")


def test_links_to_files_lead_somewhere(readme, repository):
    targets = re.findall(r"\]\((?!http)([^)#]+)\)", readme)
    assert targets
    for target in targets:
        assert (repository / target).exists(), target


def test_the_generated_blocks_are_those_of_the_tracked_table(repository):
    root = repository / "results/testbed"
    command = [sys.executable, "-m", "troll.cli", "readme", "--check", str(repository / "README.md")]
    command += ["--results", str(root), "--ledger", str(repository / "workflow/config/claims.yaml")]
    others = sorted(path.parent for path in repository.glob("results/testbed*/plan.json"))
    command += [f"--evidence={path}" for path in others if path != root]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
