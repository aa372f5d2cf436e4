"""How `troll run` starts Snakemake, without its work."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from refusals import refused
from typer.testing import CliRunner

from troll.cli.app import app
from troll.cli.options import core_count
from troll.common.errors import UserError
from troll.common.files import read_json
from troll.common.processor import available_cores
from troll.experiment.files import read_experiment
from troll.operations import first_look
from troll.operations import run as program


@pytest.fixture
def run(repository, tmp_path, monkeypatch):
    """The program in a directory of its own; what it would start is in ``asked``, by the name of the part."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(repository / "workflow/config/testbed.yaml", "testbed.yaml")
    Path("Snakefile").touch()
    monkeypatch.setattr(program, "asked", [], raising=False)
    monkeypatch.setattr(program.os, "execv", lambda _, arguments: program.asked.append(arguments[-1]))
    return program


def make(program):
    program.main(Path("testbed.yaml"), cores=2)


@pytest.mark.parametrize(
    ("targets", "seeds", "options", "wanted"),
    [
        (["all"], None, ["--keep-going"], True),
        (["all"], [0, 1], [], False),
        (["all"], None, ["--config", "seeds=[0,1]"], False),
        (["all"], None, ["-n"], False),
        (["all"], None, ["-pn"], False),
        (["all"], None, ["-np", "--keep-going"], False),
        (["all"], None, ["--dry-run"], False),
        (["claims"], None, [], False),
    ],
)
def test_given_seeds_dry_runs_and_single_targets_have_no_first_look(run, targets, seeds, options, wanted):
    assert run.wants_first_look(targets, seeds, options) == wanted


def test_an_error_in_the_file_comes_before_the_first_look(run, monkeypatch):
    text = Path("testbed.yaml").read_text()
    Path("testbed.yaml").write_text(text.replace("learning_rate: 3.0e-4", "learning_rate: -3.0e-4"))
    monkeypatch.setattr(run, "show_first", lambda *_: run.asked.append("first"))
    with refused("learning_rate", "-0.0003"):
        make(run)
    assert not run.asked
    Path("testbed.yaml").write_text(text)
    Path(".snakemake/results.lock").unlink()  # the lock dies with its process, and this one lives on
    make(run)
    assert run.asked == ["first", "all"]


@pytest.mark.parametrize("options", [["--configfile", "b.yaml"], ["-n", "--configfile=b.yaml"]])
def test_a_second_experiment_file_is_refused(run, options):
    with refused("testbed.yaml", "--configfile"):
        run.main(Path("testbed.yaml"), cores=2, options=options)
    assert not run.asked


def test_seeds_join_other_settings_that_are_given(run):
    def given(*options):
        return run.snakemake_arguments(Path("a.yaml"), ["all"], 2, [0, 1], options)

    assert given("--keep-going")[-5:] == ["--keep-going", "--config", "seeds=[0,1]", "--", "all"]
    joined = ["--config", "seeds=[0,1]", "archive=true", "--", "all"]
    for options in (("--config", "archive=true"), ("-C", "archive=true"), ("--config=archive=true",)):
        assert given(*options)[-5:] == joined
    assert given("--conda-frontend=mamba")[-4:] == ["--config", "seeds=[0,1]", "--", "all"]


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_first_look_and_is_not_swallowed_after_it(monkeypatch, number):
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    deaf = "import os, signal; signal.signal({0}, lambda *_: None); os.kill(os.getppid(), {0}); "
    deaf += "[signal.sigtimedwait([], 0.05) for _ in range(4)]"
    monkeypatch.setattr(program, "_SNAKEMAKE", [sys.executable, "-c", deaf.format(int(number))])
    with Path(os.devnull).open() as handle, pytest.raises(SystemExit) as ended:
        program.snakemake([], handle.fileno(), {})
    assert ended.value.code == 128 + number
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_request_to_end_is_handed_on_to_snakemake(monkeypatch):
    asks = (
        "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [15]); os.kill(os.getppid(), 15); "
    )
    asks += "sys.exit(3 if signal.sigtimedwait([15], 60) else 4)"
    monkeypatch.setattr(program, "_SNAKEMAKE", [sys.executable, "-c", asks])
    with Path(os.devnull).open() as handle, pytest.raises(SystemExit) as ended:
        program.snakemake([], handle.fileno(), {})
    assert ended.value.code == 3


