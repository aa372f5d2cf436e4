"""`troll rank`: a trust region of one's own, through the protocol of the leaderboard."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from troll.cli.leaderboard import run_experiment
from troll.cli.options import AROUND_A_RUN, available_cores
from troll.common.errors import UserError
from troll.common.strict_yaml import parse_yaml

_PROTOCOL = Path("workflow/config/leaderboard.yaml")
_CONTRACT = Path("tests/algorithms/test_trust_region_contract.py")
_FAILED = re.compile(r"^FAILED \S+::(\w+)", re.MULTILINE)
_COLUMNS = ("task", "trust_region", "runs", "learning_rate", "settings", "pass@1", "difference", "kl")
_WITH_ENDS = ("pass@1", "difference")


def register_rank(app: typer.Typer) -> None:
    """Adds the command to the application."""
    app.command(rich_help_panel=AROUND_A_RUN)(rank)


def rank(
    rule: Annotated[str, typer.Argument(help="file and function: my_rules.py:soft_wall")],
    space: Annotated[
        list[str] | None,
        typer.Option(help="values of a setting to try, name=1,2,3; may be repeated"),
    ] = None,
    protocol: Annotated[Path, typer.Option(help="of the leaderboard")] = _PROTOCOL,
    board: Annotated[Path | None, typer.Option(help="results/NAME with the released board")] = None,
    cores: Annotated[int, typer.Option(help="processors; 0 for all", min=0)] = 0,
) -> None:
    """Rank a trust region of your own among the released ones.

    It gets what every rule got: the contract tests, the same number of trials, fresh seeds at the best of
    them. Its rows stand between the released ones, which are not made again. Interrupt it when you like: the
    same command goes on.

    Reads results/leaderboard*; writes results/leaderboard-NAME*, the whole table as board.md there.

    Example: troll rank my_rules.py:soft_wall --space coefficient=0.1,1,10
    """
    import pandas as pd

    from troll.analysis.data.tidy import read_runs
    from troll.analysis.leaderboard.own_rule import (
        check_release,
        own_board,
        places,
        read_finals,
        released_trials,
        with_rule,
    )
    from troll.analysis.leaderboard.protocol import (
        choose,
        final_experiments,
        trial_scores,
        trials_experiment,
    )
    from troll.analysis.render.formats import shown, write_table
    from troll.cli.protocol_checks import checked_protocol, rule_problems
    from troll.cli.workflow import in_checkout
    from troll.common.progress import say
    from troll.experiment.files import parse_experiment

    in_checkout("rank")
    released = checked_protocol(protocol)
    name = _name_of(rule)
    known = with_rule(released, name, rule, _space(space or []))
    for problem in rule_problems(known, name):
        raise UserError(f"rank: {rule}: {problem}")
    parse_experiment(trials_experiment(known, name), f"rank: {rule}")
    scores = released_trials((board or Path("results", released.name)) / "trials.csv", released)
    check_release(Path("results"), released)
    _check_contract(rule)  # last, because it takes longest
    say(f"{rule}: keeps the contract")
    root = Path("results", f"{released.name}-{name}")
    count = cores or available_cores()

    trials = run_experiment(trials_experiment(known, name), root, count, protocol)
    own = trial_scores(read_runs(trials / "runs.parquet"), known, name)
    best = choose(own, known)
    for (task, _), trial in best.items():
        settings = f", {trial.described}" if trial.settings else ""
        say(f"{task}: best at learning rate {trial.learning_rate:g}{settings}")
    for experiment in final_experiments(known, best, name).values():
        run_experiment(experiment, root, count, protocol)
    finals = read_finals(Path("results"), known, name, list(known.experiment["tasks"]))
    table = own_board(known, name, pd.concat([scores, own], ignore_index=True), finals)
    write_table(table, root / "board")
    narrow = table[[*_COLUMNS, *(f"{column}_{end}" for column in _WITH_ENDS for end in ("low", "high"))]]
    narrow.attrs = table.attrs
    headings, rows = shown(narrow)
    for cells in (headings, *rows):
        typer.echo(" | ".join(cells))
    for line in (*table.attrs["notes"], *places(table, name), f"the whole table: {root / 'board.md'}"):
        typer.echo(line)


def _name_of(rule: str) -> str:
    """The rule's name on the board, when the file can be loaded."""
    from troll.algorithms.trust_regions import TRUST_REGIONS
    from troll.algorithms.trust_regions.rule_files import names_a_file

    if not names_a_file(rule):
        raise UserError(f"rank: {rule!r} names no file; expected my_rules.py:my_function")
    TRUST_REGIONS[rule]  # loads it, or says what is wrong
    return rule.rpartition(":")[2].replace("_", "-")


def _check_contract(rule: str) -> None:
    if not _CONTRACT.exists():
        raise UserError(f"rank: {_CONTRACT} is not here; run this in the root of a checkout")
    function = rule.rpartition(":")[2]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", function, str(_CONTRACT)]
    status, output = _tested(command, os.environ | {"TROLL_CONTRACT": rule})
    if status:
        broken = sorted(set(_FAILED.findall(output))) or ["the tests cannot be run"]
        raise UserError(
            f"rank: {rule} breaks the contract of rules ({', '.join(broken)}); "
            f"`make contract RULE={rule}` says how"
        )


def _tested(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Exit status and output of tests; a request to end this process ends them first."""
    from troll.cli.workflow import terminations

    with terminations() as terminated:
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            while not terminated:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    output, _ = process.communicate(timeout=0.5)
                    return process.returncode, output
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    raise SystemExit(128 + signal.SIGTERM)


def _space(entries: list[str]) -> dict[str, list[Any]]:
    space = {}
    for entry in entries:
        name, separator, values = entry.partition("=")
        if not (name and separator and values):
            raise UserError(f"rank: --space {entry!r}: expected name=1,2,3")
        space[name] = [_value(value, entry) for value in values.split(",")]
    return space


def _value(text: str, entry: str) -> Any:
    try:
        value = parse_yaml(text)
    except ValueError as error:
        raise UserError(f"rank: --space {entry!r}: {text!r} is no value ({error})") from None
    with contextlib.suppress(TypeError, ValueError):
        value = float(value) if isinstance(value, str) else value  # YAML takes 1e-3 for text
    return value
