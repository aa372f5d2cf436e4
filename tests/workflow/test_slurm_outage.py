"""The workflow when SLURM's controller is away or forgets, memory is exceeded, or a node is drained."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from slurm_cluster import MARKS, Jobs, control, make_checkout, running_cluster, workflow_command

SECONDS = 600  # many times what one of these tests takes
pytestmark = [
    *MARKS,
    pytest.mark.timeout(2 * SECONDS),
    pytest.mark.skipif(
        os.environ.get("TROLL_TEST_SLURM") != "all",
        reason="its time limits need a machine without other work; TROLL_TEST_SLURM=all runs it",
    ),
]
AWAY = "controller does not answer"


@pytest.fixture(scope="module")
def cluster():
    """The environment of commands that talk to a SLURM that enforces memory."""
    with running_cluster(SLURM_LOCAL_OOMKILL="1") as environment:
        yield environment


@pytest.fixture(scope="module")
def checkout(repository, tmp_path_factory):
    """A copy of the workflow."""
    return make_checkout(repository, tmp_path_factory.mktemp("checkout"))


@pytest.fixture
def jobs(cluster, checkout):
    """What SLURM says of the jobs."""
    return Jobs(cluster, checkout / "results/slurm")


@pytest.fixture
def submit(checkout, cluster, tmp_path):
    """Starts the workflow; the process has what it has said so far as `said()`. Ended after the test."""
    processes = []

    def start(files, *options):
        path = tmp_path / "said"
        with path.open("w") as said:
            command = workflow_command(files, *options)
            process = subprocess.Popen(command, cwd=checkout, env=cluster, stdout=said, stderr=said)
        process.said = path.read_text
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def wait_until(what, *, process=None):
    """Returns what a function returns as soon as it is true."""
    deadline = time.monotonic() + SECONDS
    while not (found := what()):
        assert time.monotonic() < deadline, "not in time"
        assert process is None or process.poll() is None, process.said()
        time.sleep(0.05)
    return found


def status(checkout, cluster):
    """What `troll status` says."""
    command = [sys.executable, "-m", "troll.cli", "status", "tests/workflow/slurm.yaml"]
    return subprocess.run(
        command, cwd=checkout, env=cluster, capture_output=True, text=True, check=True
    ).stdout


def test_an_outage_of_the_controller_costs_no_job(cluster, jobs, submit):
    directory = Path(cluster["SLURM_CONF"]).parent

    def away(times):
        return lambda: workflow.said().count(AWAY) == times

    def switch(verb):
        assert control(directory, verb, cluster).returncode == 0

    before = len(jobs.ask("squeue", "-h", "-t", "all").splitlines())
    switch("outage")
    workflow = submit(["data/chains/train.jsonl"], "--retries", "0")
    wait_until(away(1), process=workflow)  # before the job is submitted
    switch("recover")
    wait_until(lambda: "controller answers again" in workflow.said(), process=workflow)
    held = wait_until(lambda: jobs.process_with("problems", "results/slurm/data/chains"), process=workflow)
    os.kill(held, signal.SIGSTOP)
    switch("outage")
    wait_until(away(2), process=workflow)  # while it runs: all attempts of a query have failed
    os.kill(held, signal.SIGCONT)
    wait_until(lambda: not Path(f"/proc/{held}").exists())
    switch("recover")
    assert workflow.wait(SECONDS) == 0, workflow.said()
    assert (jobs.root / "data/chains/train.jsonl").exists()
    assert len(jobs.ask("squeue", "-h", "-t", "all").splitlines()) == before + 1


@pytest.fixture
def forgetful(cluster, jobs):
    """Makes SLURM forget ended jobs as soon as it can."""
    conf = Path(cluster["SLURM_CONF"])
    before = conf.read_text()
    conf.write_text(re.sub("MinJobAge=.*", "MinJobAge=2", before))
    jobs.ask("scontrol", "reconfigure")
    yield
    conf.write_text(before)
    jobs.ask("scontrol", "reconfigure")


@pytest.mark.parametrize("cancelled", [False, True])
def test_jobs_that_slurm_has_forgotten_have_ended(forgetful, jobs, submit, cancelled):
    target = "base/tiny/chains/manifest.json"
    workflow = submit([target], "--retries", "0", "--forcerun", "base_model")
    comment = "rule_base_model"
    listed = ("squeue", "-h", "-t", "all", "-o", "%i|%k")
    wait_until(lambda: comment in jobs.ask(*listed), process=workflow)
    os.kill(workflow.pid, signal.SIGSTOP)  # it asks again when the job is forgotten
    number = next(row for row in jobs.ask(*listed).splitlines() if comment in row).split("|")[0]
    if cancelled:
        jobs.ask("scancel", number)
    wait_until(lambda: comment not in jobs.ask(*listed))
    os.kill(workflow.pid, signal.SIGCONT)
    assert workflow.wait(SECONDS) == cancelled, workflow.said()
    if cancelled:
        assert f"SLURM job {number} ended without its output" in workflow.said().strip().splitlines()[-3]
    else:
        assert f"SLURM no longer lists job {number}; its output is complete" in workflow.said()
        assert (jobs.root / target).exists()


def test_too_little_memory_is_the_last_word_and_in_the_status(checkout, cluster, jobs, submit):
    # Each of the three processes of a job needs more than that.
    memory = "base_model:mem_mb=60*attempt"
    target = "base/tiny/chains/manifest.json"
    workflow = submit([target], "--retries", "1", "--set-resources", memory)
    assert workflow.wait(SECONDS) == 1, workflow.said()
    rows = [row.split("|") for row in jobs.ask("squeue", "-h", "-t", "all", "-o", "%i|%k").splitlines()]
    numbers = [number for number, comment in rows if comment.startswith("rule_base_model")]
    assert sorted(jobs.show(number)["MinMemoryNode"] for number in numbers) == ["120M", "60M"]
    last = workflow.said().strip().splitlines()[-3:]
    assert "exceeded its memory of 120 MB; raise mem_mb of base_model" in last[0], last
    assert "exceeded its memory of 60 MB; the next attempt asks for more" in workflow.said()
    lines = status(checkout, cluster).splitlines()
    at = next(n for n, line in enumerate(lines) if line.endswith("base/tiny/chains"))
    assert lines[at].startswith("failed") and "exceeded its memory of 120 MB" in lines[at + 1]


def test_a_job_for_a_drained_node_is_pending_with_the_reason_of_slurm(checkout, cluster, jobs, submit):
    node = jobs.ask("sinfo", "-h", "-o", "%n").split()[0]
    jobs.ask("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=repair")
    try:
        workflow = submit(["base/tiny/chains/manifest.json"])
        waiting = ("squeue", "-h", "-t", "PD", "-o", "%i %r")
        number = wait_until(lambda: re.match(r"(\d+) .*Node", jobs.ask(*waiting)), process=workflow)[1]
        lines = status(checkout, cluster).splitlines()
        at = next(n for n, line in enumerate(lines) if line.endswith("base/tiny/chains"))
        assert lines[at].startswith("pending")
        assert f"SLURM job {number} is pending (" in lines[at + 1] and "Node" in lines[at + 1]
    finally:
        jobs.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
    assert workflow.wait(SECONDS) == 0, workflow.said()
