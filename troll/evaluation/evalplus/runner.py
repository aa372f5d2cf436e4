"""Runs evalplus' own checks inside the sandbox, and writes one JSON line per sample to standard output.

The process that evalplus starts for each program first confines itself and closes all descriptors, so that it
cannot fork, kill the evaluator or write its report; the rest is unchanged evalplus. Uses the standard library
and evalplus only; ``check.py`` starts it as a script. Input is a JSON file: ``{"dataset", "problems":
{task_id: record}, "samples": [[task_id, text]], "indices": [index], "extraction": how}``.
"""

import gc
import json
import multiprocessing.popen_fork
import os
import resource
import select
import shutil
import socket
import sys
import time
from typing import Any

import evalplus.eval
from evalplus.gen.util import trusted_exec

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - keep the start short

import extraction  # type: ignore[import-not-found] # noqa: F401 - for the programs
import syscall_filter  # type: ignore[import-not-found]
import thread_limit  # type: ignore[import-not-found]

_FILE_BYTES = 16 * 2**20
_POLL_S = 0.001
_unconfined = evalplus.eval.unsafe_execute


class _ThreadWatch:
    """A process that counts the programs' threads, which evalplus cannot do while it waits for a program."""

    def __init__(self) -> None:
        listeners, self._to_watch = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            try:
                self._to_watch.close()
                self._serve(listeners)
            finally:
                os._exit(0)
        listeners.close()

    def _serve(self, listeners: socket.socket) -> None:
        poller = select.poll()
        poller.register(listeners, select.POLLIN)
        counts: dict[int, thread_limit.ThreadCount] = {}
        while True:
            for descriptor, event in poller.poll():
                if descriptor == listeners.fileno():
                    message, received, _, _ = socket.recv_fds(listeners, 16, 1)
                    if not message:
                        return
                    for listener in received:
                        counts[listener] = thread_limit.ThreadCount(listener)
                        poller.register(listener, select.POLLIN)
                elif not event & select.POLLIN:
                    poller.unregister(descriptor)
                    del counts[descriptor]
                    os.close(descriptor)
                else:
                    counts[descriptor].answer()

    def tell(self, listener: int) -> None:
        """Sends the program's seccomp listener to the watching process; called in the program's process."""
        socket.send_fds(self._to_watch, [b"listener"], [listener])

    def fileno(self) -> int:
        return self._to_watch.fileno()


def _confine(watch: _ThreadWatch) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    os.closerange(3, watch.fileno())
    os.closerange(watch.fileno() + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    listener = syscall_filter.confine(threads="counted")
    if listener is not None:
        watch.tell(listener)
    os.closerange(3, 256)


def _wait(self: multiprocessing.popen_fork.Popen, timeout: float | None = None) -> int | None:
    """Replaces ``Popen.wait``, which hangs once a program has written to the sentinel pipe or closed it."""
    deadline = float("inf") if timeout is None else time.monotonic() + timeout
    while self.poll(os.WNOHANG) is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return self.returncode


def _clean() -> None:
    """Removes the files that a program left: all programs share one small file system."""
    for directory in (os.environ["TMPDIR"], "/dev/shm"):
        for entry in os.scandir(directory):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)  # noqa: PTH108 - keep the start short


def _references(dataset: str, problem: dict[str, Any]) -> dict[str, Any]:
    """Computes expected outputs and times of base and plus by evalplus; decodes MBPP's inputs in place."""
    not_none = False
    if dataset == "mbpp":
        from evalplus.data.mbpp import mbpp_deserialize_inputs
        from evalplus.eval._special_oracle import MBPP_OUTPUT_NOT_NONE_TASKS

        not_none = problem["entry_point"] in MBPP_OUTPUT_NOT_NONE_TASKS
        for kind in ("base_input", "plus_input"):
            problem[kind] = mbpp_deserialize_inputs(problem["task_id"], problem[kind])
    source = problem["prompt"] + problem["canonical_solution"]
    return {
        kind: trusted_exec(
            source,
            problem[f"{kind}_input"],
            problem["entry_point"],
            record_time=True,
            output_not_none=not_none,
        )
        for kind in ("base", "plus")
    }


def main() -> None:
    """Checks all samples of the job file."""
    with open(sys.argv[1], encoding="utf-8") as file:  # noqa: PTH123 - keep the start short
        job = json.load(file)
    report = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    watch = _ThreadWatch()

    sanitizes = job["extraction"] == "evalplus"
    if sanitizes:
        from evalplus.sanitize import sanitize

    def confined(dataset: str, entry_point: str, code: str, *rest: Any) -> None:
        _confine(watch)
        _unconfined(dataset, entry_point, sanitize(code, entry_point) if sanitizes else code, *rest)

    evalplus.eval.unsafe_execute = confined
    multiprocessing.popen_fork.Popen.wait = _wait  # type: ignore[method-assign]
    gc.freeze()
    print(json.dumps({"ready": True}), file=report, flush=True)
    current, references = "", {}
    for index in job["indices"]:
        task_id, source = job["samples"][index]
        problem, verdict = job["problems"][task_id], {"index": index, "base": False, "plus": False}
        if job["extraction"] in ("troll", "as_written"):
            asked = f"{problem['prompt']!r}, {source!r}, {problem['entry_point']!r}"
            how = f"as_written={job['extraction'] == 'as_written'}"
            source = f"__import__('extraction').load({asked}, globals(), {how})"
        if task_id != current:
            current, references = task_id, _references(job["dataset"], problem)
        for kind in ("base", "plus"):
            outputs, times = references[kind]
            status, _ = evalplus.eval.untrusted_check(
                job["dataset"],
                source,
                problem[f"{kind}_input"],
                problem["entry_point"],
                expected=outputs,
                atol=problem["atol"],
                ref_time=times,
                fast_check=True,
            )
            verdict[kind] = status == "pass"
            if not verdict[kind]:
                break  # plus counts only where base passed
        print(json.dumps(verdict), file=report, flush=True)
        _clean()


main()
