"""The state of a Snakemake run: its jobs, those that are running, and the time left."""

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

    jobs: Counter[str] = field(default_factory=Counter)  # number of jobs by rule, with finished ones
    done: Counter[str] = field(default_factory=Counter)  # number of finished jobs by rule
    running: dict[int, Job] = field(default_factory=dict)  # by Snakemake's job number, oldest first
    failed: dict[int, Job | None] = field(default_factory=dict)  # jobs whose last attempt failed
    runs_left: TimeLeft | None = None  # of the whole experiment; None if unknown
    steps: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # done and all, by running run

    def start(self, number: int, job: Job) -> None:
        """Records the start of a job's first or a repeated attempt."""
        self.failed.pop(number, None)
        self.running[number] = job

    def finish(self, number: int) -> Job | None:
        """Records that a job is finished; returns None for a job that never started (a member of a group)."""
        job = self.running.pop(number, None)
        if job is not None:
            self.done[job.rule] += 1
        return job

    def fail(self, number: int) -> Job | None:
        """Records that a job's attempt has failed; Snakemake may repeat it."""
        self.failed[number] = self.running.pop(number, None)
        return self.failed[number]

    def unfinished(self, *rules: str) -> int:
        """Returns the number of jobs of these rules that are not finished."""
        return sum(self.jobs[rule] - self.done[rule] for rule in rules)

    def left(self) -> float | None:
        """Returns the remaining seconds of training with as many jobs at a time as now; None if unknown.

        Unknown while a base model is missing. The runs of other targets of the experiment are not counted.
        """
        left = self.runs_left
        if left is None or self.unfinished(*BASES):
            return None
        failed = sum(job is not None and job.rule == "train" for job in self.failed.values())
        runs = max(self.unfinished("train") - failed, 0)
        seconds = left.total_s * min(1.0, runs / max(left.runs, 1))
        return max(seconds / max(len(self.running), 1), min(left.longest_s, seconds))
