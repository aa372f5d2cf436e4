"""`troll status`: what is done, what lives, what broke and why; from files alone."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import yaml
from refusals import error_of, refused

from troll.analysis.data.archive import append_run
from troll.common.files import only_writer
from troll.common.numerics import NUMERICS
from troll.experiment.experiment import resolve, resolve_base
from troll.experiment.files import parse_experiment, read_experiment, write_run_file
from troll.experiment.keys import planned_keys
from troll.experiment.settings import Suite
from troll.operations.slurm_queue import comments_of, read_queue
from troll.operations.status import RunStatus, is_held, show, status_of, with_queue
from troll.operations.time_left import TimeLeft, time_left

RUN = "tiny/chains/{}/grpo/stale/seed0"


@pytest.fixture
def experiment(repository):
    return read_experiment(repository / "tests/workflow/reduced.yaml")


@pytest.fixture
def results(tmp_path):
    """Results of the reduced experiment in which nothing was done yet."""
    return tmp_path / "results"


def write_run(results, rule, *, steps=0, manifest=False, grades=False, log="", stage="train"):
    """A run's files: `steps` lines of metrics a second apart, success 0.25 at the first step of a batch."""
    directory = results / "reduced/runs" / RUN.format(rule)
    directory.mkdir(parents=True, exist_ok=True)
    rows = [
        {"step": n, "time": {"wall_s": 10.0 + n}} | ({"success": 0.25} if n % 4 == 1 else {})
        for n in range(1, steps + 1)
    ]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, wanted in (("manifest.json", manifest), ("grades.json", grades)):
        if wanted:
            (directory / name).write_text("{}")
    place = "train" if stage == "train" else f"{stage}/runs"
    path = results / "reduced/logs" / place / f"{RUN.format(rule)}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(log)
    return directory


@pytest.fixture
def keep(finished, results, tmp_path):
    """Puts finished runs and base models of an experiment into its tables."""

    def to_keep(experiment, *names, numerics=NUMERICS):
        keys = planned_keys(experiment, experiment.runs())
        configs = {run.run_id: resolve(experiment, run) for run in experiment.runs()}
        configs |= {
            f"base/{model}/{task}": resolve_base(experiment, model, task)
            for model, task in experiment.bases()
        }
        for name in names:
            place = tmp_path / "elsewhere" / ("" if name.startswith("base/") else "runs") / name
            append_run(finished(place, configs[name], numerics), results / "reduced", keys[name])

    return to_keep


def of(statuses, rule):
    return next(status for status in statuses if status.name == RUN.format(rule))


def test_nothing_done_is_all_missing(experiment, results):
    found = status_of(experiment, results)
    assert len(found) == 2 + 4
    assert {status.state for status in found} == {"missing"}
    assert show(found, "reduced")[0] == "reduced: 4 runs: 4 missing"
    assert not results.exists(), "reading makes nothing"


def test_the_time_left_comes_from_running_runs_and_from_earlier_ones(experiment, results, monkeypatch):
    def left():
        return time_left(experiment, results, status_of(experiment, results))

    assert left() is None, "nothing is known"
    directory = write_run(results, "troll", steps=4)
    with only_writer(directory):  # a second a step: four are left
        assert left() is None, "nothing is known of the other task"
        monkeypatch.setattr("troll.operations.time_left.estimate", lambda _, run, *__: 100.0)
        assert left() == TimeLeft(4 + 3 * 100, 100, 4)
        monkeypatch.setattr(
            "troll.operations.time_left.estimate", lambda _, run, *__: None if run.task == "chains" else 100.0
        )
        assert left() == TimeLeft(4 + 8 + 2 * 100, 100, 4), "clip is taken to be as fast as TROLL"
    monkeypatch.setattr("troll.operations.time_left.estimate", lambda *_: 100.0)
    assert left() == TimeLeft(50 + 3 * 100, 100, 4), "half of a run that was interrupted"
    write_run(results, "troll", steps=20)  # of an earlier file, whose runs were longer
    assert left() == TimeLeft(300, 100, 4)
    with only_writer(directory):
        assert of(status_of(experiment, results), "troll").left_s == 0
    write_run(results, "troll", steps=8, manifest=True)
    assert left() == TimeLeft(300, 100, 3)


