"""Starts the processes of a run, one per GPU with accelerate, or with torchrun on a machine without GPUs.

Also requeues SLURM jobs that run out of time.
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
_KILL_S = 300.0  # SLURM ends a job that it requeues; KillWait is 30 s by default


def numbers_of_gpus() -> list[int]:
    """Supported numbers of GPUs: those with a launch configuration."""
    return sorted(int(path.stem.removeprefix("gpus")) for path in CONFIGS.glob("gpus*.yaml"))


def launch_command(
    gpus: int, arguments: Sequence[str], *, cuda: bool, mixed_precision: bool = True
) -> list[str]:
    """The command that runs `troll` with these arguments in ``gpus`` processes (see `numbers_of_gpus`).

    Without ``cuda`` the processes share the machine's CPUs (gloo). ``mixed_precision`` is passed here because
    the bfloat16 of the launch configurations would override the trainer's option.
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
    # After the dashes, because the launchers would take the arguments for abbreviations of their options.
    return [sys.executable, *start, "-m", "--", "troll.cli", *arguments]


def run_in_processes(gpus: int, manifest: Path, *, mixed_precision: bool = True) -> None:
    """Runs the current command in several processes and forwards signals to them.

    Raises:
        UserError: there is no launch configuration for this number of GPUs, or the machine has fewer.
        Stopped: a signal stopped them before they wrote the ``manifest``; their state is saved.
        SystemExit: they failed, and have printed the error.
    """
    cuda = require_gpus(gpus, "training.gpus") > 0
    command = launch_command(gpus, sys.argv[1:], cuda=cuda, mixed_precision=mixed_precision)
    with tempfile.TemporaryDirectory() as directory:
        note = Path(directory) / "signal"
        environment = os.environ | share_terminal() | {SIGNAL_NOTE: str(note)}
        # In a separate process group: this process forwards keyboard interrupts.
        processes = subprocess.Popen(command, env=environment, process_group=0)
        sent = None
        try:
            while (status := _status(processes)) is None:
                if sent is None and (sent := held_signal()) is not None:
                    write_text(note, str(int(sent)))
        except BaseException:
            processes.send_signal(signal.SIGINT)  # the launcher ends its processes
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
    """Requeues this SLURM job and waits for SLURM to end it.

    Only after SIGUSR1, the warning before a time limit: after SIGTERM, SLURM itself requeues a preempted job
    or ends a cancelled one. Returns outside SLURM or if the job cannot be requeued; the exit status then
    makes the workflow retry.
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
