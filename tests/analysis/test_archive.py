"""Finished runs as rows of the tables: what is appended, replaced and taken, and what a kill leaves."""

import json
import multiprocessing
import random
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import pandas as pd
import pytest
import synthetic
from forked_snakemake import CONTEXT
from refusals import error_of, refused

from troll.analysis.data import archive
from troll.analysis.data.archive import (
    FROM_RELEASE,
    ArchivedRun,
    append_run,
    archived_runs,
    collect_planned,
    table_of_rule,
)
from troll.analysis.data.results import read_results
from troll.analysis.data.runs import read_directories
from troll.analysis.data.tidy import read_table_file, read_tidy, table_file, table_files
from troll.common import numerics

CLIP, TROLL = (
    [f"tiny/chains/{name}/grpo/stale/seed{seed}" for seed in range(3)] for name in ("clip", "troll")
)
BASE = "base/tiny/chains"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Directories of finished runs of two rules, and of their base model, by run id."""
    root = tmp_path_factory.mktemp("made") / "testbed"
    dirs, bases = synthetic.write_experiment(
        root, tasks=["chains"], conditions=["stale"], estimators=["grpo"], seeds=3, batches=2, problems=4
    )
    return {"/".join(path.parts[-6:]): path for path in dirs} | {BASE: bases[0]}


def key(run_id):
    return f"key of {run_id}"


def append(made, results, *names):
    for name in names:
        append_run(made[name], results, key(name))


def contents(results):
    return {name: path.read_bytes() for name, path in table_files(results).items()}


def written(results):
    """What tells whether a file was replaced, even by an equal one."""
    stats = {name: path.stat() for name, path in table_files(results).items()}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in stats.items()}


def expected(made, *names):
    """What the tables hold once these runs are appended."""
    runs = [made[name] for name in names if name != BASE]
    bases = [made[BASE]] if BASE in names else []
    return read_directories(runs, bases, keys={name: key(name) for name in names})


def holds(results, tidy):
    found = read_tidy(results)
    pd.testing.assert_frame_equal(found.runs.astype(str), tidy.runs.astype(str))
    pd.testing.assert_frame_equal(found.items.astype(str), tidy.items.astype(str))


def test_the_tables_hold_what_was_appended_in_a_part_for_each_rule(made, tmp_path):
    assert archived_runs(tmp_path) == {}
    append(made, tmp_path, TROLL[1], BASE, CLIP[0], TROLL[0])
    holds(tmp_path, expected(made, CLIP[0], TROLL[0], TROLL[1], BASE))
    assert [*table_files(tmp_path)] == ["base", "clip", "troll"]
    known = archived_runs(tmp_path)
    assert known[CLIP[0]] == ArchivedRun(key(CLIP[0]), numerics.NUMERICS, "clip")
    assert known[BASE] == ArchivedRun(key(BASE), numerics.NUMERICS, "") and len(known) == 4


def test_the_same_runs_give_the_same_bytes_whoever_appended_them_in_whatever_order(made, tmp_path):
    names = [*CLIP, *TROLL, BASE]
    append(made, tmp_path / "first", *names)
    for index in range(2):
        order = random.Random(index).sample(names, len(names))
        append(made, tmp_path / str(index), *order, *order[:2])
        assert contents(tmp_path / str(index)) == contents(tmp_path / "first")


def test_a_run_of_the_same_name_is_replaced_and_no_other_file_rewritten(made, tmp_path):
    results = tmp_path / "results"
    append(made, results, *CLIP, TROLL[0], BASE)
    before = written(results)
    again = synthetic.write_run(
        tmp_path / "testbed", "chains", "clip", "grpo", "stale", 1, batches=3, table=synthetic.solved(2, 4)
    )
    append_run(again, results, "another key")
    assert {name for name, when in written(results).items() if before[name] != when} == {"clip"}
    assert archived_runs(results)[CLIP[1]].key == "another key" and archived_runs(results)[
        CLIP[0]
    ].key == key(CLIP[0])
    found, new = (
        read_tidy(results).of_runs([CLIP[1]]),
        read_directories([again], keys={CLIP[1]: "another key"}),
    )
    pd.testing.assert_frame_equal(found.runs.astype(str), new.runs.astype(str))
    pd.testing.assert_frame_equal(found.items.astype(str), new.items.astype(str))
    append(made, results, CLIP[1])
    holds(results, expected(made, *CLIP, TROLL[0], BASE))


def test_a_run_whose_rule_is_another_one_now_is_in_one_part_only(made, tmp_path):
    results = tmp_path / "results"
    append(made, results, CLIP[0], CLIP[1], TROLL[0])
    for seed in (0, 1):
        other = synthetic.write_run(
            tmp_path / "testbed", "chains", "clip", "grpo", "stale", seed, rule="gspo-clip"
        )
        append_run(other, results, "k")
        assert archived_runs(results)[CLIP[seed]] == ArchivedRun("k", numerics.NUMERICS, "gspo-clip")
        assert set(read_tidy(results).runs["run_id"]) == {CLIP[0], CLIP[1], TROLL[0]}
    assert [*table_files(results)] == ["gspo-clip", "troll"], "a part without runs goes"


@pytest.mark.parametrize(
    ("rule", "part"),
    [
        ("clip", "clip"),
        ("", "base"),
        ("my_rules.py:soft_wall", "my_rules.py-soft_wall"),
        ("./rules.py:mine", "rules.py-mine"),
        ("../a b/rules.py:mine", "a-b-rules.py-mine"),
        (".rules.py:weiß", "rules.py-weiß"),
    ],
)
def test_any_rule_has_a_part_that_is_read(tmp_path, rule, part):
    assert table_of_rule(rule) == part
    run = synthetic.write_run(
        tmp_path / "testbed", "chains", "mine", "grpo", "stale", 0, batches=1, rule=rule
    )
    append_run(run, tmp_path, "k")
    if rule:
        assert [*table_files(tmp_path)] == [part] and [*archived_runs(tmp_path).values()] == [
            ArchivedRun("k", numerics.NUMERICS, rule)
        ]


def test_only_what_the_planned_run_would_come_out_as_counts(monkeypatch):
    changes = [numerics.Change(1, "all"), numerics.Change(2, "penalties", ("kl-penalty",))]
    for later, counting in (
        ([], {"clip", "kl-penalty", ""}),
        ([numerics.Change(3, "another", ("troll", "none"))], {"clip", "kl-penalty", ""}),
        ([numerics.Change(3, "one", ("troll", "clip"))], {"kl-penalty", ""}),
        (
            [numerics.Change(3, "another", ("troll",)), numerics.Change(4, "one", ("kl-penalty",))],
            {"clip", ""},
        ),
        ([numerics.Change(3, "all")], set()),
    ):
        monkeypatch.setattr(numerics, "CHANGES", (*changes, *later))
        rules = ("clip", "kl-penalty", "")
        assert {rule for rule in rules if ArchivedRun("k", 2, rule).counts_as("k")} == counting, later
        assert not any(ArchivedRun("k", 2, rule).counts_as("other") for rule in rules)
    monkeypatch.setattr(numerics, "CHANGES", tuple(changes))
    assert ArchivedRun("k", 1, "clip").counts_as("k") and not ArchivedRun("k", 1, "kl-penalty").counts_as("k")
    assert not ArchivedRun("k", 0, "clip").counts_as("k") and not ArchivedRun("k", 0, "").counts_as("k")
    assert ArchivedRun("k", 7, "clip").counts_as("k"), "of a source that is ahead of this one"


def test_finished_directories_that_the_tables_lack_are_appended(made, tmp_path, monkeypatch):
    append(made, tmp_path, CLIP[0], CLIP[1], TROLL[0])
    before = contents(tmp_path)
    keys = {name: key(name) for name in (CLIP[0], BASE)}
    tidy = collect_planned(tmp_path, keys, made)
    assert set(tidy.runs["run_id"]) == set(tidy.items["run_id"]) == {CLIP[0], BASE}, (
        "what is planned, no more"
    )
    assert {name: before[name] for name in before} == {
        name: data for name, data in contents(tmp_path).items() if name != "base"
    }
    when = written(tmp_path)
    collect_planned(tmp_path, keys, {})
    assert written(tmp_path) == when, "all was there"
    # What is there otherwise than planned is made again, and then replaced.
    collect_planned(tmp_path, keys | {CLIP[1]: "another"}, made)
    assert archived_runs(tmp_path)[CLIP[1]].key == "another" and archived_runs(tmp_path)[CLIP[0]].key == key(
        CLIP[0]
    )
    monkeypatch.setattr(numerics, "CHANGES", (*numerics.CHANGES, numerics.Change(99, "one", ("clip",))))
    with refused(tmp_path / "tidy", CLIP[0]):
        collect_planned(tmp_path, keys, {})


def test_released_rows_are_copied_where_nothing_was_made_here(made, tmp_path):
    released, results = tmp_path / "released", tmp_path / "here"
    append(made, released, *CLIP, *TROLL, BASE)
    before = contents(released)
    append(made, results, CLIP[0])
    keys = {name: key(name) for name in (CLIP[0], CLIP[1], BASE)}
    tidy = collect_planned(results, keys, {}, released)
    pd.testing.assert_frame_equal(
        tidy.runs.astype(str), expected(made, CLIP[0], CLIP[1], BASE).runs.astype(str)
    )
    assert set(archived_runs(results)) == {CLIP[0]}, "what is copied does not count as made here"
    # A group copies its own runs and leaves those of the others.
    collect_planned(results, {TROLL[0]: key(TROLL[0])}, {}, released)
    assert set(read_tidy(results).runs["run_id"]) == {CLIP[0], CLIP[1], BASE, TROLL[0]}
    # A run that is made here, or must be, replaces its copy.
    append(made, results, CLIP[1])
    assert set(read_tidy(results).runs["run_id"]) == {CLIP[0], CLIP[1], BASE, TROLL[0]}
    collect_planned(results, keys, {BASE: made[BASE]})
    assert set(archived_runs(results)) == {CLIP[0], CLIP[1], BASE}
    assert set(read_table_file(table_file(results, FROM_RELEASE))["run_id"]) == {TROLL[0]}
    with refused(results / "tidy", TROLL[0]):
        collect_planned(results, {TROLL[0]: key(TROLL[0])}, {})
    # Released rows under another key are other runs.
    with refused(results / "tidy", TROLL[0]):
        collect_planned(results, {TROLL[0]: "another"}, {}, released)
    assert contents(released) == before


def test_a_group_that_copies_released_runs_does_not_hide_them_from_another(made, tmp_path, monkeypatch):
    released, results = tmp_path / "released", tmp_path / "here"
    append(made, released, CLIP[0])
    arguments = results, {CLIP[0]: key(CLIP[0])}, {}, released
    other = threading.Thread(target=collect_planned, args=arguments)
    removed, read = threading.Event(), threading.Event()
    write_table, read_table = archive.write_table_file, archive.read_tidy

    def write_slowly(path, frames):
        removed.set()
        read.wait(10)
        write_table(path, frames)

    def read_while_the_other_copies(directory):
        monkeypatch.setattr(archive, "read_tidy", read_table)
        monkeypatch.setattr(archive, "write_table_file", write_slowly)
        other.start()
        removed.wait(1)  # in vain if it has to wait for this one
        try:
            return read_table(directory)
        finally:
            read.set()

    monkeypatch.setattr(archive, "read_tidy", read_while_the_other_copies)
    tidy = collect_planned(*arguments)
    other.join()
    assert set(tidy.runs["run_id"]) == {CLIP[0]}


def test_what_is_neither_in_the_tables_nor_finished_here_is_refused_in_one_line(made, tmp_path):
    append(made, tmp_path, CLIP[0])
    before = contents(tmp_path)
    tidy = tmp_path / "tidy"
    unfinished = synthetic.write_run(tmp_path / "testbed", "chains", "troll", "grpo", "stale", 0, batches=1)
    (unfinished / "grades.json").unlink()
    for keys, directories, facts in (
        ({TROLL[0]: "k"}, {}, (tidy, TROLL[0], "1 of 1")),
        ({CLIP[0]: "k"}, {}, (tidy, CLIP[0], "1 of 1")),
        (  # nothing is appended, though one of them is there
            {TROLL[1]: "k", TROLL[2]: "k"},
            {TROLL[1]: made[TROLL[1]]},
            (tidy, TROLL[2], "1 of 2"),
        ),
        ({TROLL[0]: "k"}, {TROLL[0]: unfinished}, (unfinished / "grades.json",)),
        ({TROLL[0]: "k"}, {TROLL[0]: tmp_path / "gone"}, (tmp_path / "gone/manifest.json",)),
        ({}, made, (tmp_path, "keys")),
    ):
        with refused(*facts):
            collect_planned(tmp_path, keys, directories)
        assert contents(tmp_path) == before


def test_the_command_collects_the_planned_runs_from_tables_and_directories(made, tmp_path, troll):
    append(made, tmp_path, *CLIP, TROLL[0], TROLL[1])
    names = ("model", "task", "trust_region", "estimator", "condition")
    coordinates = {run: dict(zip(names, run.split("/")[:5], strict=True)) for run in (CLIP[0], TROLL[2])}
    planned = [one | {"seed": int(run[-1]), "rule": one["trust_region"]} for run, one in coordinates.items()]
    plan = {"expected": planned, "keys": {name: key(name) for name in (CLIP[0], TROLL[2], BASE)}}
    synthetic.write_json(tmp_path / "planned.json", plan)
    command = ["job", "collect", made[TROLL[2]], made[BASE], "--plan", tmp_path / "planned.json"]
    command += ["--archive", tmp_path, "--out"]
    result = troll(*command, tmp_path)
    assert result.returncode == 0, result.stderr
    assert set(read_results(tmp_path).runs["run_id"]) == {CLIP[0], TROLL[2], BASE}
    assert set(archived_runs(tmp_path)) == {*CLIP, *TROLL, BASE}, "what is not planned stays, too"
    # A group has tables of its own, in one part.
    result = troll(*command, tmp_path / "group")
    assert result.returncode == 0, result.stderr
    assert [*table_files(tmp_path / "group")] == ["all"]
    holds(tmp_path / "group", expected(made, CLIP[0], TROLL[2], BASE))
    assert json.loads((tmp_path / "group/plan.json").read_text()) == {"expected": planned, "skipped": {}}


def test_base_models_of_other_machines_are_admitted_in_an_archive_only(tmp_path, troll):
    here = synthetic.write_run(tmp_path / "testbed", "chains", "clip", "grpo", "stale", 0, batches=1)
    there = synthetic.write_run(
        tmp_path / "testbed",
        "chains",
        "clip",
        "grpo",
        "stale",
        1,
        batches=1,
        digests={"base_model": "5" * 64},
    )
    manifest = json.loads((there / "manifest.json").read_text())
    synthetic.write_json(there / "manifest.json", manifest | {"hardware": {"processor": "another"}})
    plan = tmp_path / "planned.json"
    synthetic.write_json(plan, {"keys": {CLIP[0]: "k", CLIP[1]: "k"}})
    result = troll("job", "collect", here, there, "--out", tmp_path / "a", "--plan", plan)
    error_of(result, "digests.base_model")
    result = troll(
        "job", "collect", here, there, "--out", tmp_path / "b", "--archive", tmp_path / "b", "--plan", plan
    )
    assert result.returncode == 0, result.stderr
    assert not read_tidy(tmp_path / "b").runs["mixed"].any()


@pytest.mark.parametrize("place", ["a page", "the end"])
def test_a_damaged_table_takes_nothing_and_stays_as_it_is(made, tmp_path, place):
    append(made, tmp_path, CLIP[0], TROLL[0])
    path = table_file(tmp_path, "clip")
    whole = path.read_bytes()
    path.write_bytes(whole[:-20] if place == "the end" else whole[:100] + bytes(10) + whole[110:])
    before = contents(tmp_path)
    attempts = [
        lambda: append(made, tmp_path, CLIP[1]),
        lambda: collect_planned(tmp_path, {CLIP[0]: key(CLIP[0])}, made),
    ]
    if place == "the end":  # nobody can say which runs it holds
        attempts += [lambda: archived_runs(tmp_path), lambda: append(made, tmp_path, TROLL[1])]
    for attempt in attempts:
        with refused(path, "git checkout"):
            attempt()
        assert contents(tmp_path) == before
    path.unlink()
    append(made, tmp_path, CLIP[0])
    holds(tmp_path, expected(made, CLIP[0], TROLL[0]))


DIGITS = "1" * 5000  # more than Python makes a number of
NO_MANIFEST = ("[]", "{}", "null", '{"digests": 3}', '{"digests": {}}', "[" * 100_000, f"[{DIGITS}]", "{")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("manifest.json", text) for text in NO_MANIFEST),
        *(("run.yaml", text) for text in ("3", "[]", "{}", "a: [")),
        *(("grades.json", text) for text in ("[]", "{}", "3", '{"metrics": {}, "problems": {}}', "{")),
        *(("metrics.jsonl", text) for text in ("{x", "", "[]", '{"step": 1}', '{"step": 1, "loss": "x"}')),
    ],
)
def test_a_run_with_a_broken_file_is_not_appended(made, tmp_path, name, text):
    append(made, tmp_path, CLIP[1])
    before = contents(tmp_path)
    run = synthetic.write_run(tmp_path / "testbed", "chains", "clip", "grpo", "stale", 0, batches=1)
    (run / name).write_text(text)
    with refused(run / name):
        append_run(run, tmp_path, "k")
    assert contents(tmp_path) == before


def test_the_command_appends_and_says_in_one_line_what_it_cannot(made, tmp_path, troll):
    result = troll("job", "append", made[CLIP[0]], "--results", tmp_path, "--key", key(CLIP[0]))
    assert result.returncode == 0, result.stderr
    holds(tmp_path, expected(made, CLIP[0]))
    run = synthetic.write_run(tmp_path / "testbed", "chains", "clip", "grpo", "stale", 1, batches=1)
    (run / "grades.json").unlink()
    result = troll("job", "append", run, "--results", tmp_path, "--key", "k")
    error_of(result, run / "grades.json")


def append_all(directories, requests, said):
    """Appends its runs to the results that each request names, and says which are in."""
    while True:
        results = requests.recv()
        for directory in directories:
            append_run(directory, results, key("/".join(directory.parts[-6:])))
            said.send("/".join(directory.parts[-6:]))


@contextmanager
def appender(directories):
    """A process that appends where it is asked to; it, where it is asked, and what it says."""
    (requests, ask), (heard, said) = multiprocessing.Pipe(False), multiprocessing.Pipe(False)
    process = CONTEXT.Process(target=append_all, args=(directories, requests, said))
    process.start()
    for end in (requests, said):
        end.close()
    try:
        yield process, ask, heard
    finally:
        process.kill()
        process.join()


def all_said(heard):
    """What is still said, until the other end is gone."""
    with suppress(EOFError):
        while True:
            yield heard.recv()


def unfinished(table):
    return [path.name for path in table.iterdir() if path.name.startswith(".") and path.name != ".lock"]


@pytest.mark.slow
def test_a_kill_at_any_moment_costs_at_most_the_run_that_was_being_appended(made, tmp_path):
    runs, kept = [*CLIP[1:], *TROLL], [CLIP[0], BASE]
    append(made, tmp_path, *kept)
    draw, table = random.Random(5), tmp_path / "tidy"
    for number in range(4):
        with appender([made[name] for name in draw.sample(runs, len(runs))]) as (process, ask, heard):
            for _ in range(100):
                ask.send(tmp_path)
            said = [heard.recv()]  # it has begun
            time.sleep(draw.uniform(0.0, 0.3))
            # At any moment, or in the middle of writing.
            while number % 2 and process.is_alive() and not unfinished(table):
                time.sleep(0.0005)
            process.kill()
            said += all_said(heard)
        kept = list(dict.fromkeys([*kept, *said]))
        found = list(archived_runs(tmp_path))
        assert set(kept) <= set(found) and len(found) <= len(kept) + 1
        holds(tmp_path, expected(made, *found))
        append(made, tmp_path, draw.choice(runs))  # no lock is left
        kept = list(archived_runs(tmp_path))
        assert not unfinished(table), "what was being written goes"
    append(made, tmp_path, *runs)
    append(made, tmp_path / "undisturbed", *runs, CLIP[0], BASE)
    assert contents(tmp_path) == contents(tmp_path / "undisturbed")


@pytest.mark.slow
def test_two_processes_that_append_at_the_same_time_lose_nothing(made, tmp_path):
    halves = ([CLIP[0], TROLL[0], CLIP[1]], [TROLL[1], CLIP[2], TROLL[2]])
    append(made, tmp_path / "alone", *CLIP, *TROLL)
    with ExitStack() as stack:
        processes = [stack.enter_context(appender([made[name] for name in names])) for names in halves]
        for number in range(5):  # each run once: one that is lost does not come back
            for _, ask, _ in processes:
                ask.send(tmp_path / str(number))
            for (_, _, heard), names in zip(processes, halves, strict=True):
                assert [heard.recv() for _ in names] == names
            assert contents(tmp_path / str(number)) == contents(tmp_path / "alone")
