"""Runs of `troll job train`, as processes forked from one that has loaded the libraries: those cost time."""

import gc
import os
import sys
import time

import transformers.models.qwen3.modeling_qwen3  # noqa: F401 - what is trained here

from troll.cli.app import main
from troll.training import run  # noqa: F401 - loads them


def start(out, base, data, prepare=None, terminal=None):
    """A process that trains the run, from wherever it is; ``prepare`` is called in it first.

    What a person would see goes to the file descriptor ``terminal``, or else to standard error.
    """
    gc.collect()
    gc.freeze()  # or else every run would go through all that the libraries have made, again and again
    process = os.fork()
    if process:
        return process
    if terminal is not None:
        os.dup2(terminal, 2)
    sys.argv = ["troll", "--log", str(out / "log"), "job", "train", str(out / "run.yaml")]
    sys.argv += ["--base", str(base), "--data", str(data), "--suites", str(data / "suites")]
    status = 120
    try:
        if prepare is not None:
            prepare()
        main()
        status = 0
    except SystemExit as end:
        status = end.code or 0
    finally:
        os._exit(status)


def ended(process, seconds):
    """The exit status of a process if it ends by itself within some time; none if it does not."""
    until = time.monotonic() + seconds
    while True:
        pid, status = os.waitpid(process, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            return None
        time.sleep(0.001)


def finish(process):
    """The exit status of a process."""
    status = ended(process, 900)
    if status is None:
        raise RuntimeError("a run takes too long")
    return status


def lines(out):
    """Lines of the run's metrics so far."""
    path = out / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for(process, out, count, before=None):
    """Waits until an attempt has written so many lines, in another file than the one before it.

    Returns:
        Whether it has; it may have ended before.
    """
    path = out / "metrics.jsonl"
    while not (path.exists() and path.stat().st_ino != before and lines(out) >= count):
        if (status := ended(process, 0)) is not None:
            if status:
                raise RuntimeError(
                    f"an attempt ended with status {status}: {(out / 'log').read_text()[-2000:]}"
                )
            return False
        time.sleep(0.001)
    return True
