"""The SLURM executor plugin for Snakemake, made to survive an outage of SLURM's controller.

With the plugin's own executor (2.8.0) Snakemake waits for ever if every attempt of one status query fails,
because `check_active_jobs` then neither reports nor yields any job, and if SLURM forgets an ended job before
it is asked. And ``sbatch`` fails at once, which uses up a job's retries in a minute. docs/cluster.md, "When
SLURM is away", has the details, and why no setting helps.

The executor here also writes why SLURM ended a job into the job's log, where the progress line and
`troll status` find it.
"""

import asyncio
import re
import subprocess
import threading
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from snakemake_executor_plugin_slurm import Executor as SlurmExecutor
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from troll.common.programs import output_of
from troll.operations.status import last_text

_ASK_EVERY_S = 10
_TIMEOUT_S = 30.0
_STATE = re.compile(r"SLURM status is: '(\w+)'")
# Of slurmstepd, by cgroups or by polling, and of the kernel.
_MEMORY = re.compile(r"oom[-_ ]kill|out of memory|memory limit", re.IGNORECASE)
_STATES = {
    "TIMEOUT": "reached its time limit",
    "NODE_FAIL": "lost its node",
    "BOOT_FAIL": "lost its node, which did not boot",
    "DEADLINE": "could not end before its deadline",
    "FORGOTTEN": "ended without its output, and SLURM no longer knows why (MinJobAge)",  # our own
}
_FORGOTTEN = "SLURM status is: 'FORGOTTEN'"  # as the plugin words a state


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

    def __init__(self, workflow: Any, logger: Any) -> None:
        """Makes ready for the first check, which the plugin's executor may begin before it is complete."""
        self._ending = threading.Event()
        self._away = False
        self._reported: set[str] = set()
        self._missed: dict[str, float] = {}  # when SLURM first did not list a job
        super().__init__(workflow, logger)

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
        kept = [job async for job in super().check_active_jobs(active_jobs)]
        heard = {job.external_jobid for job in kept} | self._reported
        unknown = [job for job in active_jobs if job.external_jobid not in heard]
        listed = await asyncio.to_thread(self._listed) if kept or unknown else None
        if unknown and listed is None:
            self._say_away()
            self.next_seconds_between_status_checks = _ASK_EVERY_S
        elif active_jobs:
            self._say_back()
        for job in (*kept, *unknown):
            if listed is None or job.external_jobid in listed or not self._forgotten(job):
                yield job

    def _listed(self) -> set[str] | None:
        """Asks which of this workflow's jobs SLURM still lists, ended ones too; None without an answer."""
        command = ["squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i"]
        listed = output_of(*command, "--name", self.run_uuid)
        return None if listed is None else set(listed.split())

    def _forgotten(self, job_info: Any) -> bool:
        """Reports a job that SLURM does not list, by what it left; False while its files may yet appear.

        SLURM lists ended jobs for MinJobAge, which an outage, or the time between two checks, may exceed.
        The plugin takes such a job for a new one, and waits. Jobs of other clusters are left to it.
        """
        job, number = job_info.job, job_info.external_jobid
        if any(job.resources.get(key) for key in ("cluster", "clusters", "slurm_cluster")):
            return False
        since = self._missed.setdefault(number, time.monotonic())
        # Snakemake marks outputs with the number of a job, until the job begins; it then deletes them.
        began = not self.workflow.persistence.external_jobids(job)
        if began and all(Path(file).exists() for file in job.output):
            self.logger.info(f"SLURM no longer lists job {number}; its output is complete")
            self.report_job_success(job_info)
        elif time.monotonic() - since < self.workflow.execution_settings.latency_wait:
            return False
        else:
            self.report_job_error(job_info, msg=f"SLURM-job '{number}' failed, {_FORGOTTEN}. ")
        return True

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
        if not self._away:
            self.logger.warning(
                "SLURM's controller does not answer; jobs go on without it, and this workflow waits for it"
            )
        self._away = True

    def _say_back(self) -> None:
        if self._away:
            self.logger.info("SLURM's controller answers again")
        self._away = False


def _log_of(job_info: Any) -> str:
    """Returns the log of a job's rule; empty if there is none, as for groups of jobs."""
    return str(next(iter(getattr(job_info.job, "log", None) or ()), ""))


def reason_of(job_info: Any, message: str) -> str:
    """Returns in words why SLURM ended a job; empty if the job itself failed or was cancelled."""
    state = found[1] if (found := _STATE.search(message)) else ""
    job, number = job_info.job, job_info.external_jobid
    log = (job_info.aux or {}).get("slurm_logfile")
    if state == "OUT_OF_MEMORY" or (state and log is not None and _MEMORY.search(last_text(Path(log)))):
        requested = job.resources.get("mem_mb")
        limit = f" of {requested:,} MB" if isinstance(requested, int) else ""
        again = getattr(job, "attempt", 1) <= getattr(job, "restart_times", 0)
        remedy = "the next attempt asks for more" if again else f"raise mem_mb of {job.name} in the profile"
        return f"SLURM job {number} exceeded its memory{limit}; {remedy}"
    return f"SLURM job {number} {_STATES[state]}" if state in _STATES else ""


def note(log: Path, reason: str) -> None:
    """Appends a reason to a job's log, as its last error."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"error: {reason}\n")
