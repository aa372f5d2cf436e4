"""The package's rooms: imports point to rooms listed before, and never in a circle."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

import troll.algorithms

ROOT = Path(__file__).parents[1] / "troll"
ROOMS = (
    "common",
    "algorithms",
    "tasks",
    "experiment",
    "training",
    "evaluation",
    "analysis",
    "operations",
    "cli",
    "warm",
)
"""From the inside out: a room imports only from itself and from those before it."""


def _name(path):
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {_name(path): path for path in ROOT.rglob("*.py")}


def _imported(name, path):
    """The package's own modules that a module imports, wherever in it: at the top or inside of functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: imports are absolute"
            targets = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            while target and target not in MODULES:
                target = target.rpartition(".")[0]
            if target and target not in (name, "troll"):
                yield target


GRAPH = {name: set(_imported(name, path)) for name, path in MODULES.items()}


def _room(name):
    return ROOMS.index(name.split(".")[1])


def test_the_root_holds_the_rooms_and_nothing_else():
    entries = {path.name for path in ROOT.iterdir()} - {"__init__.py", "py.typed", "__pycache__"}
    assert entries <= set(ROOMS) and len(entries) <= 10
    assert set(ROOMS) - {"warm"} <= entries


def test_imports_point_to_rooms_before():
    up = [
        f"{name} imports {target}"
        for name, targets in GRAPH.items()
        if name != "troll"
        for target in targets
        if _room(target) > _room(name)
    ]
    assert not up, up


def test_no_module_imports_itself_through_others():
    try:
        graphlib.TopologicalSorter(GRAPH).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def _loaded(program):
    """The heavy libraries that a program has loaded at its end."""
    heavy = ("torch", "transformers", "trl", "datasets", "pandas", "scipy", "matplotlib")
    shown = f"{program}\nimport sys\nprint(*[name for name in {heavy!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_analysis_needs_no_torch():
    names = [name for name in MODULES if name.startswith("troll.analysis")]
    assert not _loaded("import " + ", ".join(names)) & {"torch", "transformers", "trl", "datasets"}
    reached, waiting = set(), list(names)
    while waiting:  # what its functions import later counts, too
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += GRAPH[name]
    heavy = [
        name
        for name in reached
        for node in ast.walk(ast.parse(MODULES[name].read_text()))
        for target in _targets(node)
        if target.split(".")[0] in ("torch", "transformers", "trl")
    ]
    assert not heavy, heavy


def _targets(node):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []


@pytest.mark.parametrize(
    "program",
    [
        "import troll.cli.app",
        "import troll.experiment.experiment, troll.experiment.settings, troll.experiment.budget",
        "from pathlib import Path\nfrom troll.experiment.files import read_experiment\n"
        "read_experiment(Path('workflow/config/testbed.yaml')).runs()",
    ],
)
def test_light_commands_load_no_heavy_library(program, repository, monkeypatch):
    monkeypatch.chdir(repository)
    assert not _loaded(program)


ALGORITHMS = Path(troll.algorithms.__file__).parent


def test_importing_the_package_does_not_import_torch():
    check = "import sys, troll; assert 'torch' not in sys.modules; assert callable(troll.project)"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_algorithms_import_torch_and_what_checks_settings_and_nothing_else():
    # triton comes with torch on CUDA machines and is imported only there.
    allowed = {"torch", "triton", "pydantic", "pydantic_core", *sys.stdlib_module_names}
    # The last one reads the files of users, so that nothing here does.
    common = ("troll.common.errors", "troll.common.settings", "troll.common.user_files")
    for path in ALGORITHMS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            for name in _targets(node):
                inside = name.startswith("troll.algorithms") or name in common
                assert inside or name.partition(".")[0] in allowed, f"{path.name} imports {name}"
