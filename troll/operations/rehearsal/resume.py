"""One run killed and gone on with, beside the one that nobody disturbed."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from troll.common.digests import sha256_of_file
from troll.common.files import read_jsonl, write_text
from troll.experiment.experiment import BASE
from troll.operations.rehearsal.outcome import Done
from troll.operations.rehearsal.report import Check
from troll.operations.rehearsal.shrink import PROCESSES

_NAME = "resuming"
_LIMIT_S = 600.0
_WEIGHTS = "checkpoint/model.safetensors"


def _chosen(done: Sequence[Done]) -> Done | None:
    """The run with most to resume: one with a rule that projects first, then the most steps."""
    alone = [item for item in done if not item.run.condition.endswith(PROCESSES)]
    return max(alone, key=lambda item: (bool(item.values("kl_projected_max")), len(item.rows)), default=None)


def _train(item: Done, directory: Path, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    base = item.root / BASE / item.run.model / item.run.task / "checkpoint"
    command = [sys.executable, "-m", "troll.cli", "--log", str(directory / "train.log"), "job", "train"]
    command += [str(directory / "run.yaml"), "--base", str(base)]
    command += ["--data", str(item.root / "data" / item.run.task)]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, env=dict(environment), stdout=quiet, stderr=quiet, process_group=0)


@contextmanager
def _training(
    item: Done, directory: Path, environment: Mapping[str, str]
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that trains; in the end it is killed with all that it has started, should it still live."""
    process = _train(item, directory, environment)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def check_resuming(done: Sequence[Done], environment: Mapping[str, str]) -> list[Check]:
    """Retrains a run, kills it after its first checkpoint, resumes it, and compares it with the original."""
    item = _chosen(done)
    if item is None:
        return []
    key = f"run {item.run.run_id}"
    directory = item.root / "resumed" / item.run.run_id
    shutil.rmtree(directory, ignore_errors=True)
    write_text(directory / "run.yaml", (item.directory / "run.yaml").read_text(encoding="utf-8"))
    with _training(item, directory, environment) as process:
        deadline = time.monotonic() + _LIMIT_S
        while not any(directory.glob("trainer/checkpoint-*/complete.json")):
            if process.poll() is not None or time.monotonic() > deadline:
                return [Check(_NAME, "failed", f"has left no checkpoint; see {directory / 'train.log'}", key)]
            time.sleep(0.002)
    if (directory / "manifest.json").exists():
        return [Check(_NAME, "note", "the run was over before it could be killed", key)]
    with _training(item, directory, environment) as process, suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_LIMIT_S)
    if process.returncode:
        return [Check(_NAME, "failed", f"does not resume; see {directory / 'train.log'}", key)]
    return [_compared(item, directory, key)]


def _compared(item: Done, directory: Path, key: str) -> Check:
    ours, theirs = (
        [{name: row[name] for name in row if name != "time"} for row in rows]
        for rows in (read_jsonl(directory / "metrics.jsonl"), item.rows)
    )
    if ours != theirs:
        step = next(
            (row["step"] for row, other in zip(theirs, ours, strict=False) if row != other), len(ours)
        )
        return Check(_NAME, "failed", f"killed and resumed, its metrics differ from step {step} on", key)
    if sha256_of_file(directory / _WEIGHTS) != sha256_of_file(item.directory / _WEIGHTS):
        return Check(_NAME, "failed", "killed and resumed, it ends with other weights", key)
    return Check(_NAME, "ok", f"{item.run.run_id}, killed and resumed, equals the undisturbed run")
