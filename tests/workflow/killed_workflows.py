"""Kills jobs, server or Snakemake of the reduced experiment, or all of them, at random moments.

``python tests/workflow/killed_workflows.py DIRECTORY KILLS SEED``: one experiment undisturbed in
DIRECTORY/whole, then one for every five kills, which is typed again after each. All keep finished runs in
their tables. Says what differs, and what is left behind, as each experiment ends: what an interrupted test
has seen is not lost.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from troll.analysis.data.archive import archived_runs

REPOSITORY = Path(__file__).parents[2]
EXPERIMENT = "tests/workflow/reduced.yaml"
# A commit may be made meanwhile; and a base model be kept before its job is killed.
UNLIKE = ("time", "wall_s", "started_at", "peak_gib", "git_commit", "made_by")
# In this order: a workflow survives its server, and is complete after that.
KINDS = ("everything", "snakemake", "forked", "client", "server")
MORE_JOBS = 6  # of 35: five kills find something to kill
LOGS = ".snakemake/log/*.log"


def checkout(directory):
    shutil.copytree(REPOSITORY / "workflow", directory / "workflow")
    shutil.copytree(REPOSITORY / "envs", directory / "envs")
    shutil.copytree(REPOSITORY / "tests/workflow", directory / "tests/workflow")
    shutil.copy(REPOSITORY / "Snakefile", directory)


def start(directory):
    command = [sys.executable, "-m", "troll.cli", "run", EXPERIMENT, "--cores", "2"]
    with (directory / "said").open("a") as said:
        return subprocess.Popen(
            [*command, "--config", "archive=true", "--", "all"],
            cwd=directory,
            env=os.environ | {"TROLL_BASE_MODELS": ""},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )


def processes(directory):
    """What runs in a directory, and which servers: number, parent and command line."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (path / "cmdline").read_text().split("\0")
            parent = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if words != [""] and (path / "cwd").readlink() == directory:
                found[int(path.name)] = (parent, " ".join(words))
    return found


def victims(kind, snakemake, directory):
    """A process of a kind that runs now: workflow, server, a client, what was forked for one; or all."""
    found = processes(directory)
    servers = [p for p, (parent, line) in found.items() if "warm/server.py" in line and parent == snakemake]
    kinds = {
        "snakemake": [snakemake],
        "server": servers,
        "client": [p for p, (_, line) in found.items() if "warm/client.py" in line],
        "forked": [p for p, (parent, _) in found.items() if parent in servers],
    }
    if kind == "everything":  # as a power cut would
        return list(found)
    return random.sample(kinds[kind], min(1, len(kinds[kind])))


def contents(directory):
    """What an experiment has found out, without times, memory and the commit."""

    def bare(value):
        if isinstance(value, dict):
            return {name: bare(item) for name, item in value.items() if name not in UNLIKE}
        return value

    root = directory / "results/reduced"
    found = {"tables": archived_runs(root)}
    for path in root.glob("**/*"):
        name = path.relative_to(root).as_posix()
        if path.suffix == ".safetensors" or path.name in ("samples.jsonl", "main.csv", "stability.csv"):
            found[name] = hash(path.read_bytes())
        elif path.name in ("metrics.jsonl", "grades.json", "manifest.json"):
            lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
            found[name] = [bare(json.loads(line)) for line in lines]
    return found


def finish(directory):
    process = start(directory)
    process.wait(1500)
    return process.returncode


def finished_jobs(directory, before):
    """How many jobs have ended in this start of the workflow; ``before`` are the logs of earlier ones."""
    logs = set(directory.glob(LOGS)) - before
    return sum(log.read_text(errors="replace").count("\nFinished jobid") for log in logs)


def disturb(directory, kind):
    """Starts the experiment and kills something of a kind, a moment after a few more jobs; says what.

    Counted in jobs and not in seconds: another machine load makes the same experiment half or twice as long.
    """
    jobs, moment, before = random.randint(0, MORE_JOBS), random.uniform(0, 3), set(directory.glob(LOGS))
    process, begun, hit = start(directory), time.monotonic(), False
    while process.poll() is None and not hit:
        time.sleep(0.02)
        if finished_jobs(directory, before) < jobs:
            continue
        time.sleep(moment)
        moment = 0
        for target in victims(kind, process.pid, directory):
            with contextlib.suppress(ProcessLookupError):
                os.kill(target, signal.SIGKILL)
                hit = True
    killed, there = round(time.monotonic() - begun, 1), bases(directory)
    process.wait(1500)
    return {
        "kind": kind,
        "hit": hit,
        "jobs": jobs,
        "after_s": killed,
        "status": process.returncode,
        "bases": there,
    }


def killed_in_training(directory, environment):
    """Kills everything as soon as a run has trained a step.

    Returns:
        A namespace: `bases`, when the base model of that run was made, by path, and `left`, what still runs.
    """
    command = [sys.executable, "-m", "troll.cli", "run", EXPERIMENT, "--cores", "2"]
    results, deadline = directory / "results/reduced", time.monotonic() + 600
    with (directory / "said").open("w") as said:
        # In this session, or else no server of this session would take its jobs.
        streams = {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": said}
        process = subprocess.Popen(command, cwd=directory, env=environment, **streams)
    while not (begun := list(results.glob("runs/**/metrics.jsonl"))):
        assert process.poll() is None and time.monotonic() < deadline, (directory / "said").read_text()
        time.sleep(0.02)
    for number in victims("everything", process.pid, directory):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    process.wait(60)
    tasks = {path.relative_to(results / "runs").parts[1] for path in begun}
    bases = [results / "base/tiny" / task / "manifest.json" for task in tasks]
    return SimpleNamespace(
        bases={path: path.stat().st_mtime_ns for path in bases}, left=left_behind(directory)
    )


def left_behind(directory):
    """What still runs in a directory a little later."""
    deadline = time.monotonic() + 30
    while (left := processes(directory)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return list(left.values())


def bases(directory):
    """When each base model was made, those of the last seconds left out: their jobs may not have ended."""
    made = {path: path.stat().st_mtime for path in directory.glob("results/reduced/base/*/*/manifest.json")}
    return {path: then for path, then in made.items() if time.time() - then > 5}


def disturbed(directory, kinds, expected):
    """Kills something of each kind in an experiment; what was seen each time.

    Args:
        directory: where the experiment is run; not there yet.
        kinds: of `KINDS`, one after the other.
        expected: the `contents` of the undisturbed experiment.
    """
    checkout(directory)
    found = []
    for kind in kinds:
        kill = disturb(directory, kind)
        found.append(kill | {"left": left_behind(directory)})
    again, now = finish(directory), contents(directory)
    differ = sorted(name for name in expected.keys() | now if expected.get(name) != now.get(name))
    found[-1] |= {"again": again, "differ": differ}
    for kill in found:
        before = kill.pop("bases").items()
        kill["made_again"] = [str(path) for path, then in before if path.stat().st_mtime != then]
    return found


def main(directory, kills, seed):
    random.seed(seed)
    whole = directory / "whole"
    checkout(whole)
    assert finish(whole) == 0, (whole / "said").read_text()[-3000:]
    expected, found = contents(whole), []
    assert not left_behind(whole) and len(expected) > 20
    for number in range(0, kills, len(KINDS)):
        each = directory / f"killed{number}"
        found += disturbed(each, KINDS[: kills - number], expected)
        for kill in found[number:]:
            print(kill, file=sys.stderr, flush=True)
        shutil.rmtree(each)
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), int(sys.argv[2]), int(sys.argv[3]))
