"""Runs the leaderboard's experiments through the workflow, and makes the board from their results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from troll.analysis.data.results import Results, read_results
from troll.analysis.data.tidy import TIDY
from troll.analysis.leaderboard import inputs
from troll.analysis.leaderboard.board import board_table
from troll.analysis.leaderboard.contrasts import contrasts_table, sentence
from troll.analysis.leaderboard.figures import contrasts_figure
from troll.analysis.leaderboard.levels import levels_table
from troll.analysis.leaderboard.protocol import (
    Protocol,
    final_experiments,
    read_protocol,
    round_experiment,
    trials_experiment,
)
from troll.analysis.render.formats import write_table
from troll.analysis.render.style import write_figure
from troll.common.errors import UserError
from troll.common.files import write_text
from troll.common.progress import say
from troll.experiment.directories import RESULTS, results_directory
from troll.experiment.files import parse_experiment
from troll.operations import workflow
from troll.operations.protocol_checks import check_tuned_in, checked_protocol


def run_protocol(protocol: Path, cores: int, *, repeat: bool = False) -> str:
    """Runs all rounds of trials and the fresh seeds, makes the board; returns its first contrast in words.

    Runs that are finished here are not repeated, and neither, without ``repeat``, are those in the tables in
    results/released. Writes results/NAME-trials, results/NAME-round-N if the protocol has rounds,
    results/NAME-TASK, and the board in results/NAME.
    """
    workflow.in_checkout("rank")
    known = checked_protocol(protocol)
    if repeat:
        known = known.model_copy(update={"experiment": known.experiment | {"repeat": True}})
    out = RESULTS / known.name
    files = out / "experiments"
    tried = run_rounds(known, files, cores, protocol)
    best = inputs.choose(inputs.trial_scores(read_rounds(tried, known), known), known)
    finals = run_fresh(known, best, files, cores, protocol)
    outcome = make_board(protocol, tried, finals, out)
    write_text(out / "protocol.yaml", protocol.read_text(encoding="utf-8"))
    say(f"the board: {out / 'board.md'}")
    return outcome


def write_trials(protocol: Path, out: Path, results: Sequence[Path]) -> None:
    """Writes the experiment file of all trials, or of the tuning round that follows those in ``results``."""
    known = checked_protocol(protocol)
    if len(results) > len(known.rounds):
        raise UserError(
            f"{protocol}: all {len(results)} rounds are done; continue with `troll release final`"
        )
    if known.tuned_in and not results:
        raise UserError(
            f"{protocol}: the first round is taken from {known.tuned_in} and not run again; "
            f"use --results {known.tuned_in} to write the next one"
        )
    write_experiments({out: next_round(known, results)}, protocol)


def next_round(known: Protocol, done: Sequence[Path], only: str | None = None) -> dict[str, Any]:
    """Returns the experiment of all trials, or of the tuning round that follows those in ``done``."""
    if not done:
        return trials_experiment(known, only)
    scores = inputs.trial_scores(read_rounds(done, known), known, only, rounds=len(done) - 1)
    return round_experiment(known, len(done), inputs.kept_for(scores, known, len(done)), only)


def write_finals(protocol: Path, results: Sequence[Path], out: Path) -> None:
    """Chooses each rule's best trial, and writes the experiments of its fresh seeds.

    ``results`` are those of the trials, one for each round in order.
    """
    known = checked_protocol(protocol)
    best = inputs.choose(inputs.trial_scores(read_rounds(results, known), known), known)
    experiments = final_experiments(known, best)
    write_experiments({out / f"{task}.yaml": one for task, one in experiments.items()}, protocol)


def run_rounds(
    known: Protocol, files: Path, cores: int, protocol: Path, only: str | None = None
) -> list[Path]:
    """Runs all tuning rounds in order and returns the directories of their results."""
    done = []
    if known.tuned_in and only is None:
        tuned_in = Path(known.tuned_in)
        done.append(results_directory(tuned_in.name, TIDY, tuned_in.parent))
    while len(done) <= len(known.rounds):
        done.append(run_experiment(next_round(known, done, only), files, cores, protocol))
    return done


def run_fresh(
    known: Protocol,
    best: Mapping[tuple[str, str], Any],
    files: Path,
    cores: int,
    protocol: Path,
    only: str | None = None,
) -> list[Path]:
    """Runs the fresh seeds, with ``only`` those of a single rule; returns the directories of the results."""
    experiments = final_experiments(known, best, only).values()
    return [run_experiment(experiment, files, cores, protocol) for experiment in experiments]


def read_rounds(directories: Sequence[Path], known: Protocol, option: str = "--results") -> pd.DataFrame:
    """Reads the runs of all finished tuning rounds as one tidy table."""
    inputs.check_named_once(directories, option)
    tables = {path: read_results(path).runs for path in directories}
    if known.tuned_in is not None:
        check_tuned_in(directories[0], tables[directories[0]], known)
    return inputs.tuning_table(tables, known)


def make_board(protocol: Path, trials: Sequence[Path], final: Sequence[Path], out: Path) -> str:
    """Writes the board's tables and figure; returns the protocol's first contrast in words.

    Tables: ``board``, ``contrasts``, ``trials``, and ``levels`` if there are any. Figure: ``contrasts``.
    """
    inputs.check_named_once(final)
    known = read_protocol(protocol)
    runs = read_rounds(trials, known, "--trials")
    finals = {path: read_results(path) for path in final}
    inputs.check_fresh(finals, known)
    return write_board(known, runs, [*finals.values()], out)


def write_board(
    known: Protocol, runs: pd.DataFrame, fresh: Sequence[Results], out: Path, notes: Sequence[str] = ()
) -> str:
    """Writes the board from the runs of tuning and of fresh seeds, with further ``notes`` of the board."""
    scores = inputs.trial_scores(runs, known)
    table = board_table(fresh, scores, inputs.choose(scores, known), known)
    table.attrs["notes"][1:1] = inputs.tuned_elsewhere(runs, fresh, known)
    table.attrs["notes"] += notes
    contrasts = contrasts_table(fresh, known, inputs.tuning_values(runs, scores, known))
    trials = scores if known.rounds else scores.drop(columns=["first", "rounds"])
    tables = {"board": table, "trials": trials, "contrasts": contrasts, "levels": levels_table(fresh, known)}
    for name, made in tables.items():
        if not made.empty:
            write_table(made, out / name)
    write_figure(contrasts_figure(contrasts, fresh, known), out / "contrasts")
    return sentence(contrasts, known)


def run_experiment(experiment: dict[str, Any], directory: Path, cores: int, protocol: Path) -> Path:
    """Runs an experiment made from a protocol through the workflow; returns the directory of its results."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{experiment['experiment']}.yaml"
    write_experiments({path: experiment}, protocol)
    log = path.with_suffix(".log")
    say(f"{experiment['experiment']}: log in {log}")
    ended = workflow.run_workflow(path, ["all"], log, cores=cores)
    if ended.status:
        raise UserError(f"{log}: the workflow ended with status {ended.status}: {ended.last}")
    return RESULTS / str(experiment["experiment"])


def write_experiments(files: Mapping[Path, dict[str, Any]], protocol: Path) -> None:
    """Writes experiment files made from a protocol, after checking all of them."""
    for path, experiment in files.items():
        if path.exists() and path.samefile(protocol):
            raise UserError(f"{path}: would overwrite the protocol; choose another output path")
        parse_experiment(experiment, str(path))
    head = f"# Written by `troll rank` from {protocol.as_posix()}.\n"
    for path, experiment in files.items():
        write_text(path, head + yaml.safe_dump(experiment, sort_keys=False, allow_unicode=True))
