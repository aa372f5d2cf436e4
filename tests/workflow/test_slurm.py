"""The workflow through a real SLURM: jobs that are warned, preempted and cancelled end as if left alone."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from slurm_cluster import MARKS, Jobs, make_checkout, running_cluster, workflow_command

MINUTES = 25  # many times what the disturbed runs take
pytestmark = [*MARKS, pytest.mark.timeout(60 * (MINUTES + 10))]
RUNS = {
    "limit": "tiny/chains/troll/grpo/gpu/seed0",
    "preempted": "tiny/chains/troll/grpo/cpu/seed0",
    "cancelled": "tiny/chains/clip/grpo/gpu/seed0",
}
GRADED = [f"runs/{RUNS[name]}/grades.json" for name in ("limit", "preempted")]
REFERENCE = """
import sys
from pathlib import Path
from forked_runs import finish, start
base, data, *runs = map(Path, sys.argv[1:])
assert all(finish(start(run, base, data)) == 0 for run in runs)
"""


@pytest.fixture(scope="module")
def cluster():
    """The environment of commands that talk to a SLURM of our own."""
    with running_cluster() as environment:
        yield environment


@pytest.fixture(scope="module")
def checkout(repository, tmp_path_factory):
    """A copy of the workflow whose profile warns late and has a partition that others may preempt."""
    return make_checkout(repository, tmp_path_factory.mktemp("checkout"))


def warned(process):
    """Whether SIGUSR1 waits for a process that is stopped."""
    pending = re.search(r"^ShdPnd:\s*(\w+)$", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
    return bool(int(pending[1], 16) >> (signal.SIGUSR1 - 1) & 1)


def disturb(name, jobs, process, tried):
    """Does to a run, whose process stands still, what its name says; True when SLURM has done it."""
    job = jobs.id_of(RUNS[name])
    shown = jobs.show(job)
    if name == "cancelled":
        jobs.ask("scancel", str(job))
        return True
    if name == "limit":
        if not tried:
            assert shown["Partition"] == "gpu" and "gpu:fake:1" in shown["GRES"], shown
            assert b"\0CUDA_VISIBLE_DEVICES=" in Path(f"/proc/{process}/environ").read_bytes()
            # SLURM looks at limits twice a minute; the end comes in one minute or two, the warning before it.
            hours, minutes, _ = map(int, shown["RunTime"].split(":"))
            jobs.ask("scontrol", "update", f"JobId={job}", f"TimeLimit={60 * hours + minutes + 2}")
        if warned(process):
            os.kill(process, signal.SIGCONT)
            return True
        return False
    if jobs.restarts(job) == 0 and tried % 50 == 0:
        assert shown["Partition"] == "low"
        # One job too many for the node's processors, in a partition that goes first.
        idle = int(jobs.ask("sinfo", "-h", "-p", "cpu", "-o", "%C").split("/")[1])
        jobs.ask("sbatch", "-p", "cpu", "-c", str(idle + 1), "--mem=10", "-o", "/dev/null", "--wrap", "true")
    return jobs.restarts(job) > 0


def watch(workflow, jobs, cluster):
    """Stops each run in the middle and disturbs it, until the workflow ends; the first job of each run."""
    stopped, first, tried, done, references = {}, {}, dict.fromkeys(RUNS, 0), set(), None
    limited = True
    deadline = time.monotonic() + MINUTES * 60
    while workflow.poll() is None:
        if time.monotonic() > deadline:
            raise subprocess.TimeoutExpired("the disturbed workflow", MINUTES * 60)
        for name, run in RUNS.items():
            if name not in stopped and jobs.lines(run) >= 9 and (process := jobs.process_of(run)):
                os.kill(process, signal.SIGSTOP)
                stopped[name], first[name] = process, jobs.id_of(run)
            if name in stopped and name not in done:
                if disturb(name, jobs, stopped[name], tried[name]):
                    done.add(name)
                tried[name] += 1
        if limited and "limit" in done and jobs.restarts(first["limit"]) > 0:
            # Its second start has all the time it needs, however slow the machine.
            jobs.ask("scontrol", "update", f"JobId={first['limit']}", "TimeLimit=60")
            limited = False
        if len(stopped) == len(RUNS) and references is None:
            references = reference_runs(jobs.root, cluster)
        time.sleep(0.1)
    assert done == set(RUNS), (workflow.poll(), stopped)
    assert references is not None and references.wait(300) == 0
    return first


def reference_runs(root, environment):
    """The same runs, left alone, beside the workflow's."""
    places = [root / "references" / run for run in RUNS.values()]
    for place, run in zip(places, RUNS.values(), strict=True):
        place.mkdir(parents=True)
        shutil.copy(root / "runs" / run / "run.yaml", place)
    command = [sys.executable, "-c", REFERENCE, root / "base/tiny/chains/checkpoint", root / "data/chains"]
    return subprocess.Popen([*map(str, command), *map(str, places)], env=environment)


