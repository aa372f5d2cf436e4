"""The command line: mistakes are one line, help is short, nothing is half-written."""

import errno
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from refusals import error_of
from typer.testing import CliRunner

from troll import __version__
from troll.cli.app import app
from troll.common.files import read_json, read_jsonl
from troll.common.machine_errors import in_a_line
from troll.tasks.registry import write_problems


def _flat(group, *before):
    """Every command by its words: ("check",), ("job", "train")."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _flat(command, *before, name)
        else:
            yield (*before, name), command


COMMANDS = dict(_flat(typer.main.get_command(app)))


def test_version_and_help():
    runner = CliRunner()
    assert runner.invoke(app, ["--version"]).stdout.strip() == f"troll {__version__}"
    text = runner.invoke(app, ["--help"]).stdout
    assert len(text.splitlines()) <= 23, "with the prompt, it fills a screen"
    public = {words[0] for words in COMMANDS if len(words) == 1}
    shown = set(re.findall(r"^│ ([a-z]+) ", text, re.MULTILINE))
    assert shown == public and len(public) == 9
    assert {words[0] for words in COMMANDS} - public == {"job", "release"}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_fits_a_screen_and_shows_an_example_with_options_that_exist(command):
    text = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "100"}).stdout
    assert len(text.splitlines()) <= 40, "shorten it"
    example = inspect.getdoc(COMMANDS[command].callback).partition("Example: ")[2]
    example = re.split(r"&&|;|\band\b", example)[0].split()
    assert command[-1] in " ".join(example), "its docstring shows no example"
    options = {name for option in COMMANDS[command].params for name in option.opts}
    assert {word for word in example if word.startswith("--")} <= options


GIVEN = {"task": "gsm8k", "name": "main", "config": '{"math500": {}}', "ledger": "there.yaml"}


def _reads(command):
    """Whether a command has to be given a file or directory to read."""
    return any(
        option.required and option.name != "out" and "Path" in option.bare_type()
        for option in COMMANDS[command].params
    )


@pytest.mark.parametrize("command", [*filter(_reads, COMMANDS)], ids=" ".join)
def test_what_is_not_there_is_a_line(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = list(command)
    for option in COMMANDS[command].params:
        if option.required:
            name = [] if option.param_type_name == "argument" else option.opts[:1]
            words += [*name, GIVEN.get(option.name, "out" if option.name == "out" else "not/there")]
    result = CliRunner().invoke(app, words)
    error_of(result)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["check", "none.yaml"], ("none.yaml",)),
        (["job", "problems", "--config", "none.json", "--out", "o"], ("none.json",)),
        (["job", "append", "no", "--results", "o", "--key", "k"], ("no/manifest.json",)),
        (["job", "table", "main", "--results", "no", "--out", "o/t"], ("no/tidy",)),
        (["check"], ("check", "--rule my_rules.py:soft_wall")),
        (["check", "--rule", "trol"], ("'trol'", "'troll'")),
        (["grade", "--task", "chains", "--out", "o"], ("grade", "--checkpoint DIRECTORY", "--samples FILE")),
        (
            ["grade", "--task", "chains", "--checkpoint", "c", "--out", "o"],
            ("task chains", "--problems FILE"),
        ),
        (["rank", "board.yaml", "--space", "a=1"], ("rank", "board.yaml", "--space", "--protocol")),
        (["rank", "my_rules.py:wall", "--repeat"], ("rank", "--repeat", "troll rank PROTOCOL.yaml")),
        (["run", "-n", "no.yaml"], ("run", "-n")),
        (["run", "no.yaml"], ("run", "Snakefile")),
        (
            ["grade", "--task", "chains", "--samples", "no.jsonl", "--problems", "no.jsonl", "--out", "o"],
            ("no.jsonl",),
        ),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(troll, arguments, facts, tmp_path):
    result = troll(*arguments, cwd=tmp_path)
    error_of(result, *facts)
    assert result.returncode == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "status", "lines"), [(["check", "FILE"], 130, 1), (["status", "FILE", "--watch"], 0, 0)]
)
def test_an_interrupt_is_a_line_and_the_end_of_watching(command, status, lines, repository, tmp_path):
    program = (
        "import sys, troll.cli.app, troll.operations.plan, troll.operations.status\n"
        "def interrupted(*_, **__): raise KeyboardInterrupt\n"
        "troll.operations.plan.plan = troll.operations.status.show = interrupted\n"
        "sys.stdout.isatty = lambda: True\n"
        "troll.cli.app.main()\n"
    )
    path = str(repository / "tests/workflow/reduced.yaml")
    arguments = [path if word == "FILE" else word for word in command]
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=tmp_path, capture_output=True, text=True
    )
    assert (result.returncode, result.stderr.count("\n")) == (status, lines)
    assert "Traceback" not in result.stderr


def test_a_bug_goes_to_the_log_and_its_name_to_the_terminal(tmp_path):
    log, config = tmp_path / "log", tmp_path / "x.yaml"
    config.write_text("{name: chains, test: 1}")
    program = (
        "import troll.tasks.registry, troll.cli.app\n"
        "def write_problems(config, out): return config['missing']\n"
        "troll.tasks.registry.write_problems = write_problems\n"
        "troll.cli.app.main()\n"
    )
    arguments = ["--log", str(log), "job", "problems", "--config", str(config), "--out", str(tmp_path)]
    result = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
    error_of(result, "KeyError", "'missing'", log)
    assert result.returncode == 2
    assert "Traceback" in log.read_text()


@pytest.mark.parametrize(
    ("command", "config", "facts"),
    [
        ("tokenizer", {}, ("x.json", "tasks")),
        ("tokenizer", [], ("x.json", "list")),
        ("problems", {"name": "chain", "test": 1}, ("'chain'", "chains")),
        ("problems", {"name": "chains"}, ("x.json", "train, validation, test")),
        ("problems", {"name": "chains", "trian": 3}, ("x.json", "'trian'", "name, train")),
        ("sample-suites", {"suites": {"math500": {"tests": 3}}}, ("suites.math500.tests", "samples")),
        ("sample", {"max_token": 3}, ("x.json", "max_token", "samples")),
        ("base-model", {"run_id": "a"}, ("x.json", "experiment")),
        ("configure", {"run_id": "a", "training": {"passes": 1}}, ("training.passes",)),
    ],
)
def test_settings_that_the_workflow_would_not_write_are_one_line(troll, command, config, facts, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(config))
    more = {"base-model": ["--tokenizer", "t"], "sample-suites": ["--checkpoint", "c", "--data", "d"]}
    more["sample"] = ["--checkpoint", "c", "--task", "chains", "--problems", "p"]
    result = troll(
        "job", command, "--config", str(path), *more.get(command, []), "--out", str(tmp_path / "out")
    )
    error_of(result, *facts)


def test_check_shows_the_matrix_and_lists_the_runs(troll, repository, tmp_path):
    path = str(repository / "workflow/config/testbed.yaml")
    table = troll("check", path, cwd=tmp_path).stdout.splitlines()
    assert len(table) == 1 + 16 + 3
    assert table[-2].startswith("48 runs from 2 base models; time unknown")
    names = troll("check", path, "--names").stdout.splitlines()
    assert len(names) == len(set(names)) == 48
    assert "tiny/chains/troll/grpo/stale/seed0" in names


def test_the_long_version_holds_what_a_report_needs_and_no_names(troll):
    result = troll("--version", "--verbose")
    assert result.returncode == 0
    shown = dict(line.split(None, 1) for line in result.stdout.splitlines())
    assert {"troll", "commit", "python", "platform", "torch", "trl", "snakemake", "bubblewrap"} <= set(shown)
    assert str(Path.home()) not in result.stdout


def test_no_command_is_one_line(troll):
    error_of(troll("--log", "/dev/null"), "troll --help")


def test_a_place_that_cannot_be_written_is_one_line(troll, tmp_path):
    config = tmp_path / "x.yaml"
    config.write_text("{name: chains, train: 4, validation: 2, test: 2}")
    result = troll("job", "problems", "--config", str(config), "--out", "/dev/null/p")
    error_of(result, "/dev/null/p/train.jsonl", "Not a directory")


def test_an_unexpected_failure_of_the_machine_keeps_its_traceback():
    assert in_a_line(OSError(errno.EIO, "broken")) is None


@pytest.mark.parametrize(
    ("written", "stem"),
    [
        ("a/final", "a/final"),
        ("a/final.png", "a/final"),
        ("a/final.svg", "a/final"),
        ("a/troll-kl0.01", "a/troll-kl0.01"),
    ],
)
def test_a_suffix_that_is_added_anyway_is_not_there_twice(monkeypatch, tmp_path, written, stem):
    made = []
    monkeypatch.setattr("troll.analysis.data.results.read_results", lambda _: None)
    monkeypatch.setattr("troll.analysis.report.make.make_table", lambda _, __, out, *___: made.append(out))
    result = CliRunner().invoke(app, ["job", "table", "main", "--results", str(tmp_path), "--out", written])
    assert result.exit_code == 0, result.output
    assert made == [Path(stem)]


def test_a_checkpoint_is_sampled_and_graded_and_its_samples_again(repository, tmp_path):
    write_problems({"name": "chains", "test": 3}, tmp_path)
    task = ["grade", "--task", "chains", "--problems", str(tmp_path / "test.jsonl"), "--out"]
    model = ["--checkpoint", str(repository / "workflow/first-look/troll/tiny-chains")]
    how = ["--per-problem", "2", "--max-tokens", "8"]
    ran = CliRunner().invoke(app, [*task, str(tmp_path / "a.grades.json"), *model, *how])
    assert ran.exit_code == 0, ran.output
    samples = tmp_path / "a.samples.jsonl"
    assert len(list(read_jsonl(samples))) == 6
    assert read_json(tmp_path / "a.grades.json")["metrics"].keys() >= {"pass@1", "pass@2"}
    ran = CliRunner().invoke(app, [*task, str(tmp_path / "b.json"), "--samples", str(samples)])
    assert ran.exit_code == 0, ran.output
    assert (tmp_path / "b.json").read_bytes() == (tmp_path / "a.grades.json").read_bytes()
