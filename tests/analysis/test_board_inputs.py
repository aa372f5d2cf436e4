"""The command that makes the board: what it is given is what it is taken for, or nothing is written."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml
from refusals import error_of, refused
from synthetic_board import PROTOCOL, trial_score, validation
from typer.testing import CliRunner

from troll.analysis.data.results import Results
from troll.analysis.data.tidy import (
    ITEM_COLUMNS,
    RUN_COLUMNS,
    WHOLE,
    Tidy,
    on_disk,
    table_file,
    write_table_file,
)
from troll.analysis.report.front import front
from troll.cli.app import app
from troll.operations.released import check_measurements

NO_RUNS = pd.DataFrame(columns=["metric", "source"])


def write(directory, results):
    tables = []
    for frame, columns in ((results.runs, RUN_COLUMNS), (results.items, ITEM_COLUMNS)):
        full = frame.reindex(columns=list(columns)).assign(mixed=False)
        tables.append(full.astype(dict(columns)))
    write_table_file(table_file(directory, WHOLE), [on_disk(Tidy(*tables))])


@pytest.fixture
def results(board, protocol, tmp_path, monkeypatch):
    """A directory with the protocol, its trials and fresh seeds; and these results themselves."""
    _, final, _ = board
    monkeypatch.chdir(tmp_path)
    Path("protocol.yaml").write_text(yaml.safe_dump(PROTOCOL))
    trials = Results(validation(protocol, trial_score), pd.DataFrame())
    named = final[0].items.assign(trust_region=final[0].items["trust_region"].astype(str) + ".1")
    for name, one in zip(
        ("trials", "chains", "functions"), (replace(trials, items=named), *final), strict=True
    ):
        write(Path("results", f"board-{name}"), one)
    return final


def make(*final, trials="results/board-trials"):
    words = ["release", "board", "protocol.yaml", "--trials", trials, "--out", "out"]
    return CliRunner().invoke(app, [*words, *(word for path in final for word in ("--final", path))])


def check_refusal(final, *facts, trials="results/board-trials"):
    error_of(make(*final, trials=trials), *facts)
    assert not Path("out").exists(), "nothing is written"


@pytest.mark.parametrize(
    ("again", "facts"),
    [
        ("results/board-chains", ()),
        ("results/../results/board-chains/", ("results/board-chains",)),
        ("link", ("results/board-chains",)),
    ],
)
def test_a_directory_that_is_given_twice_is_named(results, again, facts):
    Path("link").symlink_to("results/board-chains")
    shown = str(Path(again))
    check_refusal(("results/board-chains", again), "--final", shown, *facts)


def test_two_experiments_of_one_task_are_named(results):
    write(Path("copy"), results[0])
    finals = ("results/board-chains", "results/board-functions", "copy")
    check_refusal(finals, "--final", "results/board-chains", "copy", "chains")


def test_what_holds_no_fresh_seeds_is_named(results):
    check_refusal(("results/board-chains", "results/board-trials"), "results/board-trials", "board")
    chains = ("results/board-chains",)
    check_refusal(chains, "trial clip.1", "chains", "0 of 2", trials="results/board-functions")
    for column, value, facts in (
        ("task", "sums", ("sums", "results/board-chains")),
        ("condition", "tuned", ("condition stale", "condition tuned")),
        ("estimator", "rloo", ("estimator grpo", "estimator rloo")),
    ):
        items = results[1].items
        changed = items[column].astype(str).mask(items["trust_region"] == "troll", value)
        write(Path("other"), replace(results[1], items=items.assign(**{column: changed})))
        check_refusal(("results/board-chains", "other"), "other", *facts)


@pytest.mark.slow
def test_contrasts_are_made_with_the_board_and_checked_like_it(results, monkeypatch):
    monkeypatch.setattr("troll.analysis.leaderboard.contrasts.RESAMPLES", 200)
    Path("protocol.yaml").write_text(yaml.safe_dump(PROTOCOL))
    words = ["release", "board", "protocol.yaml", "--trials", "results/board-trials"]
    words += ["--final", "results/board-chains", "--final", "results/board-functions"]
    result = CliRunner().invoke(app, [*words, "--out", "results/board"])
    assert result.exit_code == 0, result.output
    written = {path.stem for path in Path("results/board").iterdir()}
    assert written == {"board", "contrasts", "trials", "protocol"}
    assert len(pd.read_csv("results/board/board.csv")) == 6
    assert not {"first", "rounds"} & {*pd.read_csv("results/board/trials.csv")}, "tuned in one round"
    said = result.output.splitlines()[-1]
    assert said in Path("results/board/contrasts.md").read_text().splitlines()
    Path("results/board").rename("results/duel")
    (row,) = (line for line in front([], Path("results"), NO_RUNS).splitlines() if "the duel" in line)
    assert f"| {said.partition(': ')[2].partition(' points')[0]} points |" in row, "as the sentence says"
    assert "the duel" not in front([], Path("elsewhere"), NO_RUNS)
    Path("results/duel").rename("results/board")
    compared_files = check_measurements(Path("results/board"))
    assert {path.name for path in compared_files} >= {"contrasts.csv", "contrasts.md", "contrasts.png"}
    table = Path("results/board/contrasts.csv")
    table.write_text(table.read_text().replace("troll", "trolls", 1))
    with refused("results/board", "contrasts.csv"):
        check_measurements(Path("results/board"))
    gone = results[1].items["trust_region"] != "none"
    write(Path("results/board-functions"), replace(results[1], items=results[1].items[gone]))
    error_of(CliRunner().invoke(app, [*words, "--out", "early"]), "none", "functions")
    assert not Path("early").exists()
