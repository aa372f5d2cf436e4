"""One set of pins: what pip, conda and the container recipes install is the same."""

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


@pytest.fixture(scope="module")
def writer(repository):
    spec = importlib.util.spec_from_file_location("write_conda", repository / "envs/write_conda.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_conda_files_are_those_of_the_pins(writer, repository):
    for name, text in writer.files().items():
        assert (repository / "envs" / name).read_text() == text, f"`make docs` writes envs/{name}"


def test_every_environment_of_the_rules_is_written_with_torch_in_it(writer, repository):
    used = set()
    for path in (repository / "workflow/rules").glob("*.smk"):
        used |= set(re.findall(r"envs/(\w+\.yaml)", path.read_text()))
    assert used <= set(writer.files())
    for name in used:
        environment = yaml.safe_load(writer.files()[name])
        packages = environment["dependencies"][-1]["pip"]
        assert f"torch=={writer.pins()['torch']}" in packages, "both sets of pins have the same"
        assert not [line for line in packages if line.startswith(("--", "."))], "conda sees a copy elsewhere"


@pytest.mark.parametrize(
    ("name", "extras"),
    [
        ("constraints.txt", ("evaluate", "train", "analyse", "workflow", "test")),
        ("constraints-vllm.txt", ("evaluate", "train", "vllm")),
    ],
)
def test_pins_meet_every_requirement(writer, repository, name, extras):
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    wanted = [text for group in groups for text in group]
    pins = writer.pins(name)
    assert ("vllm" in pins) == ("vllm" in extras)
    for item in map(Requirement, wanted):
        if item.name != "troll":
            version = pins[canonicalize_name(item.name)]
            assert item.specifier.contains(version), f"{item} against {version}"


def test_recipes_use_the_same_set_up(repository):
    for name in ("Dockerfile", "apptainer.def"):
        assert "envs/setup.sh" in (repository / "envs" / name).read_text()


@pytest.mark.slow
def test_a_wheel_holds_every_file_of_the_package(repository, tmp_path):
    """Here the package is used where it lies; elsewhere a file that the wheel lacks is missed late."""
    source = tmp_path / "source"
    shutil.copytree(
        repository / "troll", source / "troll", ignore=shutil.ignore_patterns("__pycache__", ".*")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(repository / name, source)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(source)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("troll/")}
    files = {path.relative_to(source).as_posix() for path in (source / "troll").rglob("*") if path.is_file()}
    assert packed == files
    assert {"troll/py.typed", "troll/training/launch_configs/gpus2.yaml"} <= packed
