"""The executor for SLURM, without a SLURM: jobs that are kept, and reasons that are told."""

import asyncio
from types import SimpleNamespace

import pytest
from snakemake_executor_plugin_slurm import Executor as SlurmExecutor
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from troll.operations import slurm_executor
from troll.operations.slurm_executor import Executor, controller_answers, install


@pytest.fixture
def executor(monkeypatch):
    """An executor that keeps what it says; its parts that need a workflow are left out."""
    monkeypatch.setattr(SlurmExecutor, "__init__", lambda self, workflow, logger: None)
    monkeypatch.setattr(SlurmExecutor, "report_job_success", lambda self, job: None)
    monkeypatch.setattr(SlurmExecutor, "report_job_error", lambda self, job, **_: None)
    monkeypatch.setattr(Executor, "reasons", {})
    executor, said = Executor(None, None), []
    executor.run_uuid = "of-this-workflow"
    executor.logger = SimpleNamespace(warning=said.append, info=said.append)
    executor.said = said
    return executor


def job(number, log="", slurm_log=None, *, attempt=1, memory=2000, output=(), **resources):
    rule = SimpleNamespace(
        name="train",
        log=[log] if log else [],
        output=output,
        resources={"mem_mb": memory} | resources,
        attempt=attempt,
        restart_times=1,
    )
    return SimpleNamespace(external_jobid=str(number), job=rule, aux={"slurm_logfile": slurm_log})


def active(executor, jobs):
    async def ask():
        return [job async for job in executor.check_active_jobs(jobs)]

    return asyncio.run(ask())


def answering(monkeypatch, *, running=(), done=()):
    async def check(self, jobs):
        for number in done:
            self.report_job_success(jobs[number])
        for number in running:
            yield jobs[number]

    monkeypatch.setattr(SlurmExecutor, "check_active_jobs", check)


def test_the_first_check_may_come_before_the_plugins_executor_is_complete(monkeypatch):
    """RemoteExecutor starts the thread that checks in its own constructor."""
    answering(monkeypatch)
    monkeypatch.setattr(SlurmExecutor, "__init__", lambda self, workflow, logger: active(self, []))
    Executor(None, None)


@pytest.fixture
def listed(monkeypatch, tmp_path):
    """Sets what a stand-in for `squeue` lists; None: no answer."""

    def set_to(*numbers):
        program = tmp_path / "squeue"
        words = " ".join(map(str, numbers))
        program.write_text(f"#!/bin/sh\n{'exit 1' if None in numbers else f'echo {words}'}\n")
        program.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path))
    return set_to


def test_jobs_of_which_nothing_is_heard_stay_active(executor, monkeypatch, listed):
    jobs = [job(4), job(5), job(6)]
    answering(monkeypatch)  # what the plugin does if all its attempts fail
    listed(None)
    assert active(executor, jobs) == jobs and active(executor, jobs) == jobs
    assert executor.next_seconds_between_status_checks == 10
    listed(4, 5, 6)
    answering(monkeypatch, running=[0], done=[2, 1])
    assert active(executor, jobs) == [jobs[0]]
    assert [text.split("controller ")[1][:7] for text in executor.said] == ["does no", "answers"], "once each"


def test_jobs_that_slurm_lists_no_more_have_ended(executor, monkeypatch, listed, tmp_path):
    ended, failed, marked = [], [], {"7"}
    monkeypatch.setattr(SlurmExecutor, "report_job_success", lambda self, job: ended.append(job))
    monkeypatch.setattr(SlurmExecutor, "report_job_error", lambda self, job, **_: failed.append(job))
    whole, missing = tmp_path / "whole", tmp_path / "missing"
    whole.touch()
    jobs = [
        job(4, output=[whole]),
        job(5, output=[whole, missing], log=str(tmp_path / "5.log")),
        job(6, output=[whole]),
        job(7, output=[whole]),  # was cancelled before it began: its output is of an earlier job
        job(8, output=[missing], slurm_cluster="another"),
    ]
    executor.workflow = SimpleNamespace(
        persistence=SimpleNamespace(
            external_jobids=lambda job: marked & {info.external_jobid for info in jobs if info.job is job}
        ),
        execution_settings=SimpleNamespace(latency_wait=60),
    )
    listed(6)
    for heard in ([0, 1, 2, 3, 4], []):  # whether the plugin takes them for new, or had no answer of sacct
        ended.clear()
        answering(monkeypatch, running=heard)
        assert active(executor, jobs) == jobs[1:] and ended == jobs[:1] and not failed
    executor.workflow.execution_settings.latency_wait = 0
    answering(monkeypatch, running=[0, 1, 2, 3])
    assert active(executor, jobs[1:]) == [jobs[2], jobs[4]] and failed == [jobs[1], jobs[3]]
    reason = "SLURM job 5 ended without its output, and SLURM no longer knows why (MinJobAge)"
    assert (tmp_path / "5.log").read_text() == f"error: {reason}\n"


