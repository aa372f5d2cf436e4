"""Handles Snakemake's events: repaints a line on a terminal, or writes occasional plain lines elsewhere."""

import logging
import os
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.settings import LogHandlerSettingsBase

from troll.experiment.experiment import Experiment
from troll.operations.places import run_id
from troll.operations.progress_line import words
from troll.operations.progress_line.state import BASES, Job, State
from troll.operations.status import status_of
from troll.operations.time_left import time_left

_REPAINT_S = 1.0
_READ_S, _READ_SHARE = 5.0, 0.05
"""Least interval between reads of the runs' files, and the largest share of the time that they may take."""
_STEP = 0.1
"""Without a terminal, a line is due after this share of the jobs ..."""
_GAP_S = 120.0
"""... or after this time without one (in a long run, after a tenth of the elapsed time) ..."""
_LEAST_GAP_S = 10.0
"""... but never sooner than this."""
_NOISE = re.compile(
    r"host: |Building DAG of jobs|Assuming unrestricted shared filesystem|Using shell: |Provided |"
    r"Rules claiming more threads|Conda environments: ignored|Singularity containers: ignored|Group jobs: |"
    r"Select jobs to execute|Execute \d+ jobs|Removing output files of failed job|Touching output file|"
    r"Removing temporary output|Config file .* is (extended|replaced)|Elapsed time: |Storing |"
    r".* has been submitted with|SLURM run ID|Falling back to 'sacct'|Auto-selected partition"
)
"""Uninformative messages, which are not shown. All others are, and all warnings and errors."""
_INTERRUPTED = "Terminating processes on user request"
_JOBS_FAILED = re.compile(
    r"At least one job did not complete successfully|Exiting because a job execution failed"
)
"""Adds nothing to the messages of the failed jobs, and is the last thing that Snakemake says."""
_COMPLETE = re.compile(r"Complete log\(s\): (.+)")
_RAN = re.compile(r"CalledProcessError|returned non-zero exit status|Command .* died with")
_OF_A_JOB = re.compile(r"CalledProcessError in file \S.*, line \d+")
"""Precedes the event of the job's failure."""


@dataclass
class Settings(LogHandlerSettingsBase):
    """The handler's settings, besides Snakemake's own."""

    stream: TextIO | None = None
    experiment: Experiment | None = None
    root: Path = Path()  # directory of the results
    log: Path | None = None
    stage: str = ""  # what precedes the line, if this is only the first part of `make results`
    queued: bool = False  # whether jobs go to a scheduler
    # restores Snakemake's own log; called once if this handler fails
    instead: Callable[[], None] | None = None


