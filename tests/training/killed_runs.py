"""Kills a run at random moments until it is complete; run by test_resume.py.

Every attempt is a process of its own, forked from one that has loaded the libraries: those cost the time.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from troll.experiments import read_run_file
from troll.training.checkpoints import COMPLETE
from troll.training.run import train_run


def start(out, base, data):
    """A process that trains the run, from wherever it is."""
    process = os.fork()
    if process:
        return process
    log = os.open(out / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        train_run(read_run_file(out / "run.yaml"), base, data, out)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(1)
    os._exit(0)


def ended(process, seconds):
    """Whether a process has ended by itself within some time."""
    until = time.monotonic() + seconds
    while True:
        pid, status = os.waitpid(process, os.WNOHANG)
        if pid:
            if status:
                raise RuntimeError(f"an attempt ended with status {status}")
            return True
        if time.monotonic() > until:
            return False
        time.sleep(0.001)


def lines_since(path, before):
    """Lines of the metrics, once the file is another one than before: then an attempt has begun to train."""
    found = path.stat() if path.exists() else None
    if found is None or found.st_ino == before:
        return None
    return path.read_bytes().count(b"\n")


def attempt(out, base, data, moments):
    """Starts the run and kills it; None if it was complete before that."""
    path = out / "metrics.jsonl"
    before = path.stat().st_ino if path.exists() else None
    process = start(out, base, data)
    begun = time.monotonic()
    if moments.random() < 0.2:  # while it loads
        if ended(process, moments.uniform(0, 1)):
            return None
    else:
        while lines_since(path, before) is None:
            if ended(process, 0):
                return None
        target = lines_since(path, before) + moments.randint(0, 12)
        while lines_since(path, before) < target:
            if ended(process, 0):
                return None
        # Steps and checkpoints are shorter than this.
        if ended(process, moments.uniform(0, 0.1)):
            return None
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    checkpoints = list((out / "trainer").glob("checkpoint-*"))
    return {
        "seconds": round(time.monotonic() - begun, 2),
        "lines": lines_since(path, None),
        "checkpoints": len(checkpoints),
        "unfinished": sum(not (checkpoint / COMPLETE).exists() for checkpoint in checkpoints),
    }


def main(whole, killed, base, data, kills, seed):
    if not ended(start(whole, base, data), 300):
        raise RuntimeError("the uninterrupted run takes too long")
    moments, found = random.Random(seed), []
    while len(found) < kills and (kill := attempt(killed, base, data, moments)):
        found.append(kill)
    if not (killed / "manifest.json").exists() and not ended(start(killed, base, data), 300):
        raise RuntimeError("the last attempt takes too long")
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    whole, killed, base, data, kills, seed = sys.argv[1:]
    main(Path(whole), Path(killed), Path(base), Path(data), int(kills), int(seed))
