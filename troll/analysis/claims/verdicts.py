"""Claims and their verdicts from the available runs.

A claim compares a method with a baseline in one metric. Each setting (model, task, condition, estimator) in
which both have runs gives a paired difference for every seed, from which `decide` in `decision.py` derives
a verdict. A setting that appears in several experiments with the same configuration, data and baseline counts
once, with the seeds of all of them; so does one of which they differ in batch size or machine alone.
"""

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pandas as pd
from pydantic import Field, model_validator

from troll.algorithms.ranges import NotNegative
from troll.analysis.claims.across import Across, across_differences, seed_values
from troll.analysis.claims.decision import Decision, Direction, PairedDifferences, Side, decide
from troll.analysis.claims.fields import WALL_CLOCK, Baseline, Metric, own_k
from troll.analysis.data.axes import by_condition
from troll.analysis.data.divergence import equally_near, late_divergences, nearest
from troll.analysis.data.settings import earliest_experiment, first_experiments, same_but_for_batches
from troll.analysis.data.summaries import Cell, cells, difference, paired_scores, per_run, values_by_seed
from troll.analysis.data.tidy import BASE
from troll.common.errors import UserError
from troll.common.explain import validated
from troll.common.files import read_yaml
from troll.common.settings import StrictModel

_Line = tuple[Cell, ...]


class Where(StrictModel):
    """Where a claim applies: shell patterns for each coordinate, by default everywhere."""

    experiment: list[str] = Field(default=["*"], description="patterns of experiment names")
    model: list[str] = Field(default=["*"], description="patterns of model names")
    task: list[str] = Field(default=["*"], description="patterns of task names")
    condition: list[str] = Field(default=["*"], description="patterns of condition names")
    estimator: list[str] = Field(default=["*"], description="patterns of estimator names")

    def holds(self, experiment: str, cell: Cell) -> bool:
        """Returns whether the claim applies to a setting."""
        names = cell.coordinates | {"experiment": experiment}
        return all(any(fnmatchcase(names[key], pattern) for pattern in patterns) for key, patterns in self)