class LogHandler(LogHandlerBase):
    """Shows the progress of a run. If it fails, it restores Snakemake's own log, and the run goes on."""

    settings: Settings

    def __post_init__(self) -> None:
        """Reads existing verdicts, and checks for a terminal."""
        given = self.settings
        self._state = State()
        self._verdicts = words.verdicts_in(given.root / "claims.json")
        self._decided = ""  # existing verdicts are those of a release or an earlier run
        self._terminal = _is_terminal(given.stream)
        self._painted = self._last = ""
        self._broken = self._interrupted = False
        self._shown = 0.0  # share of the jobs in the last plain line
        self._spoke = self._began = time.monotonic()
        self._ticker: threading.Thread | None = None
        self._stop = threading.Event()

    writes_to_stream = property(lambda self: True)
    writes_to_file = property(lambda self: False)
    has_filter = property(lambda self: True)
    has_formatter = property(lambda self: True)
    needs_rulegraph = property(lambda self: False)

    def emit(self, record: logging.LogRecord) -> None:
        """Handles one of Snakemake's events or messages."""
        if self._broken:
            return
        try:
            self._handle(record)
        except Exception as error:
            self._give_up(error)

    def end(self) -> None:
        """Removes the line for good."""
        with suppress(Exception):
            self._stop.set()
            with self.lock or threading.RLock():
                self._erase()

    def close(self) -> None:
        """Removes the line when Snakemake ends."""
        self.end()
        super().close()

    def _handle(self, record: logging.LogRecord) -> None:
        event: Any = record
        text = record.getMessage()
        if (self._interrupted or self._state.failed) and _JOBS_FAILED.search(text):
            return
        match getattr(record, "event", None):
            case LogEvent.RUN_INFO:
                self._state.jobs = Counter(event.stats)
                del self._state.jobs["total"]
                if self._ticker is None and not self._stop.is_set():
                    self._ticker = threading.Thread(target=self._tick, name="progress line", daemon=True)
                    self._ticker.start()
            case LogEvent.JOB_INFO:
                name, logs = str(event.rule_msg or event.rule_name), list(event.log or ())
                trained = run_id(event.wildcards) if event.rule_name == "train" else ""
                self._state.start(event.jobid, Job(event.rule_name, name, logs, trained))
                self._paint()
            case LogEvent.JOB_FINISHED:
                done = self._state.finish(event.job_id)
                if done is not None and done.rule.startswith("claims"):
                    self._judged()
                if done is not None and done.rule in BASES:
                    self._say(words.taken(done.logs))
                self._progress()
            case LogEvent.JOB_ERROR:
                job = self._state.fail(event.jobid)
                if not self._interrupted:  # interrupted jobs have not failed
                    name = job.name if job else ""
                    self._say(words.failure(event.rule_name, name, list(event.log or ()), event.aux or {}))
            case LogEvent.ERROR:
                # Errors about the exit status of a shell command add nothing to the job's log.
                if not (_OF_A_JOB.search(text) or (self._state.failed and _RAN.search(text))):
                    self._say([text])
            case None | LogEvent.GROUP_ERROR:
                self._message(text, record.levelno)

    def _message(self, text: str, level: int) -> None:
        if text.startswith(_INTERRUPTED):
            if not self._interrupted:
                self._say(["interrupted: stopping the running jobs; the same command resumes from there"])
            self._interrupted = True
        elif complete := _COMPLETE.match(text):
            self.end()
            if not self.settings.stage or self._state.done.total() < self._state.jobs.total():
                self._say(f"full log: {_short(path)}" for path in complete[1].split(", "))
        # Snakemake repeats messages while it shuts down.
        elif text not in ("", "None", self._last) and (level >= logging.WARNING or not _NOISE.match(text)):
            self._last = text
            self._say([text])

    def _judged(self) -> None:
        new = words.verdicts_in(self.settings.root / "claims.json")
        self._say(words.news(self._verdicts, new))
        self._verdicts = new or self._verdicts
        self._decided = words.decided(self._verdicts)

    def _tick(self) -> None:
        """Repaints the line in a thread of its own, because time passes without events."""
        due = 0.0
        while not self._stop.wait(_REPAINT_S):
            if (now := time.monotonic()) >= due:
                with suppress(Exception):  # files may be half-written
                    self._read_runs()
                took = time.monotonic() - now
                due = now + max(_READ_S, took / _READ_SHARE)
            self.acquire()
            try:
                if not self._stop.is_set():
                    self._paint() if self._terminal else self._progress()
            except Exception as error:
                self._give_up(error)
                return
            finally:
                self.release()

    def _read_runs(self) -> None:
        """Reads the steps of running runs, and estimates the time left."""
        experiment, root = self.settings.experiment, self.settings.root
        if experiment is not None:
            statuses = status_of(experiment, root.parent)
            left = time_left(experiment, root.parent, statuses)
            steps = {one.name: (one.step, one.steps) for one in statuses if one.state == "running"}
            self._state.runs_left, self._state.steps = left, steps

    def _progress(self) -> None:
        """Repaints the line; without a terminal, writes a plain line if enough has changed."""
        if self._terminal:
            self._paint()
            return
        now = time.monotonic()
        share = self._state.done.total() / max(self._state.jobs.total(), 1)
        gap = now - self._spoke
        long = gap >= max(_GAP_S, 0.1 * (now - self._began))
        if long or (gap >= _LEAST_GAP_S and share >= self._shown + _STEP):
            self._shown, self._spoke = share, now
            self._write(self._line() + "\n")

    def _line(self) -> str:
        return words.line_of(self._state, self.settings.stage, self._decided, queued=self.settings.queued)

    def _say(self, lines: Iterable[str]) -> None:
        """Writes lines that stay, above the repainted one."""
        text = "".join(f"{line}\n" for line in lines)
        if text:
            self._erase()
            self._write(text)
            self._paint()

    def _paint(self) -> None:
        if self._terminal and self._ticker is not None and not self._stop.is_set():
            width = shutil.get_terminal_size().columns
            line = self._line()
            cut = line if len(line) < width else f"{line[: max(width - 2, 0)]}…"
            if cut != self._painted:
                self._write(f"\r{cut}\x1b[K")
                self._painted = cut

    def _erase(self) -> None:
        if self._painted:
            self._write("\r\x1b[K")
            self._painted = ""

    def _write(self, text: str) -> None:
        # The stream may be closed, which must not end the run.
        with suppress(OSError, ValueError):
            if self.settings.stream is not None:
                self.settings.stream.write(text)
                self.settings.stream.flush()

    def _give_up(self, error: Exception) -> None:
        self._broken = True
        self._stop.set()
        with suppress(Exception):
            self._erase()
            self._write(f"warning: the progress line has failed: {type(error).__name__}: {error}\n")
        with suppress(Exception):
            if self.settings.instead is not None:
                self.settings.instead()


def _is_terminal(stream: TextIO | None) -> bool:
    with suppress(OSError, ValueError):
        return stream is not None and stream.isatty() and os.environ.get("TERM") not in (None, "dumb")
    return False


def _short(path: str) -> str:
    """Makes a path below the working directory relative to it."""
    found = Path(path)
    return str(found.relative_to(Path.cwd()) if found.is_relative_to(Path.cwd()) else found)
