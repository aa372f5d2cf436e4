"""What Snakemake does whenever it starts: read the experiment, and nothing that takes long to import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import troll

pytestmark = pytest.mark.snakemake

PROBE = """
import builtins, os, sys, traceback

PACKAGE = os.environ["PACKAGE"] + os.sep
HEAVY = {"pandas", "scipy", "matplotlib", "pyarrow", "trl", "transformers", "lm_eval"}
original = builtins.__import__

def watched(name, *arguments, **keywords):
    if name.partition(".")[0] in HEAVY:
        stack = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_stack()]
        ours = [at for at in stack if at.startswith(PACKAGE) or ".smk:" in at or "/Snakefile:" in at]
        if ours:
            print("HEAVY", name, ours[-1])
    return original(name, *arguments, **keywords)

builtins.__import__ = watched
from snakemake.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("file", ["testbed", "testbed-ablations"])
def test_the_workflow_is_read_without_the_libraries_of_analysis_and_training(repository, tmp_path, file):
    # Plugins of Snakemake's own may import pandas: what counts is who asks.
    (tmp_path / "Snakefile").symlink_to(repository / "Snakefile")
    for name in ("workflow", "envs"):
        (tmp_path / name).symlink_to(repository / name)
    configuration = f"workflow/config/{file}.yaml"
    command = [sys.executable, "-c", PROBE, "-n", "--cores", "1", "--configfile", configuration]
    # By its place, not its name: a clone is called troll too, and its environment lies in it.
    environment = os.environ | {"PACKAGE": str(Path(troll.__file__).parent)}
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr[-4000:]
    assert f"report results/{file}" in result.stdout + result.stderr
    found = [line for line in (result.stdout + result.stderr).splitlines() if line.startswith("HEAVY")]
    assert found == []
