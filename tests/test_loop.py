"""docs/loop.py: the whole loop with `troll.algorithms` alone."""

import ast
import importlib.util

import pytest


@pytest.fixture(scope="module")
def path(repository):
    return repository / "docs/loop.py"


@pytest.fixture(scope="module")
def loop(path):
    spec = importlib.util.spec_from_file_location("loop", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_short_and_uses_the_algorithms_alone(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 120
    imported = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
    assert all(name.startswith(("torch", "troll.algorithms")) for name in imported)


def test_it_learns_inside_the_trust_region(loop):
    log = loop.train(batches=25)
    assert sum(row["success"] for row in log[:3]) / 3 < 0.25
    assert sum(row["success"] for row in log[-5:]) / 5 > 0.4
    assert max(row["kl_to_old"] for row in log) > loop.KL_BOUND  # the network leaves it,
    assert max(row["kl_projected"] for row in log) <= loop.KL_BOUND * (1 + 1e-4)  # the policy does not
    assert loop.train(batches=3) == log[:3]
