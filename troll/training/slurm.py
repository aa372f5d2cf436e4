"""What a job asks of SLURM for itself."""

import os
import signal
import subprocess

from troll.common.progress import say

_KILL_S = 300.0  # SLURM ends a job that it requeues; KillWait is 30 s where nobody changed it


def requeue(number: int) -> None:
    """Has SLURM put this job back into the queue, and waits to be ended by it.

    Only after SIGUSR1, the warning before a time limit: SIGTERM means that SLURM has decided already, be it
    to requeue a preempted job or to end a cancelled one. Outside of SLURM, or where the job may not be
    requeued, it returns: the status tells the workflow to try again.

    Args:
        number: of the signal that stopped the job.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if number != signal.SIGUSR1 or job is None:
        return
    try:
        result = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        say(f"job {job} was not requeued: {error}")
        return
    if result.returncode:
        say(f"job {job} was not requeued: {' '.join(result.stderr.split())}")
        return
    say(f"job {job} is requeued")
    signal.sigtimedwait([signal.SIGTERM], _KILL_S)
