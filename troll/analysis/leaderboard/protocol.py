"""The leaderboard's protocol and its experiments: tuning trials, then fresh seeds with the best trial.

The protocol file is written before the first run. Trials are a grid of learning rates and settings, the same
number for each rule; the trial with the best validation success is chosen. Tuning may have rounds: all trials
on few seeds, then the best of them on further seeds. A protocol also fixes contrasts: the comparisons, their
analysis and the wording of each outcome.
"""

import itertools
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from troll.algorithms.ranges import NonNegativeInt, Positive
from troll.analysis.data.tidy import BASE
from troll.common.errors import UserError
from troll.common.explain import validated
from troll.common.files import read_yaml
from troll.common.settings import StrictModel

TRIALS, FINAL = "trials", "final"


class Contrast(StrictModel):
    """A pair of rules by their names in the protocol: method minus baseline."""

    method: str
    baseline: str


SLOTS = ("method", "baseline", "difference", "seeds", "tasks", "margin")
"""Placeholders that a sentence may have in braces."""


def _check_slots(text: str) -> str:
    try:
        named = [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
    except ValueError as error:
        raise ValueError(f"braces do not match ({error})") from None
    if unknown := [name for name in named if name not in SLOTS]:
        raise ValueError(f"unknown placeholder {{{unknown[0]}}}; valid: {', '.join(SLOTS)}")
    return text


Sentence = Annotated[str, AfterValidator(_check_slots)]


class Sentences(StrictModel):
    """The sentence for each outcome of the first contrast, with `SLOTS` in braces."""

    above: Sentence  # the whole interval of the difference is above 0
    below: Sentence  # it is below 0
    within: Sentence  # it contains 0 and is within the margin on both sides
    undecided: Sentence  # it contains 0 and extends beyond the margin
    small: Sentence  # added to ``above`` or ``below`` if the whole interval is within the margin


class Comparison(StrictModel):
    """Contrasts that are fixed in advance, and their analysis."""

    # the first is primary and tested by itself; all of them are a family for Holm's correction
    contrasts: list[Contrast] = Field(min_length=1)
    margin: Positive  # differences up to this share of test problems count as equivalence
    # the first is primary: test ``pass@1``, or ``area``, the mean height of the training curve
    endpoints: list[Literal["pass@1", "area"]] = Field(min_length=1)
    sentences: Sentences  # by outcome

    @model_validator(mode="after")
    def _each_once(self) -> "Comparison":
        seen: set[frozenset[str]] = set()
        for contrast in self.contrasts:
            pair = frozenset((contrast.method, contrast.baseline))
            if len(pair) == 1 or pair in seen:
                problem = "appears twice" if len(pair) > 1 else "compares a rule with itself"
                raise ValueError(f"contrasts: {contrast.method} minus {contrast.baseline} {problem}")
            seen.add(pair)
        if len(set(self.endpoints)) < len(self.endpoints):
            raise ValueError(f"endpoints: {', '.join(self.endpoints)} has duplicates")
        return self


class Candidate(StrictModel):
    """A rule and its search space."""

    rule: str  # its registered name, or ``file.py:function``
    settings: dict[str, Any] = Field({})  # fixed in all trials
    # values to try by setting; settings joined by a comma take the same value
    space: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field({})
    learning_rates: list[Positive] = Field([])  # of this rule, instead of the protocol's


class Round(StrictModel):
    """A further round of tuning."""

    # number of trials of each rule and task that advance to it: the best by the mean over all seeds so far
    trials_kept: int = Field(ge=1)
    seeds: list[NonNegativeInt] = Field(min_length=1)  # their additional seeds


class Protocol(StrictModel):
    """The contents of a protocol file."""

    name: str  # of the leaderboard; the experiments are ``<name>-trials`` and ``<name>-<task>``
    trials: int = Field(ge=1)  # number of trials of each rule, exactly
    tuning_seeds: list[NonNegativeInt] = Field(min_length=1)  # of each trial
    # further rounds of tuning after that on `tuning_seeds`, in which fewer trials get more seeds; the choice
    # is made among the trials of the last round, by the mean over all their seeds
    rounds: list[Round] = Field([])
    # results/<experiment> of another protocol's trials, whose runs are used as the first round
    tuned_in: str | None = None
    seeds: list[NonNegativeInt] = Field(
        min_length=2
    )  # fresh seeds of each tuned rule, disjoint from tuning seeds
    learning_rates: list[Positive] = Field(min_length=1)  # tried with every combination of a rule's settings
    baseline: str  # the rule with which others are compared
    rules: dict[str, Candidate] = Field(min_length=1)  # by displayed name
    # what all runs share: tasks, models, estimators, training, evaluation, as in an experiment file
    experiment: dict[str, Any]
    comparison: Comparison  # the contrasts
    # treatment of runs with a non-finite loss: ``zero`` counts a success of 0 in tuning and at every
    # endpoint; ``stop`` leaves the board unfinished
    not_finite: Literal["stop", "zero"] = "zero"

    @model_validator(mode="after")
    def _check_fields_agree(self) -> "Protocol":
        if shared := set(self.tuning_seeds) & set(self.seeds):
            raise ValueError(f"seeds: {min(shared)} is also a tuning seed; fresh seeds must be different")
        if self.baseline not in self.rules:
            raise ValueError(f"baseline: {self.baseline!r} is not one of the rules")
        if BASE in self.rules:
            raise ValueError(f"rules.{BASE}: reserved for base models; use another name")
        for name, rule in self.rules.items():
            count = len(self.trials_of(name))
            if count != self.trials:
                raise ValueError(
                    f"rules.{name}: {count} trials ({len(self._rates(rule))} learning rates x "
                    f"{count // len(self._rates(rule))} settings), but every rule gets {self.trials}"
                )
        self._check_rounds()
        if unknown := sorted(set(self.compared) - set(self.rules)):
            raise ValueError(f"comparison.contrasts: {unknown[0]!r} is not one of the rules")
        return self

    def _check_rounds(self) -> None:
        before, used = self.trials, set(self.tuning_seeds)
        for number, round_ in enumerate(self.rounds):
            if round_.trials_kept > before:
                raise ValueError(
                    f"rounds.{number}.trials_kept: is {round_.trials_kept}, but the previous round has "
                    f"{before} trials"
                )
            if shared := used & set(round_.seeds):
                raise ValueError(
                    f"rounds.{number}.seeds: {min(shared)} is a seed of a previous round; use other seeds"
                )
            if shared := set(round_.seeds) & set(self.seeds):
                raise ValueError(f"seeds: {min(shared)} is also a tuning seed; fresh seeds must be different")
            before, used = round_.trials_kept, used | set(round_.seeds)

    @property
    def compared(self) -> list[str]:
        """The distinct rules in the contrasts."""
        pairs = ((pair.method, pair.baseline) for pair in self.comparison.contrasts)
        return list(dict.fromkeys(itertools.chain.from_iterable(pairs)))

    @property
    def stages(self) -> list[list[int]]:
        """The seeds that each round adds, from the first round on."""
        return [self.tuning_seeds, *(round_.seeds for round_ in self.rounds)]

    @property
    def tuning_experiments(self) -> list[str]:
        """Names of the rounds' experiments, which are directories of ``results``."""
        further = [f"{self.name}-{round_name(number)}" for number in range(1, len(self.rounds) + 1)]
        return [Path(self.tuned_in).name if self.tuned_in else f"{self.name}-{TRIALS}", *further]

    def _rates(self, rule: Candidate) -> list[float]:
        return rule.learning_rates or self.learning_rates

    def trials_of(self, name: str) -> "list[Trial]":
        """Returns the trials of a rule, in file order."""
        rule = self.rules[name]
        keys = [[single.strip() for single in key.split(",")] for key in rule.space]
        points = [
            {single: value for key, value in zip(keys, values, strict=True) for single in key}
            for values in itertools.product(*rule.space.values())
        ]
        pairs = itertools.product(self._rates(rule), points)
        return [Trial(name, number, rate, point) for number, (rate, point) in enumerate(pairs, start=1)]

    @cached_property
    def trials_by_variant(self) -> "dict[str, Trial]":
        """All trials by the name of their trust region in the experiment of trials."""
        return {trial.variant: trial for name in self.rules for trial in self.trials_of(name)}


@dataclass(frozen=True)
class Trial:
    """A trial: one combination of a rule's settings, numbered from 1 in file order."""

    name: str
    number: int
    learning_rate: float
    settings: Mapping[str, Any]

    @property
    def variant(self) -> str:
        """The name of its trust region in the experiment of trials."""
        return f"{self.name}.{self.number}"

    @property
    def described(self) -> str:
        """Its settings in words; a dash if it has none."""
        return ", ".join(f"{name} {value}" for name, value in self.settings.items()) or "–"


def read_protocol(path: Path) -> Protocol:
    """Reads a protocol file."""
    contents = read_yaml(path, "protocol file")
    if not isinstance(contents, dict):
        raise UserError(f"{path}: expected a mapping with keys {', '.join(Protocol.model_fields)}")
    return validated(Protocol, contents, path)


def trials_experiment(protocol: Protocol, only: str | None = None) -> dict[str, Any]:
    """Returns the experiment file of the first round: a trust region for each trial, on the tuning seeds.

    Trials are chosen by validation success. Test problems are sampled only once each, because their scores
    are not used before the fresh seeds.
    """
    trials = [trial for trial in protocol.trials_by_variant.values() if only in (None, trial.name)]
    what = "Trials of every rule on the tuning seeds"
    return _tuning_experiment(protocol, _part(TRIALS, only), protocol.tuning_seeds, trials, what)


def round_name(number: int) -> str:
    """Returns the suffix of a further round's experiment; number 1 is the second round."""
    return f"round-{number + 1}"


def round_experiment(
    protocol: Protocol, number: int, kept: Mapping[tuple[str, str], Sequence[Trial]], only: str | None = None
) -> dict[str, Any]:
    """Returns the experiment file of a further round: the kept trials of each task on the round's seeds."""
    tasks: dict[str, list[str]] = {}
    for (task, name), trials in kept.items():
        if only in (None, name):
            tasks.setdefault(task, []).extend(trial.variant for trial in trials)
    present = {variant for variants in tasks.values() for variant in variants}
    trials = [trial for variant, trial in protocol.trials_by_variant.items() if variant in present]
    part, seeds = _part(round_name(number), only), protocol.rounds[number - 1].seeds
    what = f"The best trials of every rule, round {number + 1} of tuning"
    matrix = [{"tasks": [task], "trust_regions": variants} for task, variants in tasks.items()]
    return _tuning_experiment(protocol, part, seeds, trials, what) | {"matrix": matrix}


def final_experiments(
    protocol: Protocol, best: Mapping[tuple[str, str], Trial], only: str | None = None
) -> dict[str, dict[str, Any]]:
    """Experiment files of fresh seeds by task, each rule with its best trial."""
    rules = {name: rule for name, rule in protocol.rules.items() if only in (None, name)}
    return {
        task: _experiment(
            protocol,
            _part(task, only),
            protocol.seeds,
            {name: region(rule, best[task, name]) for name, rule in rules.items()},
            f"Every rule, tuned, on fresh seeds: {task}",
            task,
        )
        for task in protocol.experiment["tasks"]
    }


def _part(part: str, only: str | None) -> str:
    return part if only is None else f"{only}-{part}"


def region(rule: Candidate, trial: Trial) -> dict[str, Any]:
    """Returns a trial as a trust region of an experiment file."""
    return {
        "rule": rule.rule,
        "settings": {**rule.settings, **trial.settings},
        "training": {"learning_rate": trial.learning_rate},
    }


def _tuning_experiment(
    protocol: Protocol, part: str, seeds: Sequence[int], trials: Sequence[Trial], what: str
) -> dict[str, Any]:
    regions = {trial.variant: region(protocol.rules[trial.name], trial) for trial in trials}
    experiment = _experiment(protocol, part, seeds, regions, what)
    return experiment | {"evaluation": experiment.get("evaluation", {}) | {"samples": 1}}


def _experiment(
    protocol: Protocol,
    part: str,
    seeds: Sequence[int],
    regions: Mapping[str, Any],
    what: str,
    task: str | None = None,
) -> dict[str, Any]:
    shared = dict(protocol.experiment)
    if task is not None:
        shared["tasks"] = {task: shared["tasks"][task]}
    return {
        "experiment": f"{protocol.name}-{part}",
        "summary": f"{what} (the {protocol.name})",
        **shared,
        **({"not_finite": protocol.not_finite} if protocol.not_finite != "stop" else {}),
        "seeds": list(seeds),
        "trust_regions": dict(regions),
    }


def rate(value: float) -> str:
    """Returns a learning rate as written in files: 3e-5, 4.13e-5."""
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
