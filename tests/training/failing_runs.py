"""Lets runs be stopped and fail in every way, and go on; run by test_resume.py.

The run called ``full`` lies on a file system that is small enough to be filled.
"""

import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import run_cases
import torch
from forked_runs import finish, lines, start, wait_for

from troll.common.signals import hold_signals
from troll.training.checkpoints import COMPLETE
from troll.training.trainer import TrustRegionTrainer

LEFT = 200_000  # bytes: less than a checkpoint, more than lines of metrics


def checkpoints(out):
    found = sorted((out / "trainer").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    return [path for path in found if (path / COMPLETE).exists()]


def killed(process, out):
    """Leaves a run with three checkpoints, two of them damaged."""
    wait_for(process, out, 17)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    *_, older, newest = checkpoints(out)
    content = bytearray((newest / "optimizer.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (newest / "optimizer.pt").write_bytes(content)
    os.truncate(older / "model.safetensors", 1000)
    return -signal.SIGKILL


def stopped_by(number, count):
    def stop(process, out):
        wait_for(process, out, count)
        os.kill(process, number)
        return finish(process)

    return stop


def filled(process, out):
    wait_for(process, out, 5)
    space = os.statvfs(out)
    with (out / "ballast").open("wb") as ballast:
        ballast.write(bytes(space.f_bavail * space.f_bsize - LEFT))
    return finish(process)


def emptied(out):
    (out / "ballast").unlink()


def fails_at(step, effect):
    """Makes the loss of a step do something else."""

    def prepare():
        right = TrustRegionTrainer._compute_loss

        def wrong(self, model, inputs):
            loss = right(self, model, inputs)
            return effect(loss) if self.state.global_step == step else loss

        TrustRegionTrainer._compute_loss = wrong

    return prepare


def nan_at(step):
    """Gives the loss of a step a value that is no number, before it is looked at."""

    def prepare():
        from troll.training import policy_loss

        right, calls = policy_loss.aggregate, []

        def wrong(*arguments, **settings):
            calls.append(1)
            return right(*arguments, **settings) * (torch.nan if len(calls) == step else 1.0)

        policy_loss.aggregate = wrong

    return prepare


def raises(error):
    def effect(loss):
        raise error

    return effect


def stopped_before():
    """A signal that comes before anything is trained."""
    hold_signals()
    os.kill(os.getpid(), signal.SIGTERM)


def finished(process, out):
    return finish(process)


CASES = {
    "damaged": (None, killed),
    "warned": (None, stopped_by(signal.SIGUSR1, 6)),
    "ended": (None, stopped_by(signal.SIGTERM, 10)),
    "early": (stopped_before, finished),
    "full": (None, filled),
    "memory": (fails_at(10, raises(MemoryError())), finished),
    "gpu": (
        fails_at(10, raises(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB. More"))),
        finished,
    ),
    "nan": (nan_at(10), finished),
}


def main(directory, base, data):
    def ending(out):
        return run_cases.metrics(out), run_cases.weights(out)

    assert finish(start(directory / "whole", base, data)) == 0
    expected = ending(directory / "whole")
    found = {}
    for name, (prepare, disturb) in CASES.items():
        out = directory / name
        with tempfile.TemporaryFile("w+") as terminal:
            process = start(out, base, data, prepare, terminal.fileno())
            result = {"status": disturb(process, out), "lines": lines(out), "said": (out / "log").read_text()}
            terminal.seek(0)
            result["terminal"] = terminal.read()
        result["checkpoints"] = [int(path.name.split("-")[1]) for path in checkpoints(out)]
        result["unfinished"] = len(list((out / "trainer").glob("checkpoint-*"))) - len(result["checkpoints"])
        (out / "log").unlink()
        if name == "full":
            emptied(out)
        result["again"] = finish(start(out, base, data))
        result["said_again"] = (out / "log").read_text()
        result["equal"] = result["again"] == 0 and ending(out) == expected
        found[name] = result
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
