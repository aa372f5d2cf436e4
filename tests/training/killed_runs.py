"""Kills a run at random moments until it is complete; run by test_resume.py."""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from forked_runs import ended, finish, lines, start, wait_for

from troll.training.checkpoints import COMPLETE


def attempt(out, base, data, moments):
    """Starts the run and kills it; None if it was complete before that."""
    path = out / "metrics.jsonl"
    before = path.stat().st_ino if path.exists() else None
    process = start(out, base, data)
    begun = time.monotonic()
    if moments.random() < 0.2:  # while it loads
        if ended(process, moments.uniform(0, 1)) is not None:
            return None
    else:
        if not wait_for(process, out, 0, before):
            return None
        if not wait_for(process, out, lines(out) + moments.randint(0, 12), before):
            return None
        # Steps and checkpoints are shorter than this.
        if ended(process, moments.uniform(0, 0.1)) is not None:
            return None
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    checkpoints = list((out / "trainer").glob("checkpoint-*"))
    return {
        "seconds": round(time.monotonic() - begun, 2),
        "lines": lines(out),
        "checkpoints": len(checkpoints),
        "unfinished": sum(not (checkpoint / COMPLETE).exists() for checkpoint in checkpoints),
    }


def main(whole, killed, base, data, kills, seed):
    assert finish(start(whole, base, data)) == 0
    moments, found = random.Random(seed), []
    while len(found) < kills and (kill := attempt(killed, base, data, moments)):
        found.append(kill)
    if not (killed / "manifest.json").exists():
        assert finish(start(killed, base, data)) == 0
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    whole, killed, base, data, kills, seed = sys.argv[1:]
    main(Path(whole), Path(killed), Path(base), Path(data), int(kills), int(seed))