@pytest.mark.parametrize(
    ("told", "answers"),
    [
        ("Slurmctld(primary) at n1 is UP", True),
        ("Slurmctld(primary) at n1 is DOWN", False),
        ("Slurmctld(primary) at n1 is DOWN\nSlurmctld(backup) at n2 is UP", True),
        ("unknown words of another version", True),
    ],
)
def test_a_controller_or_its_backup_answers(tmp_path, monkeypatch, told, answers):
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\nprintf '%s' '{told}'\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert controller_answers() == answers


def test_a_job_is_submitted_when_the_controller_answers_again(executor, monkeypatch):
    submitted, answers = [], iter([False, False, True])
    monkeypatch.setattr(SlurmExecutor, "run_job", lambda self, job: submitted.append(job))
    monkeypatch.setattr(slurm_executor, "_ASK_EVERY_S", 0.01)
    monkeypatch.setattr(slurm_executor, "controller_answers", lambda: next(answers))
    executor.run_job("a job")
    assert submitted == ["a job"] and next(answers, None) is None
    monkeypatch.setattr(slurm_executor, "controller_answers", lambda: False)
    monkeypatch.setattr(SlurmExecutor, "cancel", lambda self: None)
    executor.cancel()
    executor.run_job("another")  # returns: the workflow is ending
    assert submitted == ["a job"]


OOM = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.batch. Some tasks have been OOM Killed."
POLLED = "slurmstepd: error: StepId=7.batch exceeded memory limit (75 > 62), being killed"


@pytest.mark.parametrize(
    ("state", "said", "attempt", "reason"),
    [
        ("OUT_OF_MEMORY", "", 1, "exceeded its memory of 2,000 MB; the next attempt asks for more"),
        ("FAILED", OOM, 2, "exceeded its memory of 2,000 MB; raise mem_mb of train in the profile"),
        ("FAILED", POLLED, 1, "exceeded its memory of 2,000 MB; the next attempt asks for more"),
        ("TIMEOUT", "", 1, "reached its time limit"),
        ("NODE_FAIL", "", 1, "lost its node"),
        ("FAILED", "error: the loss is nan", 1, ""),
        ("CANCELLED", "", 1, ""),
    ],
)
def test_why_slurm_ended_a_job_is_the_last_error_of_its_log(executor, tmp_path, state, said, attempt, reason):
    log, slurm_log = tmp_path / "train.log", tmp_path / "7.log"
    log.write_text("error: of the attempt before\n")
    slurm_log.write_text(said)
    info = job(7, str(log), slurm_log, attempt=attempt)
    executor.report_job_error(info, msg=f"SLURM-job '7' failed, SLURM status is: '{state}'. ")
    last = f"SLURM job 7 {reason}" if reason else "of the attempt before"
    assert log.read_text().splitlines()[-1] == f"error: {last}"
    assert executor.reasons == ({str(log): last} if reason else {})
    executor.report_job_success(info)  # another attempt
    assert not executor.reasons


def test_snakemake_takes_it_for_the_executor_of_the_plugin(monkeypatch):
    plugin = ExecutorPluginRegistry().get_plugin("slurm")
    monkeypatch.setattr(plugin, "executor", SlurmExecutor)
    install()
    assert plugin.executor is Executor