def test_a_run_goes_from_missing_to_done(experiment, results):
    write_run(results, "clip", steps=4)
    assert of(status_of(experiment, results), "clip") == RunStatus(
        RUN.format("clip"), "stopped", 4, 8, success=0.25
    )
    write_run(results, "clip", steps=8, manifest=True)
    assert of(status_of(experiment, results), "clip").state == "trained"
    write_run(results, "clip", steps=8, manifest=True, grades=True)
    assert of(status_of(experiment, results), "clip").state == "done"


def change(experiment, **changes):
    """The experiment with its file's contents changed: keys are dotted names, with `__` for the dots."""
    data = experiment.model_dump(exclude_unset=True)
    for name, value in changes.items():
        *path, last = name.split("__")
        place = data
        for key in path:
            place = place[key]
        place[last] = value
    return parse_experiment(data, "changed.yaml")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"training__temperature": 0.5}, "training.temperature was 1.0, is now 0.5"),
        ({"trust_regions__troll__settings": {"kl_bound": 0.25}}, "trust_region.settings.kl_bound was 0.05"),
        ({"models__tiny__layers": 3}, "model.layers was 1, is now 3"),
        ({"tasks__chains__settings": {"operations": [2]}}, "task.settings.operations was"),
        ({"tasks__chains__validate_on": {"gsm8k": 2}}, "validate_on was null"),
    ],
)
def test_a_run_of_another_version_of_the_file_is_missing(experiment, results, changes, words):
    directory = write_run(results, "troll", steps=8, manifest=True, grades=True)
    (run,) = (run for run in experiment.runs() if run.run_id == RUN.format("troll"))
    write_run_file(directory / "run.yaml", resolve(experiment, run))

    def found(file):
        return of(status_of(file, results, compare=True), "troll")

    assert found(experiment) == RunStatus(RUN.format("troll"), "done", 8, 8)
    status = found(change(experiment, **changes))
    assert (status.state, status.step) == ("missing", 0)
    assert status.reason.startswith(words)
    assert status.reason.endswith("; the workflow makes it again")
    with only_writer(directory):
        (directory / "manifest.json").unlink()
        assert found(change(experiment, **changes)).state == "running", "a process is training it"


def test_a_run_in_the_tables_is_done_whatever_its_directory_says(experiment, results, keep):
    kept = experiment.model_copy(update={"archive": True})
    directory = write_run(results, "troll", steps=8, manifest=True, grades=True)
    (directory / "run.yaml").write_text("training: {temperature: 0.5}\n")
    assert of(status_of(kept, results, compare=True), "troll").state == "missing"
    keep(kept, RUN.format("troll"))
    assert of(status_of(kept, results, compare=True), "troll").state == "done"


def test_a_damaged_run_file_hides_nothing(experiment, results):
    directory = write_run(results, "troll", steps=8, manifest=True, grades=True)
    for damaged in ("a: [", "- 1", "\udcff".encode("utf-8", "surrogateescape")):
        (directory / "run.yaml").write_bytes(damaged if isinstance(damaged, bytes) else damaged.encode())
        assert of(status_of(experiment, results, compare=True), "troll").state == "done"


