import shutil

import pytest


@pytest.fixture
def checkout(repository, tmp_path):
    """The workflow in a directory of its own, without results."""
    for name in ("workflow", "envs", "tests/workflow"):
        shutil.copytree(repository / name, tmp_path / name)
    shutil.copy(repository / "Snakefile", tmp_path)
    return tmp_path
