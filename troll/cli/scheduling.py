"""How often Snakemake's scheduler looks at the jobs that are ready."""

import math
import time
from typing import Any


def one_timer(scheduler: Any) -> None:
    """Lets a scheduler of Snakemake wait for one timer at a time.

    Where jobs per timespan are limited, and they are by default, Snakemake starts a timer after every look at
    the ready jobs, and looks again when it is over. A finished job is a look too, with a timer of its own. So
    no timer ever goes away, and after n jobs there are n looks in each timespan (Snakemake 9.27,
    `JobScheduler.schedule`). One timer finds the same jobs, a timespan later at most.

    Args:
        scheduler: of this run; one that has no such timers stays as it is.
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