class Claim(StrictModel):
    """One entry of a claims file."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$", description="short and unique")
    sentence: str = Field(min_length=1, description="the claim in our own words")
    source: str = Field(min_length=1, description="where it is made")
    trust_region: str = Field(description="trust region that the claim is about, or a pattern of names")
    baseline: Baseline = Field(
        description="trust region that it is compared with (base is the base model), or a number; "
        "with at_equal_kl a pattern of names"
    )
    metric: Metric = Field(
        description="pass@k, or another summary of a run: late_kl, entropy, hours, mean/<logged metric>"
    )
    direction: Direction
    margin: NotNegative = Field(
        default=0.0, description="how much higher or lower; for equivalent, how close"
    )
    relative: bool = Field(default=False, description="compare (trust_region - baseline) / baseline")
    across: Across | None = Field(
        default=None, description="compare a statistic over conditions that differ in one setting instead"
    )
    at_equal_kl: bool = Field(
        default=False,
        description="compare with that baseline whose late KL to the old policy is nearest (means "
        "over seeds), and only where the larger of the two is at most 1.2 times the smaller",
    )
    least_seeds: int = Field(default=3, ge=2, description="below this many paired seeds: inconclusive")
    where: Where = Where()
    note: str = ""
    retired: str = Field(
        default="",
        description="when and why the claim was given up; it stays listed, and no count includes it",
    )
    aliases: list[str] = Field(default=[], description="ids that the claim had before")
    history: list[str] = Field(
        default=[], description="when it was asked, and what changed after results had been seen"
    )

    @property
    def compares_two_rules(self) -> bool:
        """Whether the claim compares two trust regions."""
        return isinstance(self.baseline, str) and self.baseline != BASE

    def about(self, experiment: str, cell: Cell) -> bool:
        """Whether a cell is one of the claim's method; the baseline and base models match patterns, too."""
        return (
            cell.trust_region not in (self.baseline, BASE)
            and fnmatchcase(cell.trust_region, self.trust_region)
            and self.where.holds(experiment, cell)
        )

    @model_validator(mode="after")
    def _two_methods(self) -> "Claim":
        if self.relative and not isinstance(self.baseline, str) and self.baseline <= 0:
            raise ValueError(f"baseline {self.baseline:g}: a difference relative to it needs one above 0")
        for name, used in (("at_equal_kl", self.at_equal_kl), ("across", self.across is not None)):
            if used and not self.compares_two_rules:
                raise ValueError(
                    f"baseline {self.baseline}: {name} compares two trust regions; name one, not "
                    f"{'the base model' if self.baseline == BASE else 'a number'}"
                )
        if self.at_equal_kl and self.across is not None:
            raise ValueError("at_equal_kl and across exclude each other; leave one of them out")
        if self.across is not None:
            if self.relative:
                raise ValueError("relative: across has no relative differences; leave one of them out")
            if self.across.statistic == "usable" and not self.metric.startswith("pass@"):
                raise ValueError(f"metric {self.metric}: the statistic usable is for pass@k only; use slope")
            if self.across.statistic == "usable" and not self.across.doubling:
                raise ValueError(
                    f"across {self.across.setting}: may be 0, so the statistic usable is undefined; use slope"
                )
        return self


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim with its verdict and the evidence."""

    claim: Claim
    decision: Decision
    no_data_reason: str = ""  # why no setting counts although the method has runs; otherwise empty
    # by setting, whether the method ends below its base model; only for claims about pass@1 of two trust
    # regions
    below_base: tuple[bool, ...] = ()
    baseline_below_base: tuple[bool, ...] = ()  # the same for the baseline, at all conditions of the setting

    @property
    def verdict(self) -> str:
        """One of ``decision.VERDICTS``."""
        return self.decision.verdict


def read_claims(paths: Sequence[Path]) -> list[Claim]:
    """Reads claims files, which are YAML lists of claims with distinct ids and aliases."""
    claims: dict[str, Claim] = {}
    for path in paths:
        entries = read_yaml(path)
        if not isinstance(entries, list):
            raise UserError(f"{path}: expected a list of claims, found {type(entries).__name__}")
        for index, entry in enumerate(entries):
            if not isinstance(entry, dict):
                raise UserError(f"{path}: claim {index}: expected a mapping, found {entry!r}")
            claim = validated(Claim, entry, f"{path}: claim {entry.get('id', index)}")
            for name in (claim.id, *claim.aliases):
                if name in claims:
                    raise UserError(f"{path}: claim {name} comes twice; give it another id")
                claims[name] = claim
    return list({claim.id: claim for claim in claims.values()}.values())


def judge(claims: Sequence[Claim], runs: pd.DataFrame, items: pd.DataFrame) -> list[ClaimVerdict]:
    """Judges claims from the tables of experiments."""
    experiments = list(dict.fromkeys(map(str, runs["experiment"]))) if len(runs) else []
    # A single experiment's table is not copied, so that cached summaries are reused.
    tables = {
        name: runs if len(experiments) == 1 else runs[runs["experiment"] == name] for name in experiments
    }
    evidence = {
        name: (table, per_run(table), items[items["experiment"] == name]) for name, table in tables.items()
    }
    first = first_experiments(runs) if experiments else {}
    return [_judge(claim, evidence, first) for claim in claims]


def _judge(
    claim: Claim,
    evidence: Mapping[str, tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]],
    first: Mapping[tuple[str, str], str],
) -> ClaimVerdict:
    """``evidence`` by experiment: the table of runs, its `per_run` and the table of items."""
    measured: dict[tuple[str, ...], _Measured] = {}
    reasons: list[str] = []
    for experiment, (runs, summary, items) in evidence.items():
        for line, baselines, differences in _compared(claim, experiment, runs, summary, items):
            if not differences:
                reasons.append(_no_data_reason(claim, summary, items, line, baselines))
                continue
            if claim.metric in WALL_CLOCK and not _have_gpus(runs, (*line, *baselines)):
                reasons.append("runs share processors, so that their wall-clock times are not compared")
                continue
            origins = {
                cell: earliest_experiment(experiment, cell.rows(summary)["run_id"], first)
                for cell in (*line, *baselines)
            }
            key = (*map(str, origins), *origins.values())
            # A base model has one set of samples, from which no covariance of differences can be estimated.
            trained = [(cell, origins[cell]) for cell in baselines if cell.trust_region != BASE]
            shared = tuple(trained) or None
            setting = measured.setdefault(key, _Measured([experiment], line, baselines, {}, shared))
            setting.differences = differences | setting.differences
    counted = _with_other_batches(measured.values(), {name: runs for name, (runs, *_) in evidence.items()})
    settings = [_setting(claim, measurement) for measurement in counted]
    why = next(filter(None, reasons), "") if not settings else ""
    decision = decide(Side(claim.direction, claim.margin), settings, claim.least_seeds)
    if claim.metric != "pass@1" or not claim.compares_two_rules:
        return ClaimVerdict(claim, decision, why)
    tables = {name: items for name, (*_, items) in evidence.items()}

    def below_base(setting: _Measured, line: _Line) -> bool:
        return all(_ends_below_base(tables[name], line) for name in setting.experiments)

    below = tuple(below_base(setting, setting.line) for setting in counted)
    return ClaimVerdict(
        claim, decision, why, below, tuple(below_base(setting, setting.baselines) for setting in counted)
    )


@dataclass
class _Measured:
    """The paired differences of one setting, from the experiments that have it."""

    experiments: list[str]
    line: _Line
    baselines: _Line
    differences: dict[float, float]  # by seed
    shared: Hashable  # identifies the baseline's runs


_OF_ANOTHER_BATCH = 10.0**6
"""Added to the seeds of a further experiment: the same seed with another batch size is another run."""


def _with_other_batches(measured: Iterable[_Measured], runs: Mapping[str, pd.DataFrame]) -> list[_Measured]:
    """Joins what differs in batch size or machine alone, so that a task is not counted once for each."""
    joined: list[_Measured] = []
    for setting in measured:
        for other in joined:
            if (setting.line, setting.baselines) == (other.line, other.baselines) and all(
                same_but_for_batches(
                    cell.rows(runs[setting.experiments[0]]), cell.rows(runs[other.experiments[0]])
                )
                for cell in (*setting.line, *setting.baselines)
                if cell.trust_region != BASE
            ):
                shift = _OF_ANOTHER_BATCH * len(other.experiments)
                other.differences |= {shift + seed: value for seed, value in setting.differences.items()}
                other.experiments += setting.experiments
                other.shared = None if other.shared is None else (other.shared, setting.shared)
                break
        else:
            joined.append(setting)
    return joined


def _ends_below_base(items: pd.DataFrame, line: Sequence[Cell]) -> bool:
    """Returns whether all of these cells end below their base models on average over seeds."""
    differences = [difference(items, cell, cell.base_model()) for cell in line]
    return bool(differences) and all(change is not None and change.estimate < 0 for change in differences)


def _have_gpus(runs: pd.DataFrame, compared: Sequence[Cell]) -> bool:
    """Returns whether every run of these cells had GPUs; runs on processors share them."""
    gpus = runs[(runs["source"] == "manifest") & (runs["metric"] == "gpus")]
    alone = set(gpus.loc[gpus["value"] > 0, "run_id"])
    return all(alone.issuperset(cell.rows(runs)["run_id"]) for cell in compared)


def _no_data_reason(
    claim: Claim, summary: pd.DataFrame, items: pd.DataFrame, line: _Line, baselines: _Line
) -> str:
    """Returns why a setting with runs of both gives no difference; empty if the baseline has none."""
    present = set(cells(summary))
    if not present.issuperset(baselines):
        return ""
    values = [seed_values(claim.metric, summary, items, cell) for cell in (*line, *baselines)]
    if all(series.dropna().empty for series in values):
        return f"no run of {claim.trust_region} has the metric {claim.metric!r}"
    if claim.across is not None:
        return f"no seed has runs at every point of {claim.across.setting}, or nothing was learned"
    return f"no seed of {claim.trust_region} is one of its baseline, or {claim.metric!r} is undefined"


def _compared(
    claim: Claim, experiment: str, runs: pd.DataFrame, summary: pd.DataFrame, items: pd.DataFrame
) -> Iterator[tuple[_Line, _Line, dict[float, float]]]:
    """For each setting the method's cells (one, or a line of conditions), the baseline's, and differences."""
    if claim.across is None:
        methods = [cell for cell in cells(summary) if claim.about(experiment, cell)]
        for cell, baseline in _pairs(claim, methods, summary):
            differences = _differences(claim, summary, items, cell, baseline)
            yield (cell,), () if baseline is None else (baseline,), differences
        return
    against = str(claim.baseline)
    lines = by_condition(runs, claim.across.axis)
    for points in lines:
        line = {value: cell for value, cell in points.items() if claim.about(experiment, cell)}
        if len(line) > 1:
            baselines = tuple(cell.with_trust_region(against) for cell in line.values())
            # If a longer line contains the baseline's cells, the method lacks runs at its further points.
            longer = any(
                {*baselines} < {cell for cell in other.values() if claim.where.holds(experiment, cell)}
                for other in lines
            )
            differences = across_differences(claim.across, claim.metric, line, against, summary, items)
            yield tuple(line.values()), baselines, {} if longer else differences


def _pairs(
    claim: Claim, methods: Sequence[Cell], summary: pd.DataFrame
) -> Iterator[tuple[Cell, Cell | None]]:
    """Yields every cell of the method with the baseline's cell; None if the baseline is a number."""
    if not claim.at_equal_kl:
        for cell in methods:
            if not isinstance(claim.baseline, str):
                yield cell, None
            elif claim.baseline == BASE:
                yield cell, cell.base_model()
            else:
                yield cell, cell.with_trust_region(claim.baseline)
        return
    late = late_divergences(summary)
    baselines = [cell for cell in late if fnmatchcase(cell.trust_region, str(claim.baseline))]
    for cell in methods:
        other = None if cell in baselines else nearest(cell, baselines, late)
        if other is not None and equally_near(late[cell], late[other]):
            yield cell, other


