"""What Snakemake itself costs while jobs run."""

import inspect
import subprocess
import sys
from itertools import product

import pytest
from refusals import refused
from snakemake.scheduling.job_scheduler import JobScheduler

from troll.operations.invocation import check_interpreter, one_timer

PROBE = """
import sys, threading

started = []
original = threading.Timer.start

def counted(self):
    started.append(self)
    original(self)

threading.Timer.start = counted
from snakemake.cli import main
try:
    main(sys.argv[1:])
finally:
    print("TIMERS", len(started))
"""


class Clock:
    """A scheduler whose timers are started by hand, at a time that is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.started = 100.0, []
        monkeypatch.setattr("troll.operations.invocation.time.monotonic", lambda: self.now)
        one_timer(self)

    def _schedule_reevalutation(self, delay: float) -> None:
        self.started.append((self.now, delay))

    def look(self, after: float, delay: float = 3.0) -> None:
        self.now += after
        self._schedule_reevalutation(delay)


def test_a_timer_is_started_only_where_none_is_due_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Clock(monkeypatch)
    for _ in range(10):  # jobs that finish
        scheduler.look(after=0.25)
    assert scheduler.started == [(100.25, 3.0)]
    scheduler.look(after=3.0)  # the timer is over
    scheduler.look(after=0.0)
    assert scheduler.started == [(100.25, 3.0), (105.5, 3.0)]
    scheduler.look(after=3.0, delay=10.0)
    scheduler.look(after=0.5, delay=3.0)  # sooner than the one that is pending
    scheduler.look(after=0.5, delay=10.0)
    assert scheduler.started[2:] == [(108.5, 10.0), (109.0, 3.0)]


def test_a_scheduler_without_timers_is_left_alone() -> None:
    one_timer(None)
    plain = object()
    one_timer(plain)
    # The name is Snakemake's own, and private: where it changes, the timers multiply again.
    assert "self._schedule_reevalutation(self.job_rate_limiter.timespan)" in inspect.getsource(JobScheduler)


@pytest.mark.snakemake
def test_timers_do_not_grow_with_the_jobs(repository, tmp_path) -> None:
    for name in ("Snakefile", "workflow", "envs"):
        (tmp_path / name).symlink_to(repository / name)
    seeds = list(range(6))
    runs = [
        f"results/testbed/runs/tiny/chains/{method}/{estimator}/{condition}/seed{seed}/run.yaml"
        for method, estimator, condition, seed in product(
            ("clip", "troll"), ("grpo", "dr-grpo"), ("gentle", "stale"), seeds
        )
    ]
    command = [sys.executable, "-c", PROBE, "--cores", "2", "--scheduler", "greedy"]
    command += ["--max-jobs-per-timespan", "1000/3s", "--config", f"seeds={seeds}"]
    command += ["--configfile", "workflow/config/testbed.yaml", "--", *runs]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-4000:]
    assert all((tmp_path / run).is_file() for run in runs)
    (timers,) = [int(line.split()[1]) for line in result.stdout.splitlines() if line.startswith("TIMERS")]
    assert 1 <= timers < len(runs)  # without `one_timer` each of them starts one


@pytest.mark.parametrize("place", ["a user's", "two words", "$HOME", "a;b"])
def test_a_python_that_jobs_elsewhere_cannot_start_is_refused(place):
    check_interpreter("/home/user/troll-1.0_x/.venv/bin/python3.11")
    with refused("make env VENV=~/troll-env"):
        check_interpreter(f"/home/{place}/troll/.venv/bin/python")
