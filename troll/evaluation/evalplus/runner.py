"""Runs evalplus' own checks inside the sandbox, and writes one JSON line per sample to standard output.

The process that evalplus starts for each program first confines itself and closes all descriptors, so that it
cannot fork, kill the evaluator or write its report; the rest is unchanged evalplus. Uses the standard library
and evalplus only; ``check.py`` starts it as a script. Input is a JSON file: ``{"dataset", "problems":
{task_id: record}, "samples": [[task_id, text]], "indices": [index], "extraction": how}``.
"""

import gc
import json
import mmap
import multiprocessing.popen_fork
import os
import resource
import select
import shutil
import signal
import socket
import sys
import time
from typing import Any

import evalplus.eval
from evalplus.gen.util import trusted_exec

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - keep the start short

import extraction  # type: ignore[import-not-found]
import syscall_filter  # type: ignore[import-not-found]
import thread_limit  # type: ignore[import-not-found]

_FILE_BYTES = 16 * 2**20
_POLL_S = 0.001
_EXTRACTION_S = 60.0  # evalplus' sanitizer parses every range of lines
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


def _as_evalplus_takes(problem: dict[str, Any], dataset: str, completion: str) -> str:
    """Returns what `evalplus.codegen` gives to its sanitizer, whether or not the model was prompted in chat.

    A function that is defined anew stands alone and has to import what it needs, as chat answers do; other
    completions follow the prompt.
    """
    from evalplus.provider.utility import EOS, extra_eos_for_direct_completion

    alone = extraction.own_definition(completion, problem["entry_point"])
    text = completion if alone is None else alone
    stops = [*EOS, *(extra_eos_for_direct_completion(dataset) if alone is None else ())]
    text = text[: min((text.index(stop) for stop in stops if stop in text), default=len(text))]
    text = text.replace("\t", "    ")
    return f"{problem['prompt'].strip()}\n{text}" if alone is None else text


def _sanitized(watch: _ThreadWatch, job: dict[str, Any], problem: dict[str, Any], completion: str) -> str:
    """Returns the program that evalplus' sanitizer finds; empty if it fails.

    It runs in a process of its own, which is confined as programs are, because it parses hostile text, and
    has its own time limit, because it may take longer than the program.
    """
    from evalplus.sanitize import sanitize

    # Answers come through memory, because a confined process has no descriptors.
    size = 4 * (len(problem["prompt"]) + len(completion)) + 4096
    memory = mmap.mmap(-1, size)
    child = os.fork()
    if child == 0:
        try:
            _confine(watch)
            if job["extraction"] == "evalplus":
                completion = _as_evalplus_takes(problem, job["dataset"], completion)
            data = sanitize(completion, problem["entry_point"]).encode()
            memory[8 : 8 + len(data)] = data
            memory[:8] = len(data).to_bytes(8, "big")
        finally:
            os._exit(0)
    deadline = time.monotonic() + _EXTRACTION_S
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(_POLL_S)
    length = min(int.from_bytes(memory[:8], "big"), size - 8)
    return memory[8 : 8 + length].decode("utf-8", "replace")


def main() -> None:
    """Checks all samples of the job file."""
    with open(sys.argv[1], encoding="utf-8") as file:  # noqa: PTH123 - keep the start short
        job = json.load(file)
    report = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    watch = _ThreadWatch()

    def confined(*arguments: Any) -> None:
        _confine(watch)
        _unconfined(*arguments)

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
        elif job["extraction"] != "none":
            source = _sanitized(watch, job, problem, source)
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
