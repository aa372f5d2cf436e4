"""Starts and talks to the worker processes that compare answers, in lines of JSON.

A worker (``judge_worker.py``, ``math_worker.py``) limits its own memory and CPU time. The wall clock only
catches hangs: a slow comparison on a loaded machine must not fail.
"""

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any


class EndError(Exception):
    """A worker is gone or does not answer."""

    def __init__(self, reason: str, late: bool) -> None:
        super().__init__(reason)
        self.late = late  # whether it ran out of time, by the wall clock or its own limit of CPU time


class Worker:
    """A worker process that is ready: it runs a module with arguments and further environment variables.

    Attributes:
        greeting: its first line, which says that it is ready.

    Raises:
        EndError: it is not ready within ``start_s`` seconds.
    """

    def __init__(self, module: str, start_s: float, *arguments: str, **environment: str) -> None:
        self.owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            bufsize=0,
        )
        self._buffer = b""
        self.deadline = time.monotonic() + start_s
        atexit.register(self.close)
        try:
            self.greeting = self._line().decode()
        except EndError:
            self.close()
            raise

    def send(self, question: Any, patience_s: float) -> None:
        """Sends a question; all its answers must arrive within ``patience_s`` seconds."""
        assert self._process.stdin is not None
        self.deadline = time.monotonic() + patience_s
        data = memoryview(json.dumps(question).encode() + b"\n")
        while data:
            data = data[self._process.stdin.write(data) or 0 :]

    def answer(self) -> Any:
        """Returns the next answer; raises `EndError` if none comes."""
        return json.loads(self._line())

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        descriptor, poll = self._process.stdout.fileno(), select.poll()
        poll.register(descriptor, select.POLLIN)
        while b"\n" not in self._buffer:
            if not poll.poll(1000 * max(self.deadline - time.monotonic(), 0)):
                raise EndError("no answer in time", late=True)
            if not (data := os.read(descriptor, 1 << 16)):
                status = self._process.wait()
                late = status == -signal.SIGPROF
                raise EndError("CPU time" if late else f"the comparison died ({status})", late)
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def close(self) -> None:
        """Kills the process."""
        atexit.unregister(self.close)
        if self.owner != os.getpid():
            return  # this is a copy in a fork; the process belongs to the parent
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
