"""Starts a run's processes: one for each GPU, by accelerate; on a machine without GPUs, by torchrun.

And has SLURM put a job that ran out of time back into its queue.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from troll.common.errors import Stopped, UserError
from troll.common.files import write_text
from troll.common.gpus import require_gpus
from troll.common.progress import say, share_terminal
from troll.common.signals import SIGNAL_NOTE, held_signal

CONFIGS = Path(__file__).parent / "launch_configs"
_KILL_S = 300.0  # SLURM ends a job that it requeues; KillWait is 30 s where nobody changed it


def numbers_of_gpus() -> list[int]:
    """How many GPUs a run may have: there is a configuration for each."""
    return sorted(int(path.stem.removeprefix("gpus")) for path in CONFIGS.glob("gpus*.yaml"))


def launch_command(
    gpus: int, arguments: Sequence[str], *, cuda: bool, mixed_precision: bool = True
) -> list[str]:
    """The command that runs `troll` with these arguments in ``gpus`` processes: see `numbers_of_gpus`.

    Without ``cuda`` the processes share the machine's processors (gloo). The configurations' bfloat16 would
    win against the trainer's own option, so that ``mixed_precision`` is told here, too.
    """
    path = CONFIGS / f"gpus{gpus}.yaml"
    if not path.exists():
        numbers = ", ".join(map(str, numbers_of_gpus()))
        raise UserError(f"training.gpus: no configuration for {gpus} GPUs; valid: {numbers}")
    if cuda:
        start = ["-m", "accelerate.commands.launch", "--config_file", str(path)]
        start += [] if mixed_precision else ["--mixed_precision", "no"]
    else:
        start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}"]
    # Behind the dashes, or else the launchers take the arguments for short forms of their own.
    return [sys.executable, *start, "-m", "--", "troll.cli", *arguments]


def run_in_processes(gpus: int, manifest: Path, *, mixed_precision: bool = True) -> None:
    """Runs this same command in several processes, and hands them the signals that come.

    Raises:
        UserError: there is no configuration for so many GPUs, or this machine has fewer.
        Stopped: a signal ended them before they wrote the ``manifest``; their state is saved.
        SystemExit: they failed, and have said why.
    """
    cuda = require_gpus(gpus, "training.gpus") > 0
    command = launch_command(gpus, sys.argv[1:], cuda=cuda, mixed_precision=mixed_precision)
    with tempfile.TemporaryDirectory() as directory:
        note = Path(directory) / "signal"
        environment = os.environ | share_terminal() | {SIGNAL_NOTE: str(note)}
        # A group of its own: of an interrupt at the keyboard it hears from this process.
        processes = subprocess.Popen(command, env=environment, process_group=0)
        sent = None
        try:
            while (status := _status(processes)) is None:
                if sent is None and (sent := held_signal()) is not None:
                    write_text(note, str(int(sent)))
        except BaseException:
            processes.send_signal(signal.SIGINT)  # the launcher ends the others
            processes.wait(timeout=60)
            raise
    if status and sent is not None and not manifest.exists():
        raise Stopped(f"{gpus} processes: stopped by {sent.name}; the same command resumes", sent)
    if status:
        raise SystemExit(1)


def _status(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(timeout=0.5)
    except subprocess.TimeoutExpired:
        return None


def requeue(number: int) -> None:
    """Has SLURM put this job back into the queue, and waits to be ended by it.

    Only after SIGUSR1, the warning before a time limit: SIGTERM means that SLURM has decided already, be it
    to requeue a preempted job or to end a cancelled one. Outside of SLURM, or where the job may not be
    requeued, it returns: the status tells the workflow to try again.
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
