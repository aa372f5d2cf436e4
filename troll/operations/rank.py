"""`troll rank`: runs the user's own trust region through the leaderboard's protocol."""

import contextlib
import math
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from troll.algorithms.trust_regions import TRUST_REGIONS
from troll.analysis.data.tidy import RUN_COLUMNS, concatenated
from troll.analysis.leaderboard import own_rule
from troll.analysis.leaderboard.inputs import choose, trial_scores
from troll.analysis.leaderboard.protocol import Protocol, trials_experiment
from troll.analysis.render.formats import listed
from troll.common.errors import UserError, nearest
from troll.common.progress import say
from troll.common.strict_yaml import parse_yaml
from troll.common.user_files import names_a_file
from troll.experiment.directories import RESULTS
from troll.experiment.files import parse_experiment
from troll.operations.leaderboard import read_rounds, run_fresh, run_rounds, write_board
from troll.operations.protocol_checks import checked_protocol, rule_problems
from troll.operations.workflow import in_checkout, noted

PROTOCOL = Path("workflow/config/duel.yaml")
_CONTRACT = Path("tests/algorithms/test_trust_region_contract.py")
_OWN = "own_rule"
"""Part of the names of the contract's tests of TROLL_CONTRACT; pytest may escape the rule's own name."""
_FAILED = re.compile(r"^FAILED \S+?::(\w+)", re.MULTILINE)


def rank(rule: str, space: Sequence[str] = (), protocol: Path = PROTOCOL, *, cores: int) -> list[str]:
    """Compares the user's trust region with the tuned baseline; returns what came out as lines.

    ``rule`` is a file and a function, ``my_rules.py:soft_wall``; each item of ``space`` a setting and the
    values to try, ``name=1,2,3``. The rules of ``protocol`` must have their runs, here or in the release.
    """
    in_checkout("rank")
    others = checked_protocol(protocol)
    if not names_a_file(rule):
        raise UserError(f"rank: {rule!r} names no file; expected my_rules.py:my_function")
    TRUST_REGIONS[rule]  # loads the rule, or raises a UserError
    name, values = rule.rpartition(":")[2].replace("_", "-"), _space(space)
    _check_space(values, rule, others)
    known = own_rule.with_rule(others, name, rule, values)
    for problem in rule_problems(known, name):
        raise UserError(f"rank: {rule}: {problem}")
    parse_experiment(trials_experiment(known, name), f"rank: {rule}")
    own_rule.check_release(RESULTS, others)
    _check_contract(rule)  # last, because it takes longest
    say(f"{rule}: passes the contract's tests")

    root = RESULTS / f"{others.name}-{name}"
    own = read_rounds(run_rounds(known, root, cores, protocol, name), known)
    best = choose(trial_scores(own, known, name), known)
    for (task, _), trial in best.items():
        settings = f", {trial.described}" if trial.settings else ""
        say(f"{task}: best at learning rate {trial.learning_rate:g}{settings}")
    run_fresh(known, best, root, cores, protocol, name)
    finals = own_rule.read_finals(RESULTS, known, name, list(known.experiment["tasks"]))
    tuning = read_rounds(own_rule.tuning_directories(RESULTS, others), others)
    runs, notes = concatenated([tuning, own], RUN_COLUMNS), own_rule.notes(finals)
    outcome = write_board(known, runs, own_rule.together(finals, name), root, notes)
    return [outcome, *notes, f"every contrast and the board: {root / 'contrasts.md'}, {root / 'board.md'}"]


def _check_contract(rule: str) -> None:
    if not _CONTRACT.exists():
        raise UserError(f"rank: {_CONTRACT} is not here; run this in the root of a checkout")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", _OWN, str(_CONTRACT)]
    status, output = _tested(command, os.environ | {"TROLL_CONTRACT": rule})
    if status:
        broken = sorted(set(_FAILED.findall(output))) or ["the tests cannot be run"]
        raise UserError(
            f"rank: {rule} breaks the contract of rules ({', '.join(broken)}); "
            f"`make contract RULE={shlex.quote(rule)}` shows details"
        )


def _tested(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Runs the tests and returns their exit status and output; passes a SIGTERM on to them, then exits."""
    with noted(signal.SIGTERM) as terminated:
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


def _space(entries: Sequence[str]) -> dict[str, list[Any]]:
    space: dict[str, list[Any]] = {}
    seen: set[str] = set()
    for entry in entries:
        name, separator, values = entry.partition("=")
        if not (name and separator and values):
            raise UserError(f"rank: --space {entry!r}: expected name=1,2,3")
        singles = [single.strip() for single in name.split(",")]  # settings joined by commas share a value
        for single in singles:
            if single in seen:
                raise UserError(f"rank: --space: {single} is given twice; list all its values in one option")
            seen.add(single)
        space[", ".join(singles)] = [_value(value, entry) for value in values.split(",")]
    return space


def _check_space(space: Mapping[str, Sequence[Any]], rule: str, protocol: Protocol) -> None:
    """Checks the names of settings, then whether the number of values gives the protocol's trials."""
    if not space:
        return
    settings = TRUST_REGIONS[rule].settings
    for single in (single for key in space for single in key.split(", ")):
        if single not in settings:
            has = f"it has {', '.join(settings) or 'none'}{nearest(single, settings)}"
            raise UserError(f"rank: --space: {single}: unknown setting of {rule.rpartition(':')[2]}; {has}")
    rates, count = len(protocol.learning_rates), math.prod(map(len, space.values()))
    if count * rates == protocol.trials:
        return
    expected, rest = divmod(protocol.trials, rates)
    if rest:
        raise UserError(
            f"rank: --space: with {rates} learning rates, no number of values gives the "
            f"{protocol.trials} trials of every rule; leave it out"
        )
    what = "value" if len(space) == 1 else "combination"
    raise UserError(
        f"rank: --space: {listed([*space])}: {count} {what}{'s' if count > 1 else ''}, must be {expected}: "
        f"with {rates} learning rates, that gives the {protocol.trials} trials of every rule"
    )


def _value(text: str, entry: str) -> Any:
    try:
        value = parse_yaml(text)
    except ValueError as error:
        raise UserError(f"rank: --space {entry!r}: {text!r} is not a value ({error})") from None
    with contextlib.suppress(TypeError, ValueError):
        value = float(value) if isinstance(value, str) else value  # YAML reads 1e-3 as text
    return value
