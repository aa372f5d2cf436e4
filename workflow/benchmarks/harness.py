"""Shared code of the cost measurements: each one runs in a separate process, and variants take turns.

Separate processes have separate memory peaks, and turns spread slow minutes of the machine over all variants.
A worker is a module that receives its settings as JSON and prints its measurements as JSON.
"""

import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch

from troll.common.errors import UserError
from troll.common.progress import clock, say

LEAST_PROJECTED = 0.1
"""Minimum share of projected tokens; with fewer, a measurement of TROLL would miss the projection's cost."""

W = TypeVar("W")


def check(device: str, **sizes: int) -> None:
    """Raises `UserError` if the device is not available or a size is below 1."""
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise UserError(f"cost: device {device!r} is not available; use cpu")
    for name, size in sizes.items():
        if size < 1:
            raise UserError(f"cost: {name} must be at least 1 (found {size})")


def check_projected(name: str, share: float) -> None:
    """Rejects a measurement of a projection that projected too few tokens.

    Args:
        name: name of the measurement.
        share: share of its tokens that were projected, from 0 to 1.

    Raises:
        UserError: the share is below `LEAST_PROJECTED`.
    """
    if not share >= LEAST_PROJECTED:
        raise UserError(
            f"cost: {name} projected {100 * share:.3g} % of its tokens, must be at least "
            f"{100 * LEAST_PROJECTED:.0f} %, or the measurement misses the projection's cost"
        )


def hardware(device: str, threads: int | None) -> str:
    """Returns a description of the device."""
    if device == "cuda":
        return str(torch.cuda.get_device_name())
    return f"{platform.machine()} CPU, {threads or torch.get_num_threads()} threads"


def in_turns(
    worker: str, works: Mapping[str, Any], repeats: int, threads: int | None
) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Measures every variant ``repeats`` times, in turns, and reports progress.

    Args:
        worker: the measuring module, in the same directory.
        works: settings (a dataclass) by the variant's name.
        repeats: measurements per variant.
        threads: CPU threads; by default those of the environment.

    Yields:
        Name, number of the repeat, and the worker's measurements.

    Raises:
        UserError: a measurement failed, for example out of memory.
    """
    names = list(works)
    begun, done, total = time.monotonic(), 0, repeats * len(names)
    for repeat in range(repeats):
        # In reverse order every other time, so that no variant always follows the same one.
        for name in names if repeat % 2 == 0 else reversed(names):
            measured = measure(worker, name, works[name], threads)
            done += 1
            seconds = (time.monotonic() - begun) / done
            repeats_s = measured["seconds"]
            took = median(repeats_s) if isinstance(repeats_s, list) else repeats_s
            say(f"[cost] {done}/{total}: {name}, {took:.4f} s; {clock(seconds * (total - done))} left")
            yield name, repeat, measured


def measure(worker: str, name: str, work: Any, threads: int | None) -> dict[str, Any]:
    """Measures once in a separate process; raises `UserError` if the worker fails."""
    environment = dict(os.environ)
    if threads is not None:
        environment |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    command = [sys.executable, str(Path(__file__).with_name(f"{worker}.py")), json.dumps(asdict(work))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        errors = done.stderr.strip().splitlines() or [f"killed by signal {-done.returncode} (out of memory?)"]
        raise UserError(f"cost: {name} failed: {errors[-1]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def serve(kind: type[W], work: Callable[[W], Mapping[str, Any]]) -> None:
    """Main program of a worker: runs with the settings in its argument and prints the measurements."""
    if sys.argv[1:] in ([], ["-h"], ["--help"]):
        raise SystemExit(
            f"{sys.argv[0]} is started by `python workflow/benchmarks/measure.py`, see its --help"
        )
    print(json.dumps(work(kind(**json.loads(sys.argv[1])))))


class Clock:
    """Measures seconds and peak memory since its creation."""

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"
        if self._cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
        else:
            _forget_peak()
            self._before = _resident("VmRSS")
        self._processor, self._start = time.process_time(), time.perf_counter()

    def read(self) -> dict[str, float]:
        """Returns wall-clock and processor seconds, and peak bytes above those held at the start."""
        if self._cuda:
            torch.cuda.synchronize()
        seconds, processor = time.perf_counter() - self._start, time.process_time() - self._processor
        peak = torch.cuda.max_memory_allocated() if self._cuda else _resident("VmHWM")
        return {
            "seconds": seconds,
            "processor_seconds": processor,
            "peak_bytes": float(max(0, peak - self._before)),
        }


def timed(device: str, work: Callable[[], None]) -> tuple[float, float]:
    """Returns wall-clock and processor seconds of a call; does not reset the memory peak."""
    if device == "cuda":
        torch.cuda.synchronize()
    begun, processor = time.perf_counter(), time.process_time()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun, time.process_time() - processor


def _forget_peak() -> None:
    """Resets the kernel's peak of this process's memory (only on Linux; elsewhere it is never reset)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _resident(field: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
