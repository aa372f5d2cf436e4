"""The line that says how far a run of the workflow is: from Snakemake's events to text."""

import io
import json
import logging
import os
from collections import Counter
from types import SimpleNamespace

import pytest
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.tests import MockOutputSettings, TestLogHandlerBase

from troll.common import progress
from troll.experiment.experiment import COORDINATES
from troll.experiment.files import read_experiment
from troll.operations import progress_line
from troll.operations.progress_line import handler as module
from troll.operations.progress_line.handler import LogHandler, Settings
from troll.operations.progress_line.state import Job, State
from troll.operations.progress_line.words import line_of, news, roughly, tail
from troll.operations.time_left import TimeLeft


class TestTheInterfaceOfSnakemake(TestLogHandlerBase):
    """What the interface asks of every handler."""

    __test__ = True

    def get_log_handler_cls(self):
        return LogHandler

    def get_log_handler_settings(self):
        return Settings()


class Screen(io.StringIO):
    """A terminal, or a file."""

    def __init__(self, terminal):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal

    def shown(self):
        """What a person sees: of a line that is painted over, the last version."""
        lines = self.getvalue().split("\n")
        return [line.split("\r")[-1].replace("\x1b[K", "") for line in lines]


@pytest.fixture
def clock(monkeypatch):
    """A clock that is moved by hand, and no thread that looks at it."""
    now = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(module.time, "monotonic", lambda: now.now)
    monkeypatch.setattr(LogHandler, "_tick", lambda self: None)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    return now


def make(root, clock, *, terminal, **settings):
    screen = Screen(terminal)
    made = LogHandler(MockOutputSettings(), Settings(stream=screen, root=root, **settings))
    return made, screen


def send(handler, event=None, message="", level=logging.INFO, **fields):
    record = logging.LogRecord("snakemake", level, "", 0, message, None, None)
    if event is not None:
        record.event = event
    vars(record).update(fields)
    handler.handle(record)


WILDCARDS = dict(zip((*COORDINATES, "seed"), ["tiny", "chains", "clip", "grpo", "stale", "0"], strict=True))


def begin(handler, number, rule, message=None, log=None):
    fields = {"jobid": number, "rule_name": rule, "rule_msg": message, "log": log, "wildcards": WILDCARDS}
    send(handler, LogEvent.JOB_INFO, **fields)


def end(handler, number):
    send(handler, LogEvent.JOB_FINISHED, job_id=number)


def fail(handler, number, rule, log=(), **aux):
    fields = {"jobid": number, "rule_name": rule, "log": [*log], "aux": aux}
    send(handler, LogEvent.JOB_ERROR, level=logging.ERROR, **fields)


def plan(handler, **jobs):
    send(handler, LogEvent.RUN_INFO, stats=jobs | {"total": sum(jobs.values())})


def test_a_terminal_has_one_line_that_is_painted_over(tmp_path, clock):
    handler, screen = make(tmp_path, clock, terminal=True)
    send(handler, message="Building DAG of jobs...")
    plan(handler, configure=4, train=4)
    for number in range(4):
        begin(handler, number, "configure")
        end(handler, number)
    begin(handler, 4, "train", "train chains/clip/grpo/stale/seed0")
    begin(handler, 5, "train", "train chains/troll/grpo/stale/seed0")
    assert screen.getvalue().count("\n") == 0
    assert screen.shown()[0].startswith("4 of 8 jobs, time left not known yet; now: train chains/clip/")
    clock.now += 40
    end(handler, 4), end(handler, 5)
    begin(handler, 6, "train", "train chains/clip/grpo/stale/seed1")
    assert screen.shown()[0].startswith("6 of 8 jobs, ")
    assert screen.shown()[0].endswith("; now: train chains/clip/grpo/stale/seed1")
    handler.end()
    assert screen.shown() == [""], "the line is gone before others write"
    begin(handler, 7, "train")
    assert screen.shown() == [""]


