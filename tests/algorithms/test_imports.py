"""The algorithms stand on torch alone, and the package itself on nothing."""

import ast
import subprocess
import sys
from pathlib import Path

import troll.algorithms

ALGORITHMS = Path(troll.algorithms.__file__).parent


def test_importing_the_package_does_not_import_torch():
    check = "import sys, troll; assert 'torch' not in sys.modules; assert callable(troll.project)"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_algorithms_import_torch_and_nothing_else():
    # triton comes with torch on CUDA machines and is imported only there.
    allowed = {"torch", "triton", *sys.stdlib_module_names}
    for path in ALGORITHMS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                inside = name.startswith("troll.algorithms") or name == "troll.common.errors"
                assert inside or name.partition(".")[0] in allowed, f"{path.name} imports {name}"
