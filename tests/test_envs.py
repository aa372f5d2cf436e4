"""One set of pins: what pip, conda and the container recipes install is the same."""

import os
import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from refusals import error_of


@pytest.fixture(scope="module")
def writer(script):
    return script("envs/write_conda.py")


@pytest.fixture
def set_up(repository, tmp_path):
    """Runs envs/setup.sh for an environment in a directory of this name, with these variables."""

    def run(name, **variables):
        clean = {name: text for name, text in os.environ.items() if name not in ("TORCH", "VLLM")}
        environment = clean | {"PYTHON": sys.executable} | variables
        command = ["bash", str(repository / "envs/setup.sh"), str(tmp_path / name)]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    return run


def test_conda_files_are_those_of_the_pins(writer, repository):
    for name, text in writer.files().items():
        assert (repository / "envs" / name).read_text() == text, f"`make docs` writes envs/{name}"


def test_conda_installs_the_package_from_the_checkout_that_is_named(writer, tmp_path):
    (tmp_path / "python").write_text('#!/bin/sh\necho "$@" >"$ASKED"\n')
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "there/troll").mkdir(parents=True)
    script, asked = writer.files()["train.post-deploy.sh"], tmp_path / "asked"
    base = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "ASKED": str(asked)}
    for named, expected in ((str(tmp_path / "there"), 0), (None, 1)):
        asked.unlink(missing_ok=True)
        environment = base | ({"TROLL_CHECKOUT": named} if named else {})
        result = subprocess.run(
            ["bash", "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True
        )
        assert result.returncode == expected
        assert asked.exists() == bool(named)
        if named:
            assert asked.read_text().strip().endswith(f"--editable {named}")
        else:
            error_of(result, "TROLL_CHECKOUT=/path/to/checkout")


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


@pytest.mark.parametrize(
    ("pins", "name"),
    [(f"constraints{kind}.txt", f"requirements{kind}.txt") for kind in ("", "-vllm")],
)
def test_what_is_installed_are_the_pins_each_with_hashes(writer, repository, pins, name):
    text = (repository / "envs" / name).read_text()
    entries = re.findall(r"^([\w.-]+)==(\S+).*((?:\\\n +--hash=sha256:[0-9a-f]{64} ?)+)$", text, re.MULTILINE)
    assert len(entries) == len(re.findall("==", text.split("\n", 2)[2])) - text.count("sys_platform ==")
    versions = {canonicalize_name(package): version for package, version, _ in entries}
    wanted = writer.pins(pins)
    wanted.pop("torch", None)  # its builds come from several indexes
    assert versions == wanted, f"`python envs/write_requirements.py` writes envs/{name}"


def test_nothing_is_loaded_that_can_run_code(repository):
    for path in [*(repository / "troll").rglob("*.py"), *(repository / "workflow").rglob("*.py")]:
        loads = re.findall(r"torch\.load\((?:[^()]|\([^()]*\))*\)", path.read_text())
        assert all("weights_only=True" in call for call in loads), path


@pytest.mark.parametrize("name", ["Dockerfile", "apptainer.def"])
def test_recipes_use_the_same_set_up_and_name_base_images_by_digest(repository, name):
    recipe = (repository / "envs" / name).read_text()
    (image,) = re.findall(r"^from:? (\S+)", recipe, re.IGNORECASE | re.MULTILINE)
    assert re.fullmatch(r"[\w.:-]+@sha256:[0-9a-f]{64}", image) and "envs/setup.sh" in recipe


def test_a_directory_that_is_no_environment_is_left_alone(set_up, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home/precious").write_text("mine")
    error_of(set_up("home"), tmp_path / "home", "make env VENV=.venv")
    assert (tmp_path / "home/precious").read_text() == "mine"


@pytest.mark.parametrize(
    ("gpu", "chosen", "build", "torch_there"),
    [
        (True, {}, "", False),
        (True, {"TORCH": "cpu"}, "+cpu", False),
        (False, {}, "+cpu", False),
        (False, {"TORCH": "cuda"}, "", False),  # a login node
        (False, {"TORCH": "cuda"}, "", True),  # a build for CPUs was installed before
        (False, {"VLLM": "1"}, "", False),
    ],
    ids=["default", "cpu", "no-gpu", "cuda", "instead", "vllm"],
)
def test_the_build_of_torch_is_that_of_the_machine_or_the_one_chosen(
    set_up, repository, tmp_path, gpu, chosen, build, torch_there
):
    asked, venv = tmp_path / "asked", tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    # Its torch, if there is one, is a build for CPUs.
    missing = "" if torch_there else '*"import sys, torch"*) exit 1 ;; '
    answers = f'case "$*" in {missing}*"not torch.version.cuda"*) exit 1 ;; esac\n'
    scripts = {
        venv / "bin/python": f'#!/bin/sh\necho "$@" >>"$ASKED"\n{answers}',
        tmp_path / "nvidia-smi": f"#!/bin/sh\nexit {0 if gpu else 1}\n",
        tmp_path / "bwrap": "#!/bin/sh\n",
    }
    for path, text in scripts.items():
        path.write_text(text)
        path.chmod(0o755)
    result = set_up("venv", PATH=f"{tmp_path}:{os.environ['PATH']}", ASKED=str(asked), **chosen)
    assert result.returncode == 0, result.stderr
    installed = re.findall(r" (torch==\S+)$", asked.read_text(), re.MULTILINE)
    pins = (repository / f"envs/constraints{'-vllm' if 'VLLM' in chosen else ''}.txt").read_text()
    version = re.search(r"^torch==([\d.]+)", pins, re.MULTILINE)[1]
    assert installed == [f"torch=={version}{build}"]
    assert ("uninstall -qq -y torch" in asked.read_text()) == ("TORCH" in chosen)


def test_an_unknown_build_of_torch_is_refused_before_anything_is_installed(set_up, tmp_path):
    error_of(set_up("venv", TORCH="gpu"), "TORCH", "gpu", "cpu or cuda")
    assert not (tmp_path / "venv").exists()
