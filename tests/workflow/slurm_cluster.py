"""A SLURM of our own, a checkout that submits to it, and what it says of the jobs."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

HERE = Path(__file__).parent
TRAINING = HERE.parent / "training"
MARKS = [
    pytest.mark.snakemake,
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.skipif(
        "TROLL_TEST_SLURM" not in os.environ,
        reason="installs a SLURM where there is none and takes minutes; TROLL_TEST_SLURM=1 runs it",
    ),
]


@contextlib.contextmanager
def running_cluster(**variables):
    """Starts SLURM; yields the environment of commands that talk to it."""
    directory = Path(tempfile.mkdtemp(prefix="slurm"))
    settings = os.environ | {"SLURM_LOCAL_CPUS": "6"} | variables
    started = control(directory, "start", settings)
    if started.returncode:
        shutil.rmtree(directory)
        pytest.skip(f"no SLURM on this machine: {started.stderr.strip().splitlines()[-1]}")
    environment = os.environ | {
        "SLURM_CONF": str(directory / "slurm.conf"),
        "TROLL_ALLOW_CPU": "1",  # its GPUs are files
        "PATH": f"{directory / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": f"{TRAINING}:{HERE.parents[1]}",
    }
    yield environment
    assert control(directory, "stop", environment).returncode == 0
    shutil.rmtree(directory)


def control(directory, verb, environment):
    """Starts or stops SLURM, or its controller alone."""
    command = ["bash", str(HERE / "slurm_local.sh"), verb, str(directory)]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def make_checkout(repository, directory):
    """Copies the workflow, with a profile that asks often and warns late, and a partition that gives way."""
    shutil.copy(repository / "Snakefile", directory)
    for name in ("workflow", "envs", "tests/workflow"):
        shutil.copytree(repository / name, directory / name)
    profile = directory / "workflow/profiles/slurm"
    settings = yaml.safe_load((profile / "config.yaml").read_text())
    training = settings["set-resources"]["train"]
    assert "USR1@600" in training["slurm_extra"]
    training |= {"slurm_extra": training["slurm_extra"].replace("600", "60"), "runtime": 20}
    settings |= {"slurm-init-seconds-before-status-checks": 3, "latency-wait": 10}
    (profile / "config.yaml").write_text(yaml.safe_dump(settings))
    partitions = yaml.safe_load((profile / "partitions.yaml").read_text())
    partitions["partitions"]["low"] = {"max_runtime": 20}
    (profile / "partitions.yaml").write_text(yaml.safe_dump(partitions))
    return directory


class Jobs:
    """What SLURM and the system say of the training jobs."""

    def __init__(self, environment, root):
        self.environment, self.root = environment, root

    def ask(self, *command):
        result = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True)
        return result.stdout

    def id_of(self, run):
        """The newest job of a run; its comment holds the wildcards."""
        wildcards = run.replace("/seed", "/").replace("/", "_")
        rows = [line.split("|") for line in self.ask("squeue", "-h", "-t", "all", "-o", "%i|%k").splitlines()]
        return max((int(job) for job, comment in rows if wildcards in comment), default=None)

    def restarts(self, job):
        return int(self.show(job)["Restarts"])

    def show(self, job):
        return dict(re.findall(r"(\w+)=(\S+)", self.ask("scontrol", "show", "job", "-d", str(job))))

    def process_of(self, run):
        """The training process of a run."""
        return self.process_with("train", f"runs/{run}/run.yaml")

    def process_with(self, command, ending):
        """The process of a `troll` command with an argument that ends so."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes().decode(errors="replace").split("\0")
                ours = len(words) > 1 and Path(words[1]).name == "troll" and command in words
                if ours and any(word.endswith(ending) for word in words):
                    return int(path.parent.name)
        return None

    def lines(self, run):
        path = self.root / "runs" / run / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0


def workflow_command(files, *options):
    command = [sys.executable, "-m", "snakemake", "--workflow-profile", "workflow/profiles/slurm"]
    targets = [f"results/slurm/{file}" for file in files]
    return [*command, "--configfile", "tests/workflow/slurm.yaml", *options, "--", *targets]
