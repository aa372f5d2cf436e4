"""The package as it is installed; other tests use it where it lies, and miss no file that a wheel lacks."""

import html
import os
import shutil
import subprocess
import sys

import pytest
import yaml

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
PIP = [sys.executable, "-m", "pip"]
HERE = ["--quiet", "--no-deps", "--no-index"]


@pytest.fixture(scope="module")
def source(repository, tmp_path_factory):
    """What a wheel is built from, as a fresh clone has it."""
    source = tmp_path_factory.mktemp("source")
    leftovers = shutil.ignore_patterns("__pycache__", ".*")
    shutil.copytree(repository / "troll", source / "troll", ignore=leftovers)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(repository / name, source)
    return source


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    directory = tmp_path_factory.mktemp("wheel")
    command = [*PIP, "wheel", *HERE, "--no-build-isolation", "--wheel-dir", str(directory), str(source)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (wheel,) = directory.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Runs `troll` of the installed wheel in a directory that has nothing of the repository."""
    target, elsewhere = (tmp_path_factory.mktemp(name) for name in ("site", "elsewhere"))
    command = [*PIP, "install", *HERE, "--target", str(target), str(wheel)]
    subprocess.run(command, check=True, capture_output=True)
    environment = os.environ | {"PYTHONPATH": str(target)}

    def troll(*arguments):
        program = "import troll, sys; assert troll.__file__.startswith(sys.argv.pop(1)); "
        program += "from troll.cli.app import main; main()"
        command = [sys.executable, "-c", program, str(target), *map(str, arguments)]
        ran = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    troll.directory = elsewhere
    return troll


def test_commands_need_nothing_but_the_package(installed, repository):
    for name in ("testbed", "paper"):
        shutil.copy(repository / f"workflow/config/{name}.yaml", installed.directory)
    assert "48 runs" in installed("check", "testbed.yaml")
    assert "GPU-hours" in installed("check", "paper.yaml", "--cost")
    schema = (repository / "troll/experiment/experiment.schema.json").read_text()
    installed("release", "schema", "--out", "schema.json")
    assert (installed.directory / "schema.json").read_text() == schema


def test_the_page_has_its_captions_claims_and_published_numbers(installed, repository):
    results = installed.directory / "testbed"
    shutil.copytree(
        repository / "results/released/testbed",
        results,
        ignore=shutil.ignore_patterns("runs", "base", "data", "logs", "figures", "page.html"),
    )
    installed("job", "report", results)
    page = (results / "page.html").read_text()
    claims = yaml.safe_load((repository / "troll/analysis/claims/claims.yaml").read_text())
    assert html.escape(claims[0]["sentence"]) in page
    assert "The testbed does not repeat the paper" in page
    assert "Model families (0 of 11 run here)" in page
