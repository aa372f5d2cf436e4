"""The state of a Snakemake run: its jobs, and those that are running."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from troll.operations.time_left import TimeLeft

BASES = ("base_model", "hub_model")
"""Rules that make base models."""


@dataclass
class Job:
    """A job that is running or in a scheduler's queue."""

    rule: str
    name: str  # what it does, for the user
    logs: Sequence[str] = ()
    run_id: str = ""  # the run that it trains; empty for other jobs


@dataclass
class State:
    """The state of a run according to Snakemake's events so far."""

    jobs: Counter[str] = field(default_factory=Counter)  # number of jobs by rule
    done: Counter[str] = field(default_factory=Counter)  # number of finished jobs by rule
    running: dict[int, Job] = field(default_factory=dict)  # by Snakemake's job number, oldest first
    failed: dict[int, str] = field(default_factory=dict)  # rules of jobs whose last attempt failed
    runs_left: TimeLeft | None = None  # of the whole experiment; None if unknown
    steps: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # done and all, by running run

    @property
    def total(self) -> int:
        """Number of jobs."""
        return self.jobs.total()

    @property
    def finished(self) -> int:
        """Number of finished jobs."""
        return self.done.total()

    def plan(self, jobs: Mapping[str, int]) -> None:
        """Records the number of jobs of each rule, including finished ones."""
        self.jobs = Counter({rule: count for rule, count in jobs.items() if rule != "total"})

    def start(self, number: int, job: Job) -> Job:
        """Records the start of a job's first or a repeated attempt."""
        self.failed.pop(number, None)
        self.running[number] = job
        if (
            self.done[job.rule] + sum(one.rule == job.rule for one in self.running.values())
            > self.jobs[job.rule]
        ):
            self.jobs[job.rule] += 1  # not in the plan, as it follows a Snakemake checkpoint
        return job

    def finish(self, number: int) -> Job | None:
        """Records that a job is finished; returns None for a job that never started (a member of a group)."""
        job = self.running.pop(number, None)
        if job is not None:
            self.done[job.rule] += 1
        return job

    def fail(self, number: int) -> Job | None:
        """Records that a job's attempt has failed; Snakemake may repeat it."""
        job = self.running.pop(number, None)
        self.failed[number] = job.rule if job else ""
        return job

    def waits_for_training(self) -> bool:
        """Whether models are yet to be trained; other jobs take seconds."""
        return any(self.jobs[rule] > self.done[rule] for rule in ("train", *BASES))

    def left(self) -> float | None:
        """Remaining seconds of training with as many jobs at a time as now; None if unknown.

        Unknown while a base model is missing. The runs of other targets of the experiment are not counted.
        """
        left, trained = self.runs_left, list(self.failed.values())
        if left is None or any(self.jobs[rule] > self.done[rule] for rule in BASES):
            return None
        asked = self.jobs["train"] - self.done["train"] - trained.count("train")
        seconds = left.total_s * min(1.0, max(asked, 0) / max(left.runs, 1))
        return max(seconds / max(len(self.running), 1), min(left.longest_s, seconds))
