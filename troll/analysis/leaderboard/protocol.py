"""What is asked of every rule, and the experiments that ask it: trials, then fresh seeds at the best of them.

The protocol file is written before the first run. Trials are a grid of learning rates and settings, the same
number for each rule; the best by success on validation problems goes on. How much tuning a rule needs is
shown by the expected best of fewer trials (`expected_best`).
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import Field, ValidationError, model_validator
from scipy.special import comb

from troll.analysis.data.tidy import BASE
from troll.analysis.render.formats import Style, listed, percent, whole
from troll.common.errors import UserError
from troll.common.files import read_yaml
from troll.experiment.explain import explain
from troll.experiment.settings import Positive, Settings, Whole

TRIALS, FINAL = "trials", "final"


class Candidate(Settings):
    """A rule, and the values of its settings that trials may take.

    Attributes:
        rule: its registered name, or ``file.py:function``.
        settings: what is the same in all trials.
        space: values by setting. Settings whose names are joined by a comma take the same value.
        learning_rates: of this rule, in place of the protocol's.
    """

    rule: str
    settings: dict[str, Any] = Field({})
    space: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field({})
    learning_rates: list[Positive] = Field([])


class Protocol(Settings):
    """The contents of a protocol file.

    Attributes:
        name: of the leaderboard; the experiments are ``<name>-trials`` and ``<name>-<task>``.
        trials: settings tried of each rule, exactly.
        tuning_seeds: of each trial.
        seeds: of each rule at its best; none of them is a tuning seed.
        learning_rates: tried with every combination of a rule's settings.
        baseline: the rule that others are compared with.
        rules: by the names that tables show.
        experiment: what all runs share: tasks, models, estimators, training, evaluation, as in an experiment
            file.
    """

    name: str
    trials: int = Field(ge=1)
    tuning_seeds: list[Whole] = Field(min_length=1)
    seeds: list[Whole] = Field(min_length=2)
    learning_rates: list[Positive] = Field(min_length=1)
    baseline: str
    rules: dict[str, Candidate] = Field(min_length=1)
    experiment: dict[str, Any]

    @model_validator(mode="after")
    def _fair(self) -> "Protocol":
        if shared := set(self.tuning_seeds) & set(self.seeds):
            raise ValueError(f"seeds: {min(shared)} is a tuning seed too; fresh seeds must be others")
        if self.baseline not in self.rules:
            raise ValueError(f"baseline: {self.baseline!r} is none of the rules")
        if BASE in self.rules:  # its trials may have the name with a number, its fresh runs may not have it
            raise ValueError(f"rules.{BASE}: is what base models are called; take another name")
        for name, rule in self.rules.items():
            count = len(self.trials_of(name))
            if count != self.trials:
                raise ValueError(
                    f"rules.{name}: {count} trials ({len(self._rates(rule))} learning rates x "
                    f"{count // len(self._rates(rule))} settings), and every rule gets {self.trials}"
                )
        return self

    def _rates(self, rule: Candidate) -> list[float]:
        return rule.learning_rates or self.learning_rates

    def trials_of(self, name: str) -> "list[Trial]":
        """The trials of a rule, in the order of the file."""
        rule = self.rules[name]
        keys = list(rule.space)
        combinations = itertools.product(*(rule.space[key] for key in keys))
        points = [
            {
                single.strip(): value
                for key, value in zip(keys, values, strict=True)
                for single in key.split(",")
            }
            for values in combinations
        ]
        pairs = itertools.product(self._rates(rule), points)
        return [Trial(name, number, rate, point) for number, (rate, point) in enumerate(pairs, start=1)]

    @cached_property
    def trials_by_variant(self) -> "dict[str, Trial]":
        """Every trial, by the name of its trust region in the experiment of trials."""
        return {trial.variant: trial for name in self.rules for trial in self.trials_of(name)}


@dataclass(frozen=True)
class Trial:
    """One point of a rule's space.

    Attributes:
        name: of the rule in the protocol.
        number: from 1, in the order of the file.
        learning_rate: of the policy.
        settings: by name.
    """

    name: str
    number: int
    learning_rate: float
    settings: Mapping[str, Any]

    @property
    def variant(self) -> str:
        """Its name as a trust region of the experiment of trials."""
        return f"{self.name}.{self.number}"

    @property
    def described(self) -> str:
        """Its settings in words; a dash where it has none."""
        return ", ".join(f"{name} {value}" for name, value in self.settings.items()) or "–"


def read_protocol(path: Path) -> Protocol:
    """Reads a protocol file.

    Raises:
        UserError: it is missing or breaks a rule of the protocol; the message names the key.
    """
    contents = read_yaml(path, "protocol file")
    if not isinstance(contents, dict):
        raise UserError(f"{path}: expected a mapping with keys {', '.join(Protocol.model_fields)}")
    try:
        return Protocol.model_validate(contents)
    except ValidationError as error:
        raise UserError(f"{path}: {explained(error)}") from None


def explained(error: ValidationError) -> str:
    """What is wrong with a protocol, as one line that begins with the key."""
    first = error.errors()[0]  # what `_fair` says names its key itself
    return explain(error, Protocol) if first["loc"] else str(first["msg"]).removeprefix("Value error, ")


def among(protocol: Protocol, names: Collection[str]) -> Protocol:
    """The protocol with some of its rules only: the board grows rule by rule.

    Raises:
        UserError: a name is none of the rules, or the baseline is not among them.
    """
    if unknown := next((name for name in names if name not in protocol.rules), None):
        raise UserError(f"the leaderboard has no rule {unknown}; it has {', '.join(protocol.rules)}")
    if protocol.baseline not in names:
        raise UserError(f"{protocol.baseline} must be among the rules: others are compared with it")
    rules = {name: rule for name, rule in protocol.rules.items() if name in names}
    return Protocol.model_validate(protocol.model_dump() | {"rules": rules})


def tried(runs: pd.DataFrame, protocol: Protocol) -> list[str]:
    """The rules of which there are runs of trials.

    Args:
        runs: tidy table of the experiment of trials.
        protocol: of the leaderboard.
    """
    there = set(runs["trust_region"])
    return [name for name in protocol.rules if there & {trial.variant for trial in protocol.trials_of(name)}]


def trials_experiment(protocol: Protocol, only: str | None = None) -> dict[str, Any]:
    """The experiment file of all trials: a trust region for each, on the tuning seeds.

    Trials are chosen by validation; the test problems, which nobody looks at before the fresh seeds, are
    answered once instead of as often as the protocol says.

    Args:
        protocol: of the leaderboard.
        only: a rule whose trials alone are meant, in an experiment of its own.
    """
    regions = {
        variant: region(protocol.rules[trial.name], trial)
        for variant, trial in protocol.trials_by_variant.items()
        if only in (None, trial.name)
    }
    experiment = _experiment(protocol, _part(TRIALS, only), protocol.tuning_seeds, regions)
    return experiment | {"evaluation": experiment.get("evaluation", {}) | {"samples": 1}}


def final_experiments(
    protocol: Protocol, best: Mapping[tuple[str, str], Trial], only: str | None = None
) -> dict[str, dict[str, Any]]:
    """Experiment files of fresh seeds by task, each rule at its best.

    Args:
        protocol: of the leaderboard.
        best: by task and name of the rule, as `choose` gives it.
        only: a rule that alone is meant, in experiments of its own.
    """
    rules = {name: rule for name, rule in protocol.rules.items() if only in (None, name)}
    return {
        task: _experiment(
            protocol,
            _part(task, only),
            protocol.seeds,
            {name: region(rule, best[task, name]) for name, rule in rules.items()},
            task,
        )
        for task in protocol.experiment["tasks"]
    }


def _part(part: str, only: str | None) -> str:
    return part if only is None else f"{only}-{part}"


def region(rule: Candidate, trial: Trial) -> dict[str, Any]:
    """A trial as a trust region of an experiment file."""
    return {
        "rule": rule.rule,
        "settings": {**rule.settings, **trial.settings},
        "training": {"learning_rate": trial.learning_rate},
    }


def _experiment(
    protocol: Protocol, part: str, seeds: Sequence[int], regions: Mapping[str, Any], task: str | None = None
) -> dict[str, Any]:
    shared = dict(protocol.experiment)
    if task is not None:
        shared["tasks"] = {task: shared["tasks"][task]}
    what = (
        "Trials of every rule on the tuning seeds"
        if task is None
        else f"Every rule, tuned, on fresh seeds: {task}"
    )
    return {
        "experiment": f"{protocol.name}-{part}",
        "summary": f"{what} (the {protocol.name})",
        **shared,
        "seeds": list(seeds),
        "trust_regions": dict(regions),
    }


def trial_scores(runs: pd.DataFrame, protocol: Protocol, only: str | None = None) -> pd.DataFrame:
    """Success on validation problems at the end of each trial.

    Args:
        runs: tidy table of the experiment of trials.
        protocol: of the leaderboard.
        only: a rule whose trials alone are in the table.

    Returns:
        Columns task, rule, trial (number), learning_rate, settings (in words), score (mean over tuning seeds
        and models), runs (how many) and after: the share of a trial's optimiser steps that lie before the
        last validation, 1 unless that after the last step is missing. A run that collapsed counts with the
        success that it ended with. One that stopped at a loss that is not finite leaves no results: its trial
        counts as unfinished.

    Raises:
        UserError: a trial has fewer or more runs than the protocol; the message says how many.
    """
    validation = runs[(runs["source"] == "validation") & (runs["metric"] == "validation_success")]
    last = validation.sort_values("step").groupby(["run_id"], observed=True).tail(1)
    ends = last["run_id"].astype(str).map(runs.groupby(runs["run_id"].astype(str))["step"].max())
    # A validation stands in the line of the step after it, that after the last step in the last line.
    last = last.assign(after=((last["step"] - 1) / ends).where(last["step"] < ends, 1.0))
    rows = []
    models = len(set(runs["model"]) - {""})
    wanted = len(protocol.tuning_seeds) * models
    for task in protocol.experiment["tasks"]:
        for variant, trial in protocol.trials_by_variant.items():
            if only not in (None, trial.name):
                continue
            own = last[(last["task"] == task) & (last["trust_region"] == variant)]
            if len(own) > wanted:
                raise UserError(
                    f"trial {variant} on {task} has {len(own)} runs, and the protocol {wanted}, one for each "
                    "tuning seed and model; they belong to another protocol"
                )
            if len(own) < wanted:
                raise UserError(
                    f"trial {variant} on {task} has {len(own)} of {wanted} runs; finish the trials first"
                )
            rows.append(
                {
                    "task": task,
                    "rule": trial.name,
                    "trial": trial.number,
                    "learning_rate": trial.learning_rate,
                    "settings": trial.described,
                    "score": float(own["value"].mean()),
                    "runs": len(own),
                    "after": float(own["after"].min()),
                }
            )
    frame = pd.DataFrame(rows)
    frame.attrs["styles"] = TRIAL_STYLES
    return frame


def chosen_early(scores: pd.DataFrame) -> dict[str, float]:
    """Rules whose trials were chosen before they ended, with the least share of optimiser steps by then.

    Args:
        scores: of `trial_scores`.
    """
    after = scores.groupby("rule", sort=False, observed=True)["after"].min()
    return {str(name): float(share) for name, share in after.items() if share < 1}


def early_in_words(early: Mapping[str, float], rules: int) -> str:
    """What `chosen_early` found, as the beginning of a sentence.

    Args:
        early: its result, not empty.
        rules: how many there are on the board.
    """
    whose = "The trials" if len(early) == rules else f"The trials of {listed([*early])}"
    return f"{whose} were chosen after {100 * min(early.values()):.0f} % of their optimiser steps"


def rate(value: float) -> str:
    """A learning rate, as files write it: 3e-5, 4.13e-5."""
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


TRIAL_STYLES = {
    "rule": Style("Trust region"),
    "trial": Style("Trial", whole),
    "learning_rate": Style("Learning rate", rate),
    "settings": Style("Settings"),
    "score": Style("Validation success (%)", percent),
    "runs": Style("Runs", whole),
    "after": Style("After (% of steps)", percent),
}


def choose(scores: pd.DataFrame, protocol: Protocol) -> dict[tuple[str, str], Trial]:
    """The best trial of each rule on each task; of equal ones the first in the order of the file.

    Args:
        scores: of `trial_scores`.
        protocol: of the leaderboard.
    """
    best = {}
    for (task, name), group in scores.groupby(["task", "rule"], sort=False, observed=True):
        number = int(group["trial"].iloc[int(group["score"].to_numpy().argmax())])
        best[str(task), str(name)] = protocol.trials_by_variant[f"{name}.{number}"]
    return best


def expected_best(scores: Sequence[float], budget: int) -> float:
    """Expected best of so many trials, drawn without replacement from those that were made.

    The unbiased estimator of Tang et al. (2020, "Showing Your Work Doesn't Always Work", eq. 5), for the
    quantity of Dodge et al. (2019, "Show Your Work").

    Args:
        scores: of all trials of a rule.
        budget: 1 to ``len(scores)``.

    Raises:
        UserError: a budget outside of that range.
    """
    count = len(scores)
    if not 1 <= budget <= count:
        raise UserError(f"expected_best: budget is {budget}, must be 1 to {count}")
    ordered = np.sort(np.asarray(scores, dtype=float))
    below = np.arange(count)  # trials that are no better than each
    weights = comb(below, budget - 1) / comb(count, budget)
    return float(ordered @ weights)
