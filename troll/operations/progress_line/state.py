"""How far a run of Snakemake is: jobs by rule, what runs, the share that is done, and the time left."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from troll.operations.progress_line.steps import Steps

_USUAL_S = 3.0
"""A job's time where neither this run nor an earlier one tells it: tables, figures, files."""
_LONG_S = {"train": 60.0, "base_model": 120.0, "hub_model": 120.0}
"""The same for the rules that take most of the time; while one of them is unknown, so is the time left."""
_MEASURED_S = 20.0
"""After this long the pace of this run counts; before, as many jobs at a time as run just now."""


@dataclass
class Job:
    """A job that runs, or waits in a scheduler's queue."""

    rule: str
    name: str  # what it does, for people
    started: float  # when, in seconds of the clock
    logs: Sequence[str] = ()
    # reads the optimiser steps of a job that trains, by its seconds so far
    read: Callable[[float], Steps | None] | None = None
    steps: Steps | None = None  # those that it has written; None where there are none yet

    def seconds(self, now: float) -> float | None:
        """What the whole job takes by the pace of its steps; None where that is not known yet.

        A resumed run has its earlier steps for nothing: then this is what it would take from its start.
        """
        if self.steps is None or self.steps.pace_s is None:
            return None
        pace, total = self.steps.pace_s, self.steps.total
        return max(now - self.started + pace * (total - self.steps.done), pace * total)

    def left(self, now: float, usual: float) -> float:
        """Seconds that it still takes: by its steps, or else what is left of a usual job's time."""
        if self.steps is None or self.steps.pace_s is None:
            return max(usual - (now - self.started), 0.0)
        return self.steps.pace_s * (self.steps.total - self.steps.done)


@dataclass
class State:
    """What Snakemake's events have said so far."""

    expected: Mapping[str, float] = field(default_factory=dict)  # seconds of a job by rule, from earlier runs
    clock: Callable[[], float] = time.monotonic  # seconds; another one in tests
    jobs: Counter[str] = field(default_factory=Counter)  # how many jobs there are, by rule
    done: Counter[str] = field(default_factory=Counter)  # how many are done, by rule
    running: dict[int, Job] = field(default_factory=dict)  # jobs by Snakemake's number
    # rules of jobs whose last attempt ended with an error, by Snakemake's number
    failed: dict[int, str] = field(default_factory=dict)
    _spent: dict[str, float] = field(default_factory=dict)  # seconds of finished jobs, by rule
    _begun: float | None = None
    _most: float = 0.0

    @property
    def total(self) -> int:
        """How many jobs there are."""
        return sum(self.jobs.values())

    @property
    def finished(self) -> int:
        """How many jobs are done."""
        return sum(self.done.values())

    def plan(self, jobs: Mapping[str, int]) -> None:
        """Takes the number of jobs of each rule, those that are done included."""
        self.jobs = Counter({rule: count for rule, count in jobs.items() if rule != "total"})

    def start(self, number: int, rule: str, name: str) -> Job:
        """A job has started, for the first time or again."""
        now = self.clock()
        self._begun = now if self._begun is None else self._begun
        self.failed.pop(number, None)
        job = self.running[number] = Job(rule, name, now)
        if self.done[rule] + sum(job.rule == rule for job in self.running.values()) > self.jobs[rule]:
            self.jobs[rule] += 1  # of a checkpoint, or planned later
        return job

    def finish(self, number: int) -> Job | None:
        """A job is done; None where it was not heard of (a part of a group)."""
        job = self.running.pop(number, None)
        if job is not None:
            self.done[job.rule] += 1
            self._spent[job.rule] = self._spent.get(job.rule, 0.0) + self.clock() - job.started
        return job

    def fail(self, number: int) -> Job | None:
        """A job has failed; it may be tried again."""
        job = self.running.pop(number, None)
        self.failed[number] = job.rule if job else ""
        return job

    def seconds(self, rule: str) -> float | None:
        """What a job of a rule takes: the mean of this run's jobs, an earlier run counted as one of them.

        Where none is done and no earlier run is known, running jobs tell it by the pace of their steps.
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
        # On a slow machine, and for a large model, all are slow: runs that follow supervised steps of hours
        # are no shorter. Too much is better than too little: the share never falls.
        return max(_LONG_S[rule], *(self.seconds(other) or 0.0 for other in (*_LONG_S, *self.jobs)))

    def share(self) -> float:
        """The part of the work that is done, by time, in [0, 1]; it never falls."""
        every = sum(self._weight(rule) * count for rule, count in self.jobs.items())
        if not every:
            return self._most
        now, done = self.clock(), sum(self._weight(rule) * count for rule, count in self.done.items())
        for job in self.running.values():
            weight = self._weight(job.rule)
            if job.steps is not None:
                done += 0.99 * weight * job.steps.done / job.steps.total
            elif job.rule not in _LONG_S or self.seconds(job.rule) is not None:  # else its weight is a guess
                done += min(now - job.started, 0.9 * weight)
        # All of it only when the last job is done.
        self._most = max(self._most, min(done / every, 1.0 if self.finished >= self.total else 0.99))
        return self._most

    def left(self) -> float | None:
        """Seconds that the run will still take without what failed; None where too little is known to say."""
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
        """Seconds that running jobs still take by the pace of their steps; None where none has steps yet."""
        now = self.clock()
        times = [
            job.left(now, 0.0) for job in self.running.values() if job.steps is not None and job.steps.pace_s
        ]
        return max(times, default=None)

    def _pace(self, now: float) -> float:
        """Seconds of jobs that pass in a second: how many run at a time."""
        elapsed = 0.0 if self._begun is None else now - self._begun
        if elapsed < _MEASURED_S:
            return float(max(len(self.running), 1))
        busy = sum(self._spent.values()) + sum(now - job.started for job in self.running.values())
        return max(busy / elapsed, 0.5)
