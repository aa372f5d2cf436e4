"""Without a scheduler, local jobs share the visible GPUs."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.snakemake
SNAKEFILE = """
from troll.operations.invocation import count_gpus
count_gpus(workflow, 1)
rule all:
    input: "0.done", "1.done"
rule one_at_a_time:
    output: "{job}.done"
    resources: gpu=1
    shell: "mkdir gpu && sleep 1 && rmdir gpu && touch {output}"
rule together:
    output: "{job}.met"
    params: command=lambda wildcards: "cat pipe" if wildcards.job == "0" else "sh -c 'echo >pipe'"
    resources: gpu=1
    shell: "mkfifo pipe 2>/dev/null || true; timeout 60 {params.command} && touch {output}"
"""


def run(directory, *arguments, **variables):
    (directory / "Snakefile").write_text(SNAKEFILE)
    (directory / "nvidia-smi").write_text("#!/bin/sh\necho 0\n")
    (directory / "nvidia-smi").chmod(0o755)
    environment = os.environ | {"PATH": f"{directory}:{os.environ['PATH']}"} | variables
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    command = [sys.executable, "-m", "snakemake", "--cores", "4", *arguments]
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=300
    )


def test_one_gpu_is_used_by_one_job_at_a_time(tmp_path):
    result = run(tmp_path)
    assert result.returncode == 0, result.stderr
    assert "gpu=1" in result.stderr


def test_the_number_of_gpus_can_be_given(tmp_path):
    result = run(tmp_path, "--resources", "gpu=2", "--", "0.met", "1.met")  # each waits for the other
    assert result.returncode == 0, result.stderr