def test_a_living_run_has_its_step_and_the_time_left(experiment, results):
    directory = write_run(results, "troll", steps=5)
    with (directory / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 6, "ti')  # being written
    with only_writer(directory):
        status = of(status_of(experiment, results), "troll")
        assert is_held(directory)
    assert (status.state, status.step, status.steps, status.left_s) == ("running", 5, 8, 3.0)
    assert "running       5/8      0:03 left     25 %  " + RUN.format("troll") in show([status], "x")[1]
    assert not is_held(directory), "the lock dies with its holder"


def test_a_living_run_without_news_says_so(experiment, results):
    directory = write_run(results, "troll", steps=5)
    then = time.time() - 1000
    os.utime(directory / "metrics.jsonl", (then, then))
    with only_writer(directory):
        assert "no new step for 16:4" in of(status_of(experiment, results), "troll").reason


def test_looking_does_not_keep_a_writer_waiting(results):
    directory = write_run(results, "clip")
    with only_writer(directory):
        pass
    for _ in range(20):
        assert not is_held(directory)
        with only_writer(directory) as waited:
            assert not waited


def test_a_broken_run_gives_the_reason_and_the_log(experiment, results):
    log = "warming up\nerror: loss is nan at step 3 (log: results/x.log)\n"
    directory = write_run(results, "clip", steps=3, log=log)
    status = of(status_of(experiment, results), "clip")
    assert (status.state, status.step, status.reason) == ("failed", 3, "loss is nan at step 3")
    text = "\n".join(show([status], "reduced"))
    assert "loss is nan" in text
    assert f"log: {status.log}" in text
    assert status.log.read_text() == log
    with only_writer(directory):  # the next attempt lives: the old error is history
        assert of(status_of(experiment, results), "clip").state == "running"


def test_a_failure_after_training_names_its_stage(experiment, results):
    write_run(results, "clip", steps=8, manifest=True, log="error: disk full\n", stage="grade")
    status = of(status_of(experiment, results), "clip")
    assert (status.state, status.reason) == ("failed", "grade: disk full")


def test_a_failed_base_model_is_shown(experiment, results):
    path = results / "reduced/logs/base_model/tiny/chains.log"
    path.parent.mkdir(parents=True)
    path.write_text("error: no space left\n")
    lines = show(status_of(experiment, results), "reduced")
    assert "base/tiny/chains" in lines[1]
    assert lines[2].strip() == "no space left"


def test_it_needs_no_torch_and_takes_other_seeds(repository, tmp_path):
    code = (
        "import sys\nsys.modules['torch'] = None\nfrom troll.cli.app import app\n"
        "app(['status', sys.argv[1], '--seeds', '0,1,2'])"
    )
    path = repository / "tests/workflow/reduced.yaml"
    command = [sys.executable, "-c", code, str(path)]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[0] == "reduced: 12 runs: 12 missing"


@pytest.mark.parametrize("seeds", ["0;1", "0,0", "1,-1", "", "1,"])
def test_a_wrong_list_of_seeds_is_one_line(seeds, repository, tmp_path, troll):
    result = troll("status", repository / "tests/workflow/reduced.yaml", "--seeds", seeds, cwd=tmp_path)
    error_of(result, "--seeds", repr(seeds), "0,1,2")


def test_reading_lightly_refuses_wrong_keys_too(reduced, repository, tmp_path):
    assert parse_experiment(reduced, "x") == read_experiment(repository / "tests/workflow/reduced.yaml")
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(reduced | {"sseeds": [0]}))
    with refused(tmp_path / "wrong.yaml", "'sseeds'", "'seeds'"):
        read_experiment(tmp_path / "wrong.yaml")


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (
            {"conditions": {"stale": {"learning_rte": 1.0}}},
            ("conditions.stale.learning_rte", "'learning_rate'"),
        ),
        ({"conditions": {"stale": {"learning_rate": "x"}}}, ("conditions.stale.learning_rate", "'x'", "> 0")),
        (
            {"conditions": {"stale": {"mini_batches": 7}}},
            ("conditions.stale", "run tiny/chains/clip/grpo/stale/seed0", 7),
        ),
        ({"matrix": [{"tasks": ["sums"]}]}, ("matrix[0].tasks", "unknown task", "'sums'")),
        ({"matrix": []}, ("matrix",)),
        ({"experiment": "../elsewhere"}, ("experiment", "'../elsewhere'")),
        ({"experiment": "a\0b"}, ("experiment", r"'a\x00b'")),
    ],
)
def test_what_keeps_runs_from_being_listed_is_one_line(change, facts, reduced, tmp_path, troll):
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(reduced | change))
    result = troll("status", tmp_path / "e.yaml")
    error_of(result, tmp_path / "e.yaml", *facts)
    assert not result.stdout


BLOCKS = [{"group": "mine", "trust_regions": ["troll"]}, {"group": "rest", "trust_regions": ["clip"]}]


def test_groups_are_shown_alone(reduced, tmp_path):
    grouped = parse_experiment(reduced | {"matrix": BLOCKS}, "x")
    assert {status.name for status in status_of(grouped, tmp_path, ["mine"]) if status.steps} == {
        "tiny/chains/troll/grpo/stale/seed0",
        "tiny/functions/troll/grpo/stale/seed0",
    }
    with refused("'min'", "mine, rest"):
        status_of(grouped, tmp_path, ["min"])


