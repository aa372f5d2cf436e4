"""docs/loop.py: the whole loop with `troll.algorithms` alone."""

import ast

import pytest


@pytest.fixture(scope="module")
def loop(script):
    return script("docs/loop.py")


def test_it_is_short_and_uses_the_algorithms_alone(repository):
    text = (repository / "docs/loop.py").read_text()
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
