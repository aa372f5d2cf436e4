"""The stages of `make results`, without the work: what each asks Snakemake for, and when they end."""

import importlib.util
import os
import re
import shutil
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from troll.analysis.claims.decision import PairedDifferences, Side
from troll.analysis.claims.looks import look_again
from troll.analysis.claims.verdicts import Claim, ClaimVerdict
from troll.analysis.sequential import Looks
from troll.cli.app import app
from troll.common.errors import UserError
from troll.common.files import read_json
from troll.common.processor import available_cores
from troll.experiment.files import read_experiment
from troll.experiment.looks import read_looks
from troll.operations import first_look

NOISY = [0.30, 0.05, 0.20, 0.25, 0.28, 0.27]
PATHS = [f"tiny/chains/{method}/grpo/stale" for method in ("troll", "clip")]


@pytest.fixture
def stages(repository, tmp_path, monkeypatch):
    """The program in a directory of its own, with runs that take no time and give these differences."""
    spec = importlib.util.spec_from_file_location("run", repository / "troll/operations/run.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    monkeypatch.chdir(tmp_path)
    shutil.copy(repository / "workflow/config/testbed.yaml", "testbed.yaml")
    Path("Snakefile").touch()
    program.asked, program.titles, program.stops = [], [], None

    def snakemake(arguments, _, stage):
        assert arguments[-1] == "all" or "results/testbed/runs/collected" in arguments
        program.asked.append(arguments[-1])
        program.titles.append(stage["title"])
        if program.stops == len(program.asked):
            sys.exit(130)

    def verdicts(experiment, root):
        runs = program.with_further_seeds(experiment, root).runs()
        count = sum(run.group_id == PATHS[0] for run in runs)
        names = {"model": "tiny", "task": "chains", "condition": "stale", "estimator": "grpo"}
        known = [
            PairedDifferences("s", names | {"method": "troll"}, np.asarray(NOISY[:count]), against="clip")
        ]
        entry = {"id": "c", "sentence": "S", "source": "P", "trust_region": "troll", "baseline": "clip"}
        claim = Claim.model_validate(entry | {"metric": "pass@1", "direction": "higher"})
        looks = Looks(3, 6)
        return [ClaimVerdict(claim, *look_again(Side("higher", 0.0), known, 3, looks), looks)]

    monkeypatch.setattr(program, "snakemake", snakemake)
    monkeypatch.setattr(program, "verdicts", verdicts)
    return program


def make(program, **options):
    program.main(Path("testbed.yaml"), cores="2", **options)


def test_seeds_are_added_until_the_claim_is_decided_and_everything_is_made_last(stages, capsys):
    make(stages)
    assert stages.asked[-1] == "all" and set(stages.asked[:-1]) == {"claims"}
    found = read_looks(Path("results/testbed"))
    added = len(stages.asked) - 2
    looks = [f"look {number}" for number in range(1, added + 2)]
    assert stages.titles == [*looks, "tables and figures"], "what the line of progress says"
    assert added > 0 and found["further_seeds"] == {path: list(range(3, 3 + added)) for path in sorted(PATHS)}
    assert found["ended"] == "every claim is decided"
    assert [look["runs"] for look in found["looks"]] == [48 + 2 * look for look in range(added + 1)]
    said = capsys.readouterr().err
    assert "supported everywhere  c: +" in said and "more minutes" not in said
    assert f"1 of 1 claims decided; {48 + 2 * added} runs, 3 to {3 + added} seeds in a setting" in said


def test_the_minutes_end_it_and_missing_seeds_are_named(stages, capsys):
    make(stages, minutes="1.5")  # a run of unknown length is taken for one minute
    assert stages.asked == ["claims", "all"]
    said = capsys.readouterr().err
    assert "0 of 1 claims decided; 48 runs, 3 seeds in a setting; the minutes are used up" in said
    assert "more minutes might decide: c (" in said and "everything on one page: results/testbed/page" in said


def test_an_interrupted_stage_goes_on(stages):
    stages.stops = 2
    with pytest.raises(SystemExit) as ended:
        make(stages)
    assert ended.value.code == 130
    before = read_looks(Path("results/testbed"))["further_seeds"]
    assert before == {path: [3] for path in sorted(PATHS)}
    stages.stops, stages.asked[:] = None, []
    Path(".snakemake/results.lock").unlink()  # the lock dies with its process, and this one lives on
    make(stages)
    after = read_looks(Path("results/testbed"))["further_seeds"]
    assert all(set(before[path]) <= set(after[path]) for path in PATHS) and stages.asked[-1] == "all"


@pytest.mark.parametrize(
    ("targets", "seeds", "options", "staged"),
    [
        (["all"], None, ["--keep-going"], True),
        (["all"], [0, 1], [], False),
        (["all"], None, ["--config", "seeds=[0,1]"], False),
        (["all"], None, ["-n"], False),
        (["all"], None, ["--dry-run"], False),
        (["claims"], None, [], False),
    ],
)
def test_fixed_seeds_dry_runs_and_single_targets_have_one_stage(stages, targets, seeds, options, staged):
    assert stages.staged(targets, seeds, options) == staged


def test_seeds_join_other_settings_that_are_given(stages):
    def given(*options):
        return stages.snakemake_arguments(Path("a.yaml"), ["all"], 2, [0, 1], options)

    assert given("--keep-going")[-5:] == ["--keep-going", "--config", "seeds=[0,1]", "--", "all"]
    assert given("--config", "archive=true")[-5:] == ["--config", "seeds=[0,1]", "archive=true", "--", "all"]


@pytest.mark.parametrize(
    ("words", "called"),
    [
        ([], ("workflow/config/testbed.yaml", ["all"], [])),
        (["--", "run.yaml"], ("workflow/config/testbed.yaml", ["run.yaml"], [])),
        (["-n"], ("workflow/config/testbed.yaml", ["all"], ["-n"])),
        (
            ["a.yaml", "-n", "--config", "b=1", "--cores", "2", "--", "c", "d"],
            ("a.yaml", ["c", "d"], ["-n", "--config", "b=1"]),
        ),
    ],
)
def test_what_stands_where_in_the_command(monkeypatch, words, called):
    given = []

    def main(path, targets, **settings):
        given.append((str(path), targets, settings["options"]))

    monkeypatch.setattr("troll.operations.run.main", main)
    assert CliRunner().invoke(app, ["run", *words]).exit_code == 0
    assert given == [called]


def test_runs_that_cannot_be_compared_end_it(stages, monkeypatch, capsys):
    """A seed that is there and lacks the claim's metric is not asked for again and again."""
    names = {"model": "tiny", "task": "chains", "condition": "stale", "estimator": "grpo", "method": "troll"}
    known = PairedDifferences("s", names, np.asarray(NOISY[:2]), seed_numbers=(0.0, 2.0), against="clip")
    claim = Claim.model_validate(
        {"id": "c", "sentence": "S", "source": "P", "trust_region": "troll", "baseline": "clip"}
        | {"metric": "pass@1", "direction": "higher"}
    )
    one = ClaimVerdict(claim, *look_again(Side("higher", 0.0), [known], 3, Looks(3, 6)), Looks(3, 6))
    monkeypatch.setattr(stages, "verdicts", lambda *_: [one])
    make(stages)
    assert stages.asked == ["claims", "all"]
    assert "the missing seeds have been run, but have no value to compare" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_stage_and_is_not_swallowed_after_it(repository, monkeypatch, number):
    spec = importlib.util.spec_from_file_location("run", repository / "troll/operations/run.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    deaf = "import os, signal; signal.signal({0}, lambda *_: None); os.kill(os.getppid(), {0}); "
    deaf += "[signal.sigtimedwait([], 0.05) for _ in range(4)]"
    monkeypatch.setattr(program, "_SNAKEMAKE", [sys.executable, "-c", deaf.format(int(number))])
    with Path(os.devnull).open() as handle, pytest.raises(SystemExit) as ended:
        program.snakemake([], handle.fileno(), {})
    assert ended.value.code == 128 + number
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_request_to_end_is_handed_on_to_snakemake(repository, monkeypatch):
    spec = importlib.util.spec_from_file_location("run", repository / "troll/operations/run.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    asks = (
        "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [15]); os.kill(os.getppid(), 15); "
    )
    asks += "sys.exit(3 if signal.sigtimedwait([15], 60) else 4)"
    monkeypatch.setattr(program, "_SNAKEMAKE", [sys.executable, "-c", asks])
    with Path(os.devnull).open() as handle, pytest.raises(SystemExit) as ended:
        program.snakemake([], handle.fileno(), {})
    assert ended.value.code == 3


def test_cores_are_read_as_snakemake_reads_them(stages):
    assert (stages._cores("3"), stages._cores("all")) == (3, available_cores())


def test_what_snakemake_says_of_a_leftover_lock_is_handed_on(stages, monkeypatch):
    Path(".snakemake/locks").mkdir(parents=True)
    Path(".snakemake/locks/0.input.lock").touch()
    monkeypatch.setattr(
        stages, "_SNAKEMAKE", [sys.executable, "-c", "import sys; sys.exit('no such file: x')"]
    )
    with pytest.raises(SystemExit, match=r"^no such file: x$"):
        make(stages)


def test_caches_lie_here_where_no_home_can_be_written(stages, tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    stages.keep_caches(tmp_path / "cache")
    assert "XDG_CACHE_HOME" not in os.environ
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.setenv("XDG_CACHE_HOME", "")  # given back afterwards
    stages.keep_caches(tmp_path / "cache")
    assert os.environ["XDG_CACHE_HOME"] == str(tmp_path / "cache")


@pytest.mark.parametrize("minutes", ["-1", "0", "nan", "inf", "abc"])
def test_minutes_that_are_none_are_refused(stages, minutes):
    with pytest.raises(UserError, match=f"--minutes: must be .*MINUTES=60. .got '{minutes}'"):
        make(stages, minutes=minutes)


@pytest.mark.parametrize("cores", ["-1", "0", "abc", "2.5", ""])
def test_cores_that_are_none_are_refused(stages, cores):
    with pytest.raises(UserError) as ended:
        stages.main(Path("testbed.yaml"), cores=cores)
    said = "must be a positive integer or all, as in `make results CORES=2`"
    assert str(ended.value) == f"--cores: {said} (got {cores!r})"
    assert not Path(".snakemake").exists() and not stages.asked


def test_a_place_where_snakemake_cannot_write_is_one_line(stages, monkeypatch):
    Path(".snakemake").touch()
    with pytest.raises(UserError, match=r"^\.snakemake is not a directory; move it away, as Snake[^\n]*$"):
        make(stages)
    Path(".snakemake").unlink()
    Path(".snakemake/results.lock").mkdir(parents=True)
    said = r"^\.snakemake cannot be written%s; make it writable, or link it to another directory$"
    with pytest.raises(UserError, match=said % r" \(Is a directory\)"):
        make(stages)
    Path(".snakemake/results.lock").rmdir()
    Path(".snakemake/results.lock").touch()  # of an earlier run; modes do not bind the superuser
    monkeypatch.setattr(stages.os, "access", lambda path, _: path != Path(".snakemake"))
    with pytest.raises(UserError, match=said % ""):
        make(stages)
    assert not stages.asked


# --- the first comparison -----------------------------------------------------------------------------------


@pytest.fixture
def checkout(repository, tmp_path, monkeypatch):
    """A directory with what the first comparison needs."""
    monkeypatch.chdir(tmp_path)
    for name in (first_look.MODELS, Path("workflow/config")):
        shutil.copytree(repository / name, name)
    return Path("workflow/config/testbed.yaml")


def test_the_first_comparison_is_a_cell_of_the_testbed_from_its_own_base_model(repository, checkout):
    first, whole = (
        read_experiment(Path("workflow/config", name)) for name in ("first-look.yaml", "testbed.yaml")
    )
    (run, other), everything = first.runs(), {run.group_id: run for run in whole.runs() if run.seed == 0}
    assert {run.trust_region, other.trust_region} == {"clip", "troll"}
    for cell in (run, other):
        same = everything[cell.group_id]
        ours, theirs = first.training_of(cell).model_dump(), whole.training_of(same).model_dump()
        assert ours == theirs | {"gpus": 0}
        assert first.trust_regions[cell.trust_region] == whole.trust_regions[cell.trust_region]
    assert first.tasks["chains"] == whole.tasks["chains"] and first.evaluation == whole.evaluation
    manifest = read_json(first_look.MODELS / "manifest.json")
    assert manifest["config"]["model"]["supervised"]["steps"] == whole.models["tiny"].supervised.steps
    assert re.fullmatch("[0-9a-f]{40}", manifest["git_commit"]), "of a clean checkout"
    assert first_look.reason_against(checkout) is None, "the files are those of the manifest"


def test_it_is_left_out_where_it_says_nothing_new_or_its_model_is_damaged(checkout):
    assert first_look.reason_against(Path("workflow/config/testbed-ablations.yaml")) == ""
    weights = first_look.MODELS / "troll/tiny-chains/model.safetensors"
    contents = bytearray(weights.read_bytes())
    contents[-1] ^= 1
    weights.write_bytes(contents)
    reason = first_look.reason_against(checkout)
    assert "the contents of model.safetensors have changed; git checkout -- workflow/first-look" in reason
    Path("results/testbed/runs/tiny").mkdir(parents=True)
    assert first_look.reason_against(checkout) == "", "there are runs to look at"


def test_it_runs_before_everything_with_its_own_experiment_and_models(stages, checkout, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(stages, "snakemake", lambda *given: asked.append(given))
    monkeypatch.setattr(first_look, "outcome", lambda: "first comparison: said")
    words = ["--cores", "2", "--configfile", str(checkout), "--rerun-incomplete", "--", "all"]
    stages.show_first(checkout, words, 3)
    ((arguments, handle, stage, variables),) = asked
    assert arguments == [*words[:3], "workflow/config/first-look.yaml", *words[4:]] and handle == 3
    assert stage["title"] == "first comparison"
    assert variables == {"TROLL_MODEL_MIRROR": str(Path("workflow/first-look").resolve())}
    assert capsys.readouterr().err == "first comparison: said\n"
    (first_look.MODELS / "troll/tiny-chains/config.json").unlink()
    stages.show_first(checkout, words, 3)
    assert len(asked) == 1 and "config.json is missing" in capsys.readouterr().err


def test_its_line_has_the_test_success_of_both_rules_and_of_the_base_model(monkeypatch):
    rows = [
        ("clip", "test", 0.25),
        ("troll", "test", 0.5),
        ("base", "test", 0.375),
        ("clip", "validation", 0.9),
    ]
    runs = pd.DataFrame(
        [{"trust_region": rule, "source": source, "metric": "pass@1", "value": v} for rule, source, v in rows]
    )
    monkeypatch.setattr(first_look, "read_results", lambda _: SimpleNamespace(runs=runs))
    said = first_look.outcome()
    assert "TROLL solves 50.0 % of the test problems, clip 25.0 %, the base model 37.5 %" in said
    assert said.endswith("curves: results/first-look/page.html")