def test_what_the_tables_hold_is_done_where_finished_runs_are_kept_there(experiment, results, keep):
    kept = experiment.model_copy(update={"archive": True})
    write_run(results, "clip", steps=3)  # stopped, and then made elsewhere
    keep(kept, RUN.format("clip"), "base/tiny/chains")
    found = {status.name: status.state for status in status_of(kept, results)}
    names = [RUN.format("clip"), RUN.format("troll"), "base/tiny/chains", "base/tiny/functions"]
    assert [found[name] for name in names] == ["done", "missing", "done", "missing"]
    assert of(status_of(experiment, results), "clip").state == "stopped", "the tables may be a release"


def test_a_run_that_the_tables_hold_otherwise_than_planned_is_not_done(experiment, results, keep):
    kept = experiment.model_copy(update={"archive": True})
    keep(kept, RUN.format("clip"))
    samples = kept.evaluation.model_copy(update={"samples": 9})
    assert of(status_of(kept.model_copy(update={"evaluation": samples}), results), "clip").state == "missing"
    keep(kept, RUN.format("clip"), numerics=0)
    assert of(status_of(kept, results), "clip").state == "missing"


def test_a_damaged_table_is_a_line(experiment, results, keep):
    kept = experiment.model_copy(update={"archive": True})
    keep(kept, RUN.format("clip"))
    (results / "reduced/tidy/clip.parquet").write_text("PAR1")
    with refused(results / "reduced/tidy/clip.parquet", "git checkout"):
        status_of(kept, results)


def test_a_run_is_done_when_its_further_data_sets_are_graded(experiment, results):
    task = experiment.tasks["chains"].model_copy(update={"evaluate_on": {"gsm8k": Suite()}})
    wider = experiment.model_copy(update={"tasks": experiment.tasks | {"chains": task}})
    directory = write_run(results, "clip", steps=8, manifest=True, grades=True)
    assert of(status_of(wider, results), "clip").state == "trained"
    files = {"steps": 8, "manifest": True, "grades": True, "log": "error: no data\n"}
    write_run(results, "clip", **files, stage="grade_suites")
    found = of(status_of(wider, results), "clip")
    assert (found.state, found.reason) == ("failed", "grade_suites: no data")
    (directory / "suites").mkdir()
    (directory / "suites/graded.json").write_text("{}")
    assert of(status_of(wider, results), "clip").state == "done"


def test_two_lines_of_one_step_have_no_pace(experiment, results):
    directory = write_run(results, "troll", steps=1)
    with (directory / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 1, "time": {"wall_s": 12.0}}\n')
    with only_writer(directory):
        assert of(status_of(experiment, results), "troll").left_s is None


DIGITS = "1" * 5000  # more than Python makes a number of


@pytest.mark.parametrize(
    "line",
    [
        '{"step": null}',
        '{"step": "x"}',
        '{"step": true}',
        '{"step": -1}',
        '{"step": 1e999}',
        f'{{"step": {DIGITS}}}',
        f'{{"step": {DIGITS[:4000]}}}',
        f'{{"step": 6, "loss": {DIGITS}}}',
        "[" * 60_000,
    ],
)
def test_a_damaged_line_is_left_out_as_a_half_written_one_is(experiment, results, line):
    directory = write_run(results, "troll", steps=5)
    with (directory / "metrics.jsonl").open("a") as lines:
        lines.write(f"{line}\n")
    assert of(status_of(experiment, results), "troll") == RunStatus(
        RUN.format("troll"), "stopped", 5, 8, success=0.25
    )
    with only_writer(directory):
        assert of(status_of(experiment, results), "troll").left_s == 3.0


@pytest.mark.parametrize(
    ("values", "left"),
    [
        ('"success": null, "time": {"wall_s": 16.0}', 2.0),
        ('"success": "x", "time": {"wall_s": 16.0}', 2.0),
        (f'"success": {DIGITS[:4000]}, "time": {{"wall_s": 16.0}}', 2.0),
        ('"loss": 1.0', None),
        ('"time": null', None),
        ('"time": {"wall_s": "x"}', None),
        ('"time": {"wall_s": NaN}', None),
        (f'"time": {{"wall_s": {DIGITS[:4000]}}}', None),
    ],
)
def test_a_line_without_success_or_time_still_has_its_step(experiment, results, values, left):
    directory = write_run(results, "troll", steps=5)
    with (directory / "metrics.jsonl").open("a") as lines:
        lines.write(f'{{"step": 6, {values}}}\n')
    with only_writer(directory):
        status = of(status_of(experiment, results), "troll")
    assert (status.state, status.step, status.left_s, status.success) == ("running", 6, left, 0.25)
    assert show([status], "reduced")


