"""The state of a Snakemake run: jobs by rule, running jobs, the share of the work done, and the time left."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from troll.operations.progress_line.steps import Steps

_USUAL_S = 3.0
"""Assumed seconds of a job, such as a table, that neither this run nor an earlier one has measured."""
_LONG_S = {"train": 60.0, "base_model": 120.0, "hub_model": 120.0}
"""The same for the slowest rules; while one of them has not been measured, the time left is unknown."""
_MEASURED_S = 20.0
"""Seconds after which the run's parallelism is measured; before, it is the number of running jobs."""


@dataclass
class Job:
    """A job that is running or in a scheduler's queue."""

    rule: str
    name: str  # what it does, for the user
    started: float  # clock time in seconds
    logs: Sequence[str] = ()
    # reads the optimiser steps of a training job, given its seconds so far
    read: Callable[[float], Steps | None] | None = None
    steps: Steps | None = None  # None before its first step

    def seconds(self, now: float) -> float | None:
        """Estimates the seconds of the whole job from the pace of its steps; None if not yet known.

        For a resumed run this includes the steps of earlier attempts, as if it ran from the start.
        """
        if self.steps is None or self.steps.pace_s is None:
            return None
        pace, total = self.steps.pace_s, self.steps.total
        return max(now - self.started + pace * (total - self.steps.done), pace * total)

    def left(self, now: float, usual: float) -> float:
        """Estimates the remaining seconds from its steps, or else from a usual job's seconds (``usual``)."""
        if self.steps is None or self.steps.pace_s is None:
            return max(usual - (now - self.started), 0.0)
        return self.steps.pace_s * (self.steps.total - self.steps.done)


@dataclass
class State:
    """The state of a run according to Snakemake's events so far."""

    expected: Mapping[str, float] = field(default_factory=dict)  # seconds of a job by rule, from earlier runs
    clock: Callable[[], float] = time.monotonic  # in seconds; replaced in tests
    jobs: Counter[str] = field(default_factory=Counter)  # number of jobs by rule
    done: Counter[str] = field(default_factory=Counter)  # number of finished jobs by rule
    running: dict[int, Job] = field(default_factory=dict)  # by Snakemake's job number
    # rules of jobs whose last attempt failed, by Snakemake's job number
    failed: dict[int, str] = field(default_factory=dict)
    _spent: dict[str, float] = field(default_factory=dict)  # seconds of finished jobs, by rule
    _begun: float | None = None
    _most: float = 0.0

    @property
    def total(self) -> int:
        """Number of jobs."""
        return sum(self.jobs.values())

    @property
    def finished(self) -> int:
        """Number of finished jobs."""
        return sum(self.done.values())

    def plan(self, jobs: Mapping[str, int]) -> None:
        """Records the number of jobs of each rule, including finished ones."""
        self.jobs = Counter({rule: count for rule, count in jobs.items() if rule != "total"})

    def start(self, number: int, rule: str, name: str) -> Job:
        """Records the start of a job's first or a repeated attempt."""
        now = self.clock()
        self._begun = now if self._begun is None else self._begun
        self.failed.pop(number, None)
        job = self.running[number] = Job(rule, name, now)
        if self.done[rule] + sum(job.rule == rule for job in self.running.values()) > self.jobs[rule]:
            self.jobs[rule] += 1  # not in the plan, as it follows a Snakemake checkpoint
        return job

    def finish(self, number: int) -> Job | None:
        """Records that a job is finished; returns None for a job that never started (a member of a group)."""
        job = self.running.pop(number, None)
        if job is not None:
            self.done[job.rule] += 1
            self._spent[job.rule] = self._spent.get(job.rule, 0.0) + self.clock() - job.started
        return job

    def fail(self, number: int) -> Job | None:
        """Records that a job's attempt has failed; Snakemake may repeat it."""
        job = self.running.pop(number, None)
        self.failed[number] = job.rule if job else ""
        return job

    def seconds(self, rule: str) -> float | None:
        """Estimates the seconds of a rule's job.

        This is the mean of this run's finished jobs and, as one more job, the estimate from earlier runs.
        Without any of these, it is derived from the steps of running jobs; None if they have none.
        """
        count, total = self.done[rule], self._spent.get(rule, 0.0)
        if rule in self.expected:
            count, total = count + 1, total + self.expected[rule]
        if count:
            return total / count
        now = self.clock()
        paces = [job.seconds(now) for job in self.running.values() if job.rule == rule]
        measured = [seconds for seconds in paces if seconds is not None]
        return sum(measured) / len(measured) if measured else None

    def _weight(self, rule: str) -> float:
        seconds = self.seconds(rule)
        if seconds is not None:
            return max(seconds, 0.01)
        if rule not in _LONG_S:
            return _USUAL_S
        # If some jobs are slow (large model, slow machine), unmeasured ones will be too: assume the longest
        # time. Overestimating is better, because the share never falls.
        return max(_LONG_S[rule], *(self.seconds(other) or 0.0 for other in (*_LONG_S, *self.jobs)))

    def share(self) -> float:
        """Returns the share of the work that is done, by time, in [0, 1]; it never falls."""
        every = sum(self._weight(rule) * count for rule, count in self.jobs.items())
        if not every:
            return self._most
        now, done = self.clock(), sum(self._weight(rule) * count for rule, count in self.done.items())
        for job in self.running.values():
            weight = self._weight(job.rule)
            if job.steps is not None:
                done += 0.99 * weight * job.steps.done / job.steps.total
            elif job.rule not in _LONG_S or self.seconds(job.rule) is not None:  # else the weight is a guess
                done += min(now - job.started, 0.9 * weight)
        # 1.0 only once the last job is done.
        self._most = max(self._most, min(done / every, 1.0 if self.finished >= self.total else 0.99))
        return self._most

    def left(self) -> float | None:
        """Estimates the remaining seconds of the run, without failed jobs; None if too little is known."""
        failed = Counter(self.failed.values())
        waiting = {rule: count - self.done[rule] - failed[rule] for rule, count in self.jobs.items()}
        if any(waiting.get(rule, 0) > 0 and self.seconds(rule) is None for rule in _LONG_S):
            return None
        now, longest = self.clock(), 0.0
        work = sum(self._weight(rule) * max(count, 0) for rule, count in waiting.items())
        for job in self.running.values():
            weight = self._weight(job.rule)
            left = job.left(now, weight)
            work += left - weight
            longest = max(longest, left)
        return max(work / self._pace(now), longest, 0.0)

    def at_least(self) -> float | None:
        """Estimates the remaining seconds of running jobs from their steps; None before any has steps."""
        now = self.clock()
        times = [
            job.left(now, 0.0) for job in self.running.values() if job.steps is not None and job.steps.pace_s
        ]
        return max(times, default=None)

    def _pace(self, now: float) -> float:
        """Returns the seconds of job time per second, that is, the mean number of parallel jobs."""
        elapsed = 0.0 if self._begun is None else now - self._begun
        if elapsed < _MEASURED_S:
            return float(max(len(self.running), 1))
        busy = sum(self._spent.values()) + sum(now - job.started for job in self.running.values())
        return max(busy / elapsed, 0.5)
