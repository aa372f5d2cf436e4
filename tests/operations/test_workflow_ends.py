"""SIGTERM to a command that runs the workflow, or tests, reaches them, whose orderly end it waits for."""

import os
import signal
import subprocess
import sys
import time

import pytest

# Stands for Snakemake: on SIGTERM its running job ends first. Ends by itself after a while, whatever happens.
ENTRY = """
import pathlib, signal, sys, time
def end(*_):
    time.sleep(0.5)
    pathlib.Path("job").write_text("ended")
    sys.exit(1)
signal.signal(signal.SIGTERM, end)
pathlib.Path("job").write_text("runs")
time.sleep(200)
pathlib.Path("job").write_text("left alone")
"""
COMMAND = """
from pathlib import Path
import sys
import troll.operations.workflow as workflow
workflow.PROGRAM = (sys.executable, "entry.py")
workflow.run_workflow(Path("experiment.yaml"), ["all"], Path("log"), cores=1)
print("went on")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_command_alone_ends_snakemake_too(tmp_path, number):
    (tmp_path / "entry.py").write_text(ENTRY)
    # What runs in the background of a script has interrupts ignored.
    code = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n{COMMAND}"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    job, deadline = tmp_path / "job", time.monotonic() + 100
    while not job.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    output, errors = process.communicate(timeout=100)
    assert job.read_text() == "ended", "the command ended after Snakemake"
    assert output == "" and process.returncode != 0
    if number == signal.SIGTERM:
        assert process.returncode == 128 + number
        assert errors.splitlines() == ["log: SIGTERM received; waiting for the running jobs to end"]


TEST = """
import os, pathlib, time
def test_own_rule():
    pathlib.Path("pid").write_text(str(os.getpid()))
    time.sleep(200)
"""
CONTRACT = """
from pathlib import Path
import troll.operations.rank as rank
rank._CONTRACT = Path("test_contract.py")
rank._check_contract("my_rules.py:soft_wall")
"""


def test_a_signal_to_the_command_alone_ends_the_contract_tests_too(tmp_path):
    (tmp_path / "test_contract.py").write_text(TEST)
    process = subprocess.Popen([sys.executable, "-c", CONTRACT], cwd=tmp_path, start_new_session=True)
    pid, deadline = tmp_path / "pid", time.monotonic() + 100
    while not (pid.exists() and pid.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.terminate()
    assert process.wait(timeout=100) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