def test_cores_are_read_as_snakemake_reads_them(run):
    assert (core_count("3"), core_count("all")) == (3, available_cores())


def test_what_snakemake_says_of_a_leftover_lock_is_handed_on(run, monkeypatch):
    Path(".snakemake/locks").mkdir(parents=True)
    Path(".snakemake/locks/0.input.lock").touch()
    monkeypatch.setattr(run, "_SNAKEMAKE", [sys.executable, "-c", "import sys; sys.exit('no such file: x')"])
    with refused("no such file: x", error=SystemExit):
        make(run)


def test_the_locks_of_a_snakemake_at_work_are_left_to_it(run, monkeypatch):
    Path(".snakemake/locks").mkdir(parents=True)
    Path(".snakemake/locks/0.input.lock").touch()
    monkeypatch.setattr(run, "_SNAKEMAKE", [sys.executable, "-c", "import sys; sys.exit('unlocked')"])
    monkeypatch.setattr(run, "show_first", lambda *_: None)
    at_work = "from troll.operations.workflow import mark_running; mark_running(); print(flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", at_work], **pipes) as other:
        other.stdout.readline()
        make(run)
        assert run.asked == ["all"]
        other.kill()
    Path(".snakemake/results.lock").unlink()  # the lock dies with its process, and this one lives on
    with refused("unlocked", error=SystemExit):
        make(run)


def test_caches_lie_here_where_no_home_can_be_written(run, tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    run.keep_caches(tmp_path / "cache")
    assert "XDG_CACHE_HOME" not in os.environ
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.setenv("XDG_CACHE_HOME", "")  # given back afterwards
    run.keep_caches(tmp_path / "cache")
    assert os.environ["XDG_CACHE_HOME"] == str(tmp_path / "cache")


@pytest.mark.parametrize("cores", ["-1", "0", "abc", "2.5", ""])
@pytest.mark.parametrize("command", ["run", "rehearse", "rank"])
def test_cores_that_are_none_are_refused(run, command, cores, repository):
    words = [command, str(repository / "workflow/config/testbed.yaml"), f"--cores={cores}"]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, UserError), result.output
    assert all(part in str(result.exception) for part in ("--cores", repr(cores), "all"))
    assert not Path(".snakemake").exists() and not run.asked


def test_a_place_where_snakemake_cannot_write_is_one_line(run, monkeypatch):
    Path(".snakemake").touch()
    with refused(".snakemake", "directory"):
        make(run)
    Path(".snakemake").unlink()
    Path(".snakemake/results.lock").mkdir(parents=True)
    with refused(".snakemake", "Is a directory"):
        make(run)
    Path(".snakemake/results.lock").rmdir()
    Path(".snakemake/results.lock").touch()  # of an earlier run; modes do not bind the superuser
    monkeypatch.setattr(run.os, "access", lambda path, _: path != Path(".snakemake"))
    with refused(".snakemake", "directory"):
        make(run)
    assert not run.asked


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


def test_it_runs_before_everything_with_its_own_experiment_and_models(run, checkout, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(run, "snakemake", lambda *given: asked.append(given))
    monkeypatch.setattr(first_look, "outcome", lambda: "first comparison: said")
    words = ["--cores", "2", "--configfile", str(checkout), "--rerun-incomplete", "--", "all"]
    run.show_first(checkout, words, 3)
    ((arguments, handle, variables),) = asked
    assert arguments == [*words[:3], "workflow/config/first-look.yaml", *words[4:]] and handle == 3
    mirror = str(Path("workflow/first-look").resolve())
    assert variables == {"TROLL_STAGE": "first comparison", "TROLL_MODEL_MIRROR": mirror}
    assert capsys.readouterr().err == "first comparison: said\n"
    (first_look.MODELS / "troll/tiny-chains/config.json").unlink()
    run.show_first(checkout, words, 3)
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
