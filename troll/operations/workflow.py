"""Runs the workflow from a command of this package, with its log in a file and regular progress lines."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from troll.common.errors import UserError
from troll.common.files import is_locked
from troll.common.progress import clock, say
from troll.operations.progress_line import SWITCH

PROGRAM = (sys.executable, "-m", "troll.cli", "run")
"""The command that `make results` also runs."""
_RULES = Path("workflow/Snakefile")
_ALIVE = Path(".snakemake/running.lock")
"""A file on which every Snakemake that works here holds a shared lock until it ends, even if it is killed."""
_STEPS = re.compile(rb"(\d+) of (\d+) (?:steps|jobs)")
_SAY_EVERY_S = 30.0


@dataclass(frozen=True)
class Ended:
    """How a run of the workflow ended."""

    status: int
    last: str  # last line of its log


def mark_running() -> None:
    """Marks, until this process ends, that a Snakemake works in this directory."""
    with suppress(OSError):  # not writable, or a file system without locks
        _ALIVE.parent.mkdir(exist_ok=True)
        fcntl.flock(os.open(_ALIVE, os.O_RDWR | os.O_CREAT, 0o644), fcntl.LOCK_SH)


def is_running() -> bool:
    """Whether a Snakemake works in this directory; false where the file system has no locks."""
    return bool(is_locked(_ALIVE, fcntl.LOCK_EX))


def in_checkout(command: str) -> None:
    """Raises a UserError unless the working directory is the root of a checkout."""
    if not _RULES.exists():
        raise UserError(f"{command}: {_RULES} is not here; run this in the root of a checkout")


def run_workflow(
    experiment: Path,
    targets: Sequence[str],
    log: Path,
    *,
    cores: int,
    environment: Mapping[str, str] | None = None,
    keep_going: bool = False,
) -> Ended:
    """Runs the workflow of an experiment file; an interrupted workflow resumes.

    Raises:
        UserError: if it fails with an error of its own before the first job.
        SystemExit: after a SIGTERM, once the running jobs have ended.
    """
    command = [*PROGRAM, str(experiment), "--cores", str(cores), *(["--keep-going"] if keep_going else [])]
    command += ["--", *targets]
    variables = {**(os.environ if environment is None else environment), SWITCH: "0"}  # logs everything
    begun = reported = time.monotonic()
    with log.open("wb") as out, noted(signal.SIGTERM) as terminated:
        process = subprocess.Popen(command, env=variables, stdout=out, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None:
                time.sleep(0.5)
                if terminated:
                    say(f"{log}: SIGTERM received; waiting for the running jobs to end")
                    break
                if time.monotonic() - reported > _SAY_EVERY_S:
                    reported = time.monotonic()
                    say(f"{_progress(log)}, {clock(reported - begun)}")
        finally:
            if process.poll() is None:  # on SIGTERM, Snakemake starts no further jobs
                process.terminate()
                process.wait()
        if terminated:
            raise SystemExit(128 + signal.SIGTERM)
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = lines[-1] if lines else "the log is empty"
    if process.returncode and last.startswith("error: "):  # from before its first job
        raise UserError(f"{log}: {last.removeprefix('error: ')}")
    return Ended(process.returncode, last)


@contextmanager
def noted(*signals: signal.Signals) -> Iterator[list[int]]:
    """Yields a list that collects these signals, which would otherwise end this process and orphan jobs."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # only the main thread can set handlers
        yield came
        return
    before = {number: signal.signal(number, lambda sent, _: came.append(sent)) for number in signals}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _progress(log: Path) -> str:
    steps = _STEPS.findall(log.read_bytes())
    return "{} of {} jobs".format(*(part.decode() for part in steps[-1])) if steps else "no job done yet"
