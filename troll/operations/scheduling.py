"""What Snakemake's scheduler and executors need before the first job."""

import math
import time
from shlex import quote
from typing import Any

from troll.common.errors import UserError


def one_timer(scheduler: Any) -> None:
    """Lets a scheduler of Snakemake wait for one timer at a time.

    Where jobs per timespan are limited, and they are by default, Snakemake starts a timer after every look at
    the ready jobs, and looks again when it is over. A finished job is a look too, with a timer of its own. So
    no timer ever goes away, and after n jobs there are n looks in each timespan (Snakemake 9.27,
    `JobScheduler.schedule`). One timer finds the same jobs, a timespan later at most.
    """
    start = getattr(scheduler, "_schedule_reevalutation", None)
    if start is None:
        return
    due = -math.inf

    def start_if_none(delay: float) -> None:
        nonlocal due
        now = time.monotonic()
        if now >= due or now + delay < due:
            due = now + delay
            start(delay)

    scheduler._schedule_reevalutation = start_if_none


def check_interpreter(executable: str) -> None:
    """Refuses a Python whose path Snakemake cannot write into the commands of jobs elsewhere.

    It does so without quotes (Snakemake 9.27, `RealExecutor.format_job_exec`): every job would end at once.
    """
    if quote(executable) != executable:
        raise UserError(
            f"{executable}: jobs of a cluster cannot start a Python if its path has characters that a shell "
            "interprets; keep the environment elsewhere: make env VENV=~/troll-env"
        )