@pytest.fixture(scope="module")
def disturbed(checkout, cluster):
    """The jobs of a workflow in which runs were disturbed, and the first job of each of these.

    Some runs are graded, and no more: tables and figures are made where Snakemake runs, SLURM or not.
    """
    jobs = Jobs(cluster, checkout / "results/slurm")
    with (checkout / "said").open("w") as said:
        command = workflow_command([f"runs/{run}/manifest.json" for run in RUNS.values()] + GRADED)
        workflow = subprocess.Popen(command, cwd=checkout, env=cluster, stdout=said, stderr=said)
    try:
        first = watch(workflow, jobs, cluster)
        said = (checkout / "said").read_text()
        assert workflow.wait(300) == 0, said[-6000:]
    finally:
        workflow.kill()
    return jobs, first


def test_disturbed_jobs_end_as_undisturbed_ones(disturbed):
    jobs, first = disturbed
    root = jobs.root
    metrics = {}
    for name, run in RUNS.items():
        left_alone, disturbed = root / "references" / run, root / "runs" / run
        metrics[name] = run_metrics(disturbed)
        assert metrics[name] == run_metrics(left_alone), name
        weights = [(place / "checkpoint/model.safetensors").read_bytes() for place in (left_alone, disturbed)]
        assert weights[0] == weights[1], name
    assert len(metrics["limit"]) == 40

    again = {name: jobs.id_of(run) for name, run in RUNS.items()}
    for name in ("limit", "preempted"):  # the same job, once more
        assert again[name] == first[name] and jobs.restarts(again[name]) > 0, name
    assert again["cancelled"] > first["cancelled"]
    assert jobs.show(first["cancelled"])["JobState"] == "CANCELLED"
    # Everything but run files was a job of SLURM.
    comments = jobs.ask("squeue", "-h", "-t", "all", "-o", "%k").splitlines()
    rules = {
        re.match(r"rule_(\w+?)_wildcards", comment)[1] for comment in comments if "_wildcards" in comment
    }
    assert {"base_model", "train", "sample", "grade"} <= rules, comments
    assert not [comment for comment in comments if comment.startswith("rule_configure")]


def test_jobs_of_a_rule_are_one_array_where_asked(disturbed, checkout, cluster):
    jobs, _ = disturbed
    before = {path: path.read_bytes() for path in jobs.root.rglob("grades.json")}
    written = {path: path.stat().st_mtime_ns for path in before}
    assert len(before) == len(GRADED)
    command = workflow_command(GRADED, "--slurm-array-jobs", "grade", "--forcerun", "grade")
    again = subprocess.run(command, cwd=checkout, env=cluster, capture_output=True, text=True, timeout=600)
    assert again.returncode == 0, again.stderr[-6000:]
    listed = jobs.ask("squeue", "-h", "-r", "-t", "all", "-o", "%F|%K")
    rows = [line.split("|") for line in listed.splitlines()]
    arrays = {job: {task for other, task in rows if other == job} for job, task in rows if task != "N/A"}
    assert [len(tasks) for tasks in arrays.values()] == [len(before)], rows
    assert all(path.stat().st_mtime_ns > written[path] for path in before)
    assert {path: path.read_bytes() for path in before} == before


def run_metrics(out):
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "time"} for row in rows]