def test_a_narrow_terminal_cuts_the_line(tmp_path, clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    handler, screen = make(tmp_path, clock, terminal=True)
    plan(handler, train=1)
    begin(handler, 0, "train", "train " + "x" * 100)
    assert len(screen.shown()[0]) < 40


def test_without_a_terminal_there_are_few_lines(tmp_path, clock):
    handler, screen = make(tmp_path, clock, terminal=False)
    plan(handler, train=1000)
    for number in range(1000):
        begin(handler, number, "train")
        clock.now += 6
        end(handler, number)
    lines = screen.getvalue().splitlines()
    assert 10 <= len(lines) <= 40
    assert "\r" not in screen.getvalue() and "\x1b" not in screen.getvalue()
    counts = [int(line.split(" of ")[0]) for line in lines]
    assert counts == sorted(counts) and counts[-1] >= 900


def test_hours_without_a_job_that_ends_are_told_more_and_more_rarely(tmp_path, clock):
    handler, screen = make(tmp_path, clock, terminal=False)
    plan(handler, train=3)
    begin(handler, 0, "train", "train a run of a day")
    for _ in range(24 * 60):
        clock.now += 60
        handler._progress()  # what the ticking thread calls
    lines = screen.getvalue().splitlines()
    assert 20 <= len(lines) <= 100
    assert "now: train a run of a day" in lines[-1]


def claims(root, **verdicts):
    entries = [
        {"id": name, "verdict": verdict, "sentence": f"S {name}"} for name, verdict in verdicts.items()
    ]
    (root / "claims.json").write_text(json.dumps({"claims": entries}))


def test_verdicts_stay_when_they_become_firm(tmp_path, clock):
    claims(tmp_path, a="inconclusive", b="supported everywhere")
    handler, screen = make(tmp_path, clock, terminal=True)
    plan(handler, claims=2, train=1)
    begin(handler, 0, "claims")
    assert "decided" not in screen.shown()[-1], "those that were there may be a release's"
    claims(tmp_path, a="not shown", b="supported everywhere", c="inconclusive", d="not run")
    end(handler, 0)
    assert screen.shown()[0] == "verdict: not shown: S a"
    assert "2 of 3 claims decided" in screen.shown()[1]
    (tmp_path / "claims.json").write_text("{")
    begin(handler, 1, "claims")
    end(handler, 1)
    assert "2 of 3 claims decided" in screen.shown()[1], "a broken file is as good as none"


def test_a_verdict_that_is_lost_is_news_too():
    known = {"a": ("supported everywhere", "S")}
    assert list(news(known, {"a": ("inconclusive", "S")})) == ["verdict: inconclusive: S"]
    assert not list(news({}, {"a": ("inconclusive", "S")}))


def test_a_failed_job_is_shown_with_its_log(tmp_path, clock):
    log = tmp_path / "train.log"
    log.write_text("\n".join(f"line {number}" for number in range(100)) + "\nerror: no space left\n\n")
    handler, screen = make(tmp_path, clock, terminal=True)
    plan(handler, train=2)
    begin(handler, 0, "train", "train chains/clip")
    fail(handler, 0, "train", [str(log)], external_jobid="17")
    shown = screen.shown()
    assert shown[:3] == [
        "error: rule train failed (train chains/clip)",
        "  external_jobid: 17",
        f"  log: {log}",
    ]
    assert shown[10] == "  | error: no space left" and "  | line 92" not in shown and "  | line 93" in shown
    # The long command that failed is in Snakemake's log; other errors are shown as they are.
    failed = "CalledProcessError in file train.smk: Command 'x' returned non-zero exit status 1."
    send(handler, LogEvent.ERROR, failed, logging.ERROR)
    send(handler, LogEvent.ERROR, "MissingOutputException in rule b", logging.ERROR)
    assert "CalledProcessError" not in screen.getvalue()
    assert "MissingOutputException in rule b" in screen.shown()
    # Tried again, it runs again.
    send(handler, message="Trying to restart job 0.")
    begin(handler, 0, "train", "train chains/clip")
    assert "Trying to restart job 0." in screen.shown()
    assert screen.shown()[-1].endswith("now: train chains/clip")


def test_a_base_model_from_the_model_cache_is_a_line(tmp_path, clock):
    log = tmp_path / "chains.log"
    handler, screen = make(tmp_path, clock, terminal=True)
    plan(handler, base_model=2, train=1)
    for number, line in enumerate(("[train]: step 7/7", "[base] tiny/chains/base: taken from there")):
        begin(handler, number, "base_model", "base model", [str(log)])
        log.write_text(f"{line}\n")
        end(handler, number)
    assert screen.shown()[0] == "[base] tiny/chains/base: taken from there"
    assert screen.shown()[1].endswith("2 of 3 jobs, time left not known yet") and len(screen.shown()) == 2


def test_jobs_of_a_scheduler_may_wait():
    state = State(jobs=Counter(train=1))
    state.start(0, Job("train", "train chains/clip"))
    assert line_of(state, queued=True).endswith("; submitted: train chains/clip")


STOPPING = "Terminating processes on user request, this might take some time."
EXITING = "Exiting because a job execution failed. Look above for error messages"
FAILED = "WorkflowError:\nAt least one job did not complete successfully."
NOTHING = "Nothing to be done (all requested files are present and up to date)."
LEVELS = {"a warning": logging.WARNING, EXITING: logging.ERROR, FAILED: logging.ERROR}
COMMAND = (
    "CalledProcessError in file \"/a b/train.smk\", line 19:\nCommand 'x' died with <Signals.SIGKILL: 9>."
)
CONDA = "CalledProcessError: conda returned non-zero exit status 1"
INTERRUPTED = "interrupted: stopping the running jobs; the same command resumes from there"


@pytest.mark.parametrize(
    ("jobs", "told", "shown"),
    [
        (3, ["the job fails", EXITING, FAILED], ["error: rule train failed (train chains/clip)"]),
        # An interruption is no failure.
        (
            3,
            [STOPPING, STOPPING, "the job fails", [FAILED], FAILED, "Complete log(s): /x.log"],
            [INTERRUPTED, "full log: /x.log"],
        ),
        # The command of a killed job is not shown before its failure is.
        (1, [[f"RuleException:\n{COMMAND}"]], []),
        # An error before any job is shown whole.
        (0, [[CONDA], *["a warning"] * 3, "host: a", NOTHING], [CONDA, "a warning", NOTHING]),
    ],
)
def test_what_snakemake_repeats_is_told_once(tmp_path, clock, jobs, told, shown):
    handler, screen = make(tmp_path, clock, terminal=False)
    if jobs:
        plan(handler, train=jobs)
        begin(handler, 0, "train", "train chains/clip")
    for text in told:
        if text == "the job fails":
            fail(handler, 0, "train")
        elif isinstance(text, list):  # an error as an event, not as a message
            send(handler, LogEvent.ERROR, *text, logging.ERROR)
        else:
            send(handler, None, text, LEVELS.get(text, logging.INFO))
    assert screen.getvalue().splitlines() == shown


@pytest.mark.parametrize(
    ("stage", "jobs", "named"), [("", 1, True), ("first comparison", 1, False), ("first comparison", 2, True)]
)
def test_the_log_is_named_at_the_end_except_of_a_stage_that_succeeded(
    tmp_path, clock, monkeypatch, stage, jobs, named
):
    monkeypatch.chdir(tmp_path)
    handler, screen = make(tmp_path, clock, terminal=True, stage=stage)
    plan(handler, train=jobs)
    begin(handler, 0, "train")
    end(handler, 0)
    send(handler, message=f"Complete log(s): {tmp_path}/.snakemake/log/x.log")
    assert ("full log: .snakemake/log/x.log" in screen.shown()) == named
    assert screen.shown()[-1] == ""


def test_a_mistake_of_its_own_brings_the_usual_log_back_and_ends_nothing(tmp_path, clock):
    brought = []
    handler, screen = make(tmp_path, clock, terminal=True, instead=lambda: brought.append(1))
    plan(handler, train=1)
    send(handler, LogEvent.JOB_INFO)  # an event of another version, without its fields
    send(handler, LogEvent.JOB_INFO)
    begin(handler, 0, "train")
    assert brought == [1]
    assert "warning: the progress line has failed: AttributeError" in screen.getvalue()


def test_nobody_listening_ends_nothing(tmp_path, clock):
    handler, screen = make(tmp_path, clock, terminal=True)
    screen.close()
    plan(handler, train=1)
    begin(handler, 0, "train")
    assert not handler._broken


def test_the_time_left_is_that_of_the_runs_that_are_asked_for_and_not_yet_trained():
    state = State(jobs=Counter(train=8, sample=8))
    assert state.left() is None and "time left not known yet" in line_of(state)
    state.runs_left = TimeLeft(16 * 30.0, 30.0, 16)  # of an experiment of which half is asked for
    assert state.left() == pytest.approx(8 * 30)
    state.start(0, Job("train", "")), state.start(1, Job("train", ""))
    assert state.left() == pytest.approx(8 * 30 / 2), "two at a time"
    state.fail(1)
    assert state.left() == pytest.approx(7 * 30), "what failed takes no time until it is tried again"
    state.runs_left = TimeLeft(110.0, 100.0, 7)
    for number in range(1, 8):
        state.start(number, Job("train", ""))
    assert state.left() == 100, "a long last run is what is left"
    for number in range(8):
        state.finish(number)
    assert line_of(state) == "8 of 16 jobs" and state.finish(9) is None


@pytest.mark.parametrize("rule", ["base_model", "hub_model"])
def test_the_time_of_a_base_model_is_not_guessed(rule):
    state = State(jobs=Counter({rule: 1, "train": 10}), runs_left=TimeLeft(100.0, 10.0, 10))
    state.start(0, Job(rule, ""))
    assert state.left() is None
    state.finish(0)
    assert state.left() == pytest.approx(100)


def test_steps_of_running_runs_are_shown(tmp_path, clock):
    handler, screen = make(tmp_path, clock, terminal=True)
    plan(handler, train=2)
    handler._state.steps = {"tiny/chains/clip/grpo/stale/seed0": (1200, 2000)}
    begin(handler, 0, "train", "train it")
    assert screen.shown()[0].endswith("; now: train it (step 1,200 of 2,000)")


def test_a_part_of_make_results_has_a_name():
    state = State(jobs=Counter(train=1), runs_left=TimeLeft(600.0, 600.0, 1))
    assert line_of(state, "first comparison", "3 of 8 claims decided") == (
        "first comparison: 0 of 1 jobs, 10 min left; 3 of 8 claims decided"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "5 s"), (62, "60 s"), (100, "2 min"), (3600, "1 h"), (4000, "1 h 7 min"), (200000, "2 days 8 h")],
)
def test_times_are_rough(seconds, text):
    assert roughly(seconds) == text


