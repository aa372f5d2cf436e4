"""Checks a leaderboard protocol before its first run."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from troll.algorithms.trust_regions import TRUST_REGIONS
from troll.analysis.data.settings import differing, flat_settings
from troll.analysis.leaderboard.protocol import TRIALS, Protocol, read_protocol, region, trials_experiment
from troll.common.errors import UserError
from troll.experiment.experiment import Experiment, resolve
from troll.experiment.files import parse_experiment

_OWN_KEYS = ("experiment", "not_finite", "seeds", "trust_regions", "matrix")
"""Keys of an experiment file that the protocol sets itself."""


def checked_protocol(path: Path) -> Protocol:
    """Reads a protocol file; raises a UserError if its experiments would be invalid."""
    protocol = read_protocol(path)
    for problem in protocol_problems(protocol):
        raise UserError(f"{path}: {problem}")
    shared: dict[str, Any] = {
        **protocol.experiment,
        "experiment": f"{protocol.name}-{TRIALS}",
        "seeds": protocol.tuning_seeds,
    }
    regions = {
        variant: region(protocol.rules[trial.name], trial)
        for variant, trial in protocol.trials_by_variant.items()
    }
    experiment = parse_experiment(shared | {"trust_regions": regions}, f"{path}: experiment")
    for problem in experiment_problems(experiment):
        raise UserError(f"{path}: experiment.{problem}")
    return protocol


def protocol_problems(protocol: Protocol) -> Iterator[str]:
    """Yields errors in a protocol's seeds, learning rates, rules and experiment settings, a line each."""
    for key in ("tuning_seeds", "seeds", "learning_rates"):
        yield from _twice(key, getattr(protocol, key))
    for number, round_ in enumerate(protocol.rounds):
        yield from _twice(f"rounds.{number}.seeds", round_.seeds)
    for name in protocol.rules:
        for problem in rule_problems(protocol, name):
            yield f"rules.{name}.{problem}"
    for key in _OWN_KEYS:
        if key in protocol.experiment:
            yield f"experiment.{key}: set by the protocol; leave it out"
    # These override a trust region's settings: all trials of a rule would have the same learning rate.
    for section in ("conditions", "estimators"):
        blocks = protocol.experiment.get(section)
        for name, block in blocks.items() if isinstance(blocks, dict) else ():
            training = block.get("training") if section == "estimators" and isinstance(block, dict) else block
            if isinstance(training, dict) and "learning_rate" in training:
                yield f"experiment.{section}.{name}: learning_rate: set by each trial; leave it out"


def experiment_problems(experiment: Experiment) -> Iterator[str]:
    """Yields settings with which the best trial cannot be chosen, a line each that begins with the key."""
    for section in ("conditions", "estimators"):
        names = list(getattr(experiment, section))
        if len(names) > 1:
            yield f"{section}: has {len(names)} ({', '.join(names)}), must have one, shared by all rules"
    for run in {(run.model, run.task): run for run in experiment.runs()}.values():
        training = experiment.training_of(run)
        # With a longer interval than the run, only the base model would be validated.
        if not 1 <= training.validate_every <= training.rollout_batches:
            blocks: dict[str, Mapping[str, Any]] = {
                f"models.{run.model}.training": experiment.models[run.model].training,
                f"tasks.{run.task}.training": experiment.tasks[run.task].training,
                f"estimators.{run.estimator}.training": experiment.estimators[run.estimator].training,
                f"conditions.{run.condition}": experiment.conditions[run.condition],
            }
            places = ["training", *(name for name, block in blocks.items() if "validate_every" in block)]
            yield (
                f"{places[-1]}.validate_every: is {training.validate_every}, must be 1 to "
                f"{training.rollout_batches} (rollout_batches): trials are chosen by validation"
            )


def rule_problems(protocol: Protocol, name: str) -> Iterator[str]:
    """Yields errors in a rule's space and settings, a line each that begins with the key."""
    rule = protocol.rules[name]
    yield from _twice("learning_rates", rule.learning_rates)
    seen = set(rule.settings)
    for key, values in rule.space.items():
        yield from _twice(f"space.{key}", values)
        for single in map(str.strip, key.split(",")):
            if single in seen:
                yield f"space.{key}: {single} is set twice; leave one out"
            seen.add(single)
    for trial in protocol.trials_of(name):
        try:
            TRUST_REGIONS.complete(rule.rule, {**rule.settings, **trial.settings})
        except UserError as error:
            text = str(error).removeprefix("trust region: ")
            of_settings = text.removeprefix(f"trust region {rule.rule!r}: ")
            yield f"{'rule' if of_settings == text else 'space' if rule.space else 'settings'}: {of_settings}"
            return


def check_tuned_in(directory: Path, runs: pd.DataFrame, protocol: Protocol) -> None:
    """Raises a UserError if trials run by another protocol differ from those this one would have run."""
    experiment = parse_experiment(trials_experiment(protocol), protocol.name)
    planned = {run.run_id: run for run in experiment.runs()}
    trial_runs = runs[runs["trust_region"].isin(protocol.trials_by_variant)]
    table = trial_runs[["run_id", "settings"]].drop_duplicates("run_id").astype(str)
    for run_id, text in table.itertuples(index=False):
        if run_id not in planned:
            raise UserError(
                f"{directory}: run {run_id} is not a trial of {protocol.name}, such as "
                f"{next(iter(planned))}; tuned_in needs the same names and seeds"
            )
        recorded = flat_settings(text)
        here = flat_settings(resolve(experiment, planned[run_id]).model_dump_json())
        for name in differing(recorded, here):
            raise UserError(
                f"{directory}: run {run_id}: {name} is {recorded.get(name)!r} there, and {here.get(name)!r} "
                "in the protocol; tuned_in needs the same settings"
            )


def _twice(key: str, values: Sequence[Any]) -> Iterator[str]:
    for number, value in enumerate(values):
        if value in values[:number]:
            yield f"{key}: {value!r} is given twice"
            return
