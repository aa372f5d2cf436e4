"""The SLURM executor plugin for Snakemake, made to survive an outage of SLURM's controller.

With the plugin's own executor (2.8.0) an outage ends a workflow in two ways. If every attempt of one status
query fails, `check_active_jobs` neither reports nor yields any job, and Snakemake waits for ever for jobs
about which it never asks again. And ``sbatch`` fails at once, which uses up a job's retries in a minute. The
setting ``slurm-status-attempts`` does not help: without an answer of ``scontrol`` the plugin asks ``sacct``
instead of ``squeue`` wherever that program is installed, also where there is no accounting.

The executor here also writes why SLURM ended a job into the job's log, where the progress line and
`troll status` find it.
"""

import asyncio
import re
import subprocess
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from snakemake_executor_plugin_slurm import Executor as SlurmExecutor
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from troll.operations.status import last_text

_ASK_EVERY_S = 10
_TIMEOUT_S = 30.0
_STATE = re.compile(r"SLURM status is: '(\w+)'")
# Of slurmstepd, by cgroups or by polling, and of the kernel.
_MEMORY = re.compile(
    r"oom[-_ ]kill|out of memory|exceeded (?:job|step)? ?memory limit|memory limit", re.IGNORECASE
)
_STATES = {
    "TIMEOUT": "reached its time limit",
    "NODE_FAIL": "lost its node",
    "BOOT_FAIL": "lost its node, which did not boot",
    "DEADLINE": "could not end before its deadline",
}


def install() -> Mapping[str, str]:
    """Makes Snakemake use this executor for ``executor: slurm``; returns its `Executor.reasons`.

    The plugin is changed instead of adding another one, because Snakemake does not find plugins in editable
    installs, and profiles that name the plugin's own executor and settings stay as they are.
    """
    ExecutorPluginRegistry().get_plugin("slurm").executor = Executor
    return Executor.reasons


def controller_answers() -> bool:
    """Whether SLURM's controller, or a backup of it, answers; true if ``scontrol`` cannot tell."""
    try:
        ping = subprocess.run(
            ["scontrol", "ping"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    except OSError:
        return True
    return " UP" in ping.stdout or " DOWN" not in ping.stdout


class Executor(SlurmExecutor):
    """Submits jobs when the controller answers, and keeps those of which it has not heard."""

    reasons: ClassVar[dict[str, str]] = {}
    """Why SLURM ended the last attempt of jobs, by the job's log."""

    def __post_init__(self) -> None:
        """Prepares the plugin's executor."""
        self._ending = threading.Event()
        self._away = threading.Event()
        self._was_away = threading.Event()  # until a query has succeeded after that
        self._reported: set[str] = set()
        super().__post_init__()

    def run_job(self, job: Any) -> None:
        """Submits a job as soon as the controller answers."""
        if self._answered():
            super().run_job(job)

    def run_array_jobs(self, jobs: list[Any]) -> None:
        """Submits an array of jobs as soon as the controller answers."""
        if self._answered():
            super().run_array_jobs(jobs)

    async def check_active_jobs(self, active_jobs: list[Any]) -> AsyncGenerator[Any, None]:
        """Yields the jobs that have not ended, among them all those about which SLURM gave no answer."""
        self._reported.clear()
        kept = []
        async for job in super().check_active_jobs(active_jobs):
            kept.append(job)
        heard = {job.external_jobid for job in kept} | self._reported
        unknown = [job for job in active_jobs if job.external_jobid not in heard]
        if unknown:
            self._say_away()
            self.next_seconds_between_status_checks = _ASK_EVERY_S
        elif active_jobs:
            if self._was_away.is_set():
                # Snakemake checks their output, and repeats a job that lacks some.
                for job in (gone := await asyncio.to_thread(self._gone, kept)):
                    self.report_job_success(job)
                kept = [job for job in kept if job not in gone]
            self._say_back()
        for job in (*kept, *unknown):
            yield job

    def _gone(self, jobs: Sequence[Any]) -> list[Any]:
        """Returns jobs of which the controller has no record any more: ended, and forgotten in an outage.

        It keeps ended jobs for MinJobAge, which may be shorter than an outage. Other clusters are not asked.
        """
        ids = ["squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i"]
        ids += ["--name", self.run_uuid]
        try:
            told = subprocess.run(ids, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
        except (OSError, subprocess.SubprocessError):
            return []
        self._was_away.clear()
        known = set(told.stdout.split())
        keys = ("cluster", "clusters", "slurm_cluster")
        here = [job for job in jobs if not any(job.job.resources.get(key) for key in keys)]
        return [job for job in here if job.external_jobid not in known]

    def report_job_success(self, job_info: Any) -> None:
        """Reports a job that SLURM has completed."""
        self._reported.add(job_info.external_jobid)
        self.reasons.pop(_log_of(job_info), None)
        super().report_job_success(job_info)

    def report_job_error(self, job_info: Any, msg: str | None = None, **kwargs: Any) -> None:
        """Reports a job that has failed, after writing SLURM's reason into its log."""
        self._reported.add(job_info.external_jobid)
        log = _log_of(job_info)
        self.reasons.pop(log, None)
        if log and (reason := reason_of(job_info, msg or "")):
            note(Path(log), reason)
            self.reasons[log] = reason
        super().report_job_error(job_info, msg=msg, **kwargs)

    def cancel(self) -> None:
        """Cancels the jobs, and gives up those that wait for the controller."""
        self._ending.set()
        super().cancel()

    def _answered(self) -> bool:
        """Waits until the controller answers; False if the workflow ends before that."""
        while not controller_answers():
            self._say_away()
            if self._ending.wait(_ASK_EVERY_S):
                return False
        self._say_back()
        return True

    def _say_away(self) -> None:
        self._was_away.set()
        if not self._away.is_set():
            self._away.set()
            self.logger.warning(
                "SLURM's controller does not answer; jobs go on without it, and this workflow waits for it"
            )

    def _say_back(self) -> None:
        if self._away.is_set():
            self._away.clear()
            self.logger.info("SLURM's controller answers again")


def _log_of(job_info: Any) -> str:
    """Returns the log of a job's rule; empty if there is none, as for groups of jobs."""
    return str(next(iter(getattr(job_info.job, "log", None) or ()), ""))


def reason_of(job_info: Any, message: str) -> str:
    """Returns in words why SLURM ended a job; empty if the job itself failed or was cancelled."""
    state = found[1] if (found := _STATE.search(message)) else ""
    job, number = job_info.job, job_info.external_jobid
    log = (job_info.aux or {}).get("slurm_logfile")
    if state == "OUT_OF_MEMORY" or (state and log is not None and _MEMORY.search(last_text(Path(log)))):
        asked = job.resources.get("mem_mb")
        limit = f" of {asked:,} MB" if isinstance(asked, int) else ""
        again = getattr(job, "attempt", 1) <= getattr(job, "restart_times", 0)
        remedy = "the next attempt asks for more" if again else f"raise mem_mb of {job.name} in the profile"
        return f"SLURM job {number} exceeded its memory{limit}; {remedy}"
    return f"SLURM job {number} {_STATES[state]}" if state in _STATES else ""


def note(log: Path, reason: str) -> None:
    """Appends a reason to a job's log, as its last error."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"error: {reason}\n")