def test_the_tail_of_a_log_that_is_not_there_or_is_no_text(tmp_path):
    assert tail(tmp_path / "none") == []
    (tmp_path / "binary").write_bytes(os.urandom(100_000))
    assert len(tail(tmp_path / "binary")) <= 8


def workflow(tmp_path, **settings):
    """What a Snakefile has as `workflow`, as far as the line needs it."""
    logger = logging.Logger("snakemake")
    usual = logging.StreamHandler(io.StringIO())
    usual.name = "DefaultStreamHandler"
    logger.addHandler(usual)
    names = ("quiet", "verbose", "printshellcmds", "debug_dag", "dryrun", "stdout")
    return SimpleNamespace(
        is_main_process=True,
        nodes=None,
        modifier=SimpleNamespace(is_main_snakefile=lambda: True),
        output_settings=SimpleNamespace(**(dict.fromkeys(names, False) | settings)),
        logger_manager=SimpleNamespace(logger=logger, get_logfile=lambda: [str(tmp_path / "log")]),
    ), usual


def test_it_takes_the_place_of_the_usual_log_and_of_nothing_else(repository, tmp_path, monkeypatch, capsys):
    experiment = read_experiment(repository / "tests/workflow/reduced.yaml")
    found, usual = workflow(tmp_path)
    shown = progress_line.install(found, experiment, tmp_path)
    assert shown.settings.log == tmp_path / "log"
    assert [type(one) for one in found.logger_manager.logger.handlers] == [LogHandler]
    shown.end()
    switches = [{name: True} for name in ("quiet", "verbose", "printshellcmds", "debug_dag", "dryrun")]
    for asked in (*switches, {"module": True}, {"environment": "0"}):
        found, usual = workflow(tmp_path, **asked)
        monkeypatch.setenv(progress_line.SWITCH, asked.get("environment", ""))
        found.modifier.is_main_snakefile = lambda asked=asked: "module" not in asked
        assert progress_line.install(found, experiment, tmp_path) is None
        assert found.logger_manager.logger.handlers == [usual], asked
    # Another version of Snakemake, in which things are called otherwise.
    monkeypatch.delenv(progress_line.SWITCH)
    assert progress_line.install(SimpleNamespace(), experiment, tmp_path) is None
    assert "warning: no progress line: AttributeError" in capsys.readouterr().err


def test_jobs_write_where_they_are_told():
    assert progress_line.TERMINAL == progress._SHARED