@pytest.fixture
def squeue(tmp_path, monkeypatch):
    """Sets what `squeue` prints, and its exit status."""

    def answer(text, status=0):
        program = tmp_path / "bin/squeue"
        program.parent.mkdir(exist_ok=True)
        stream = ">&2" if status else ""
        program.write_text(f"#!/bin/sh\nprintf '%s' '{text}' {stream}\nexit {status}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    return answer


def test_jobs_in_the_queue_have_the_reason_of_slurm(experiment, results, squeue, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(results, "clip", steps=3, log="error: SLURM job 4 lost its node\n")
    write_run(results, "troll", steps=8, manifest=True)
    reason = "ReqNodeNotAvail, UnavailableNodes:n1"
    squeue(
        f"5|PENDING|{reason}|{tmp_path}|rule_train_wildcards_tiny_chains_clip_grpo_stale_0\n"
        f"6|PENDING|Priority|{tmp_path}|rule_sample_wildcards_runs_tiny_chains_troll_grpo_stale_seed0\n"
        f"7|RUNNING|None|{tmp_path}|rule_base_model_wildcards_tiny_chains\n"
        "8|PENDING|Priority|/elsewhere|rule_base_model_wildcards_tiny_functions\n"
    )
    found = {status.name: status for status in with_queue(status_of(experiment, results), read_queue())}
    clip, troll = found[RUN.format("clip")], found[RUN.format("troll")]
    before = "; the attempt before it: SLURM job 4 lost its node"
    assert (clip.state, clip.reason) == ("pending", f"SLURM job 5 is pending ({reason}){before}")
    assert (troll.state, troll.reason) == ("pending", "SLURM job 6 is pending (Priority)")
    base = found["base/tiny/chains"]
    assert (base.state, base.reason) == ("running", "SLURM job 7 is running")
    assert found["base/tiny/functions"].state == "missing", "of another directory"


def test_the_comments_of_jobs_are_those_of_the_executor_plugin(experiment):
    from snakemake_executor_plugin_slurm.utils import get_job_wildcards

    plain = next(run for run in experiment.runs() if run.trust_region == "clip")
    for run in (plain, dataclasses.replace(plain, condition="seedless")):
        coordinates = (run.model, run.task, run.trust_region, run.estimator, run.condition, str(run.seed))
        for rule, wildcards in (("train", coordinates), ("grade", (f"runs/{run.run_id}",))):
            values = get_job_wildcards(SimpleNamespace(wildcards=wildcards))
            assert f"rule_{rule}_wildcards_{values}" in comments_of(run.run_id)


def test_a_queue_that_does_not_answer_is_said(squeue):
    squeue("slurm_load_jobs error: Unable to contact slurm controller", status=1)
    assert read_queue().problems == (
        "pending jobs are not shown: SLURM's queue is not known: "
        "slurm_load_jobs error: Unable to contact slurm controller",
    )


def test_thousands_of_runs_are_a_table_and_the_runs_that_need_attention(reduced, results):
    many = parse_experiment(reduced | {"matrix": BLOCKS, "seeds": [*range(2000)]}, "x")
    statuses = [
        RunStatus(run.run_id, "missing", 0, 8)
        if run.seed >= 12
        else RunStatus(run.run_id, "failed", 0, 8, reason="no disk")
        for run in many.runs()
    ]
    lines = show(statuses, "many", many.groups())
    assert lines[:4] == [
        "many: 8000 runs: 7952 missing, 48 failed",
        "  group    runs  missing   failed",
        "  mine     4000     3976       24",
        "  rest     4000     3976       24",
    ]
    assert len(lines) == 4 + 2 * 10 + 2
    assert lines[-2:] == ["         and 38 more failed", "every run: --runs"]
    assert len(show(statuses, "many", many.groups(), every=True)) == 1 + 8000 + 48