def _setting(claim: Claim, measured: _Measured) -> PairedDifferences:
    cell, conditions = measured.line[0], tuple(member.condition for member in measured.line)
    condition = " to ".join(dict.fromkeys((conditions[0], conditions[-1])))
    names = [" and ".join(measured.experiments), cell.model, cell.task, condition, cell.estimator]
    names += [cell.trust_region] if cell.trust_region != claim.trust_region else []
    if claim.at_equal_kl:
        names[-1] += f" against {measured.baselines[0].trust_region}"
    coordinates = {"model": cell.model, "task": cell.task, "condition": condition}
    coordinates |= {"estimator": cell.estimator, "method": cell.trust_region}
    seeds = tuple(sorted(measured.differences))
    values = np.asarray([measured.differences[seed] for seed in seeds])
    return PairedDifferences(
        " / ".join(names), coordinates, values, seed_numbers=seeds, baseline=measured.shared
    )


def _differences(
    claim: Claim, summary: pd.DataFrame, items: pd.DataFrame, cell: Cell, baseline: Cell | None
) -> dict[float, float]:
    """Returns the paired differences of common seeds."""
    k = own_k(claim.metric)
    if baseline is not None and k is not None and not claim.relative:
        pair = paired_scores(items, cell, baseline, k)
        return {} if pair is None else _by_seed((pair[0] - pair[1]).mean(axis=1))
    values = _values(claim.metric, summary, items, cell)
    before: pd.Series | float = float(claim.baseline) if baseline is None else math.nan
    if baseline is not None:
        other = _values(claim.metric, summary, items, baseline)
        if baseline.trust_region == BASE:  # one set of samples for all seeds
            before = float(other.iloc[0]) if len(other) else math.nan
        else:
            before = other.reindex(values.index)
    change = values - before
    if claim.relative:  # undefined unless the baseline is positive: a negative one would turn the sides round
        change = change / pd.Series(before, index=values.index).where(lambda value: value > 0)
    return _by_seed(change.dropna())


def _values(metric: str, summary: pd.DataFrame, items: pd.DataFrame, cell: Cell) -> pd.Series:
    """Returns a metric by seed; pass@k that the summary lacks is computed from the test problems."""
    if metric in summary:
        return values_by_seed(summary, cell, metric)
    return seed_values(metric, summary, items, cell)


def _by_seed(values: pd.Series) -> dict[float, float]:
    seeds = values.index.to_numpy(dtype=float).tolist()
    return dict(zip(seeds, values.to_numpy(dtype=float).tolist(), strict=True))
