"""Tables, figures and the page in one process: what is written, what is removed, and who is blamed."""

from types import SimpleNamespace

import pytest
from refusals import refused
from typer.testing import CliRunner

from troll.analysis.report import make
from troll.cli.app import app
from troll.common.errors import UserError
from troll.operations import report as module
from troll.operations.report import ReportError, remove_unwanted, write_report


@pytest.fixture
def made(monkeypatch, tmp_path):
    """What a report would make, without making it."""
    results = SimpleNamespace(runs=[], items=[], claims=())
    calls = []
    monkeypatch.setattr(module, "read_results", lambda _: results)
    monkeypatch.setattr(module, "make_table", lambda name, _, stem: calls.append((name, stem)))
    monkeypatch.setattr(module, "make_figure", lambda name, _, stem, task: calls.append((name, stem, task)))
    monkeypatch.setattr(module, "judge", lambda *_: [])
    monkeypatch.setattr(module, "replication_of", lambda _: [])
    monkeypatch.setattr(
        module, "report", lambda _, __, ___, run=None: "\n".join(run.commands) if run else "a page\n"
    )
    monkeypatch.setattr(module, "write_page", lambda path, text, _: calls.append((path.name, text)))
    return calls


def test_everything_that_is_named_is_made_the_page_last(made, tmp_path):
    ran = CliRunner().invoke(
        app,
        [
            "job",
            "report",
            str(tmp_path),
            *("--table", "main", "--figure", "final", "--figure", "learning:chains"),
            *("--command", "snakemake sums", "--markdown", str(tmp_path / "README.md")),
        ],
    )
    assert ran.exit_code == 0, ran.output
    assert made == [
        ("main", tmp_path / "tables/main"),
        ("final", tmp_path / "figures/final", None),
        ("learning", tmp_path / "figures/learning_chains", "chains"),
        ("page.html", "snakemake sums"),
    ]
    assert (tmp_path / "README.md").read_text() == "a page\n"


def test_what_is_no_longer_asked_for_is_removed_and_what_others_put_there_stays(tmp_path):
    kept = ("tables/main.csv", "tables/main.tex", "tables/mine.csv", "figures/learning_chains.png")
    kept += ("figures/final.svg", "figures/mine.png")
    gone = (
        "tables/ablation.csv",
        "tables/ablation.md",
        "figures/final.png",
        "figures/learning_functions.png",
    )
    for name in (*kept, *gone):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    remove_unwanted(tmp_path, {"main"}, {"learning_chains"})
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*/*")} == set(kept)


@pytest.mark.parametrize(
    ("error", "kind", "facts"),
    [
        (UserError("no task 'x'"), UserError, ("figure learning of x", "'x'")),
        (KeyError("kl"), ReportError, ("figure learning of x", "KeyError", "'kl'")),
    ],
)
def test_a_failure_names_its_table_or_figure(made, monkeypatch, tmp_path, error, kind, facts):
    def fail(*_):
        raise error

    monkeypatch.setattr(module, "make_figure", fail)
    with refused(*facts, error=kind):
        write_report(tmp_path, ["main"], [("learning", "x")], [])
    assert [name for name, *_ in made] == ["main"], "what could be made is there"


def test_an_unknown_name_is_refused(made, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "make_table", make.make_table)
    with refused("table nonsense", "'nonsense'", "comparison, main"):
        write_report(tmp_path, ["nonsense"], [], [])
