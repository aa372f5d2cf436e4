"""What SLURM says: which jobs of this directory wait or run, and which partitions have GPUs."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from troll.common.programs import output_of
from troll.experiment.experiment import BASE

_FIELDS = (
    "%i|%T|%r|%Z|%k"  # job, state, reason, directory, comment; the comment is written by the executor plugin
)
_TIMEOUT_S = 30.0
_RULES = ("train", "sample", "grade", "sample_suites", "grade_suites", "base_model", "hub_model")


@dataclass(frozen=True)
class QueuedJob:
    """A job in SLURM's queue."""

    number: str
    state: str  # such as PENDING or RUNNING
    reason: str  # why it waits, in SLURM's words, such as Resources

    @property
    def pending(self) -> bool:
        """Whether it waits."""
        return self.state == "PENDING"

    def words(self) -> str:
        """Says what SLURM says of the job."""
        reason = f" ({self.reason})" if self.reason not in ("", "None") else ""
        return f"SLURM job {self.number} is {self.state.lower()}{reason}"


@dataclass(frozen=True)
class Queue:
    """The jobs of this directory in SLURM's queue."""

    jobs: Mapping[str, QueuedJob] = field(default_factory=dict)  # by comment
    problems: tuple[str, ...] = ()  # why the queue is not known; empty if it is, or if there is no SLURM here

    def job_of(self, name: str) -> QueuedJob | None:
        """Returns the job for a run or base model, by its name in `troll status`; None if there is none.

        A job that waits goes before one that runs.
        """
        found = [job for comment in comments_of(name) if (job := self.jobs.get(comment)) is not None]
        return min(found, key=lambda job: not job.pending, default=None)


def comments_of(name: str) -> list[str]:
    """Returns the comments that the executor plugin (2.8) gives to the jobs of a run or base model."""
    if name.startswith(f"{BASE}/"):
        place, own = name, name.removeprefix(f"{BASE}/")
    else:
        place, own = f"runs/{name}", "/".join(name.rsplit("/seed", 1))
    values = {rule: own if rule in ("train", "base_model", "hub_model") else place for rule in _RULES}
    return [f"rule_{rule}_wildcards_{value.replace('/', '_')}" for rule, value in values.items()]


def read_queue() -> Queue:
    """Asks SLURM for the jobs of this user that were submitted from this directory; empty without SLURM."""
    command = ["squeue", "--me", "--noheader", f"--format={_FIELDS}"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except FileNotFoundError:
        return Queue()
    except (OSError, subprocess.TimeoutExpired) as error:
        return _unknown(str(error))
    if listed.returncode:
        words = (listed.stderr.strip() or f"exit status {listed.returncode}").splitlines()[-1]
        return _unknown(words)
    here, jobs = Path.cwd().resolve(), {}
    for line in listed.stdout.splitlines():
        number, state, reason, directory, comment = line.split("|", 4)
        if Path(directory).resolve() == here:
            jobs[comment] = QueuedJob(number, state, reason)
    return Queue(jobs)


def _unknown(problem: str) -> Queue:
    return Queue(problems=(f"pending jobs are not shown: SLURM's queue is not known: {problem}",))


def gpu_partitions() -> dict[str, str]:
    """Returns the partitions with GPUs, and the GPUs of one of their nodes, such as ``gpu:h100:8``."""
    listed = output_of("sinfo", "--noheader", "--format=%R|%G") or ""
    rows = [line.strip().split("|", 1) for line in listed.splitlines() if "|" in line]
    return {name: gpus for name, gpus in rows if gpus.startswith("gpu")}
