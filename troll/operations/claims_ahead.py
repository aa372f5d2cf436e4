"""Checks claims before any run: files with errors, claims about no run, metrics that no run will report."""

import difflib
from collections.abc import Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from troll.analysis.claims.fields import MATH_EVAL_MEAN, pass_at
from troll.analysis.claims.packaged import DEFAULT, claims_file
from troll.analysis.claims.verdicts import Claim, read_claims
from troll.analysis.data.summaries import Cell
from troll.analysis.data.tidy import BASE
from troll.analysis.metrics import METRICS
from troll.common.errors import nearest
from troll.evaluation.pass_at_k import reported_ks
from troll.experiment.experiment import Experiment
from troll.experiment.settings import TaskSettings
from troll.tasks.datasets.catalogue import DATA_SETS, MATH_EVAL

_NAMED = 8
"""How many claims a line names before it counts the rest."""


def claims_of(experiment: Experiment) -> list[Claim]:
    """Reads and checks the claims that an experiment names."""
    return read_claims([claims_file(name) for name in experiment.claims])


def without_runs(claims: Sequence[Claim], experiment: Experiment) -> list[Claim]:
    """Returns the claims without runs: no run has the method, or none has the baseline in the same setting.

    Whether a claim's other needs are met shows only after the runs: enough seeds, its metric, and for claims
    at equal KL a baseline with as small a KL.
    """
    cells = _cells(experiment)
    return [claim for claim in claims if not any(_about(claim, experiment, cells))]


def _cells(experiment: Experiment) -> dict[Cell, None]:
    """Returns the distinct cells of an experiment's runs, in order."""
    runs = experiment.runs()
    return dict.fromkeys(
        Cell(run.model, run.task, run.condition, run.estimator, run.trust_region) for run in runs
    )


def _about(claim: Claim, experiment: Experiment, cells: Collection[Cell]) -> Iterator[Cell]:
    """Yields the cells of the claim's method by which it will be judged."""
    for cell in cells:
        if claim.about(experiment.experiment, cell) and _has_baseline(claim, cell, cells):
            yield cell


def _has_baseline(claim: Claim, cell: Cell, cells: Collection[Cell]) -> bool:
    if not isinstance(claim.baseline, str) or claim.baseline == BASE:
        return True
    if not claim.at_equal_kl:
        return cell.with_trust_region(claim.baseline) in cells
    if fnmatchcase(cell.trust_region, claim.baseline):  # baselines are not compared with one another
        return False
    here = [other for other in cells if other.with_trust_region("") == cell.with_trust_region("")]
    return any(fnmatchcase(other.trust_region, claim.baseline) for other in here)


def claims_in_words(claims: Sequence[Claim], experiment: Experiment) -> str:
    """Says which claims this experiment can judge, and what is probably wrong with the user's own claims.

    Claims without runs are named if they are the user's own, as they may be mistakes, and only counted if
    they come with the package.
    """
    missing = {claim.id for claim in without_runs(claims, experiment)}
    present = [claim.id for claim in claims if claim.id not in missing]
    line = f"claims about this experiment: {_some(present) or 'none'}"
    if missing:
        missing_own = [name for name in _own(experiment) if name in missing]
        line += f"; without runs here: {len(missing)}" + (
            f", of your own: {_some(missing_own)}" if missing_own else ""
        )
    return "\n".join([line, *_doubts(claims, experiment)])


def _some(ids: Sequence[str]) -> str:
    more = len(ids) - _NAMED
    return ", ".join(ids[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _own(experiment: Experiment) -> dict[str, str]:
    """Maps the ids of the user's own claims to their files."""
    files = [name for name in experiment.claims if name != DEFAULT and Path(name).exists()]
    return {claim.id: name for name in files for claim in read_claims([Path(name)])}


def _doubts(claims: Sequence[Claim], experiment: Experiment) -> Iterator[str]:
    """Yields, a line each, what keeps the user's own claims from a verdict in this experiment.

    None of it is an error, because a claim may be about other experiments too.
    """
    files = _own(experiment)
    cells = _cells(experiment)
    for claim in claims:
        if claim.id in files:
            tasks = dict.fromkeys(cell.task for cell in _about(claim, experiment, cells))
            doubts = _not_measured(claim, experiment, tasks) if tasks else _alike(claim, experiment)
            yield from (f"{files[claim.id]}: claim {claim.id}: {doubt}" for doubt in doubts)


def _alike(claim: Claim, experiment: Experiment) -> Iterator[str]:
    """Yields the claim's methods that the experiment lacks while it has one with a similar name."""
    name = experiment.experiment
    if not any(fnmatchcase(name, pattern) for pattern in claim.where.experiment):
        return
    for field, method in (("trust_region", claim.trust_region), ("baseline", claim.baseline)):
        if not isinstance(method, str) or method in (BASE, *experiment.trust_regions):
            continue
        hint = "" if any(sign in method for sign in "*?[") else nearest(method, experiment.trust_regions)
        if hint:
            yield f"{field}: no trust region of {name} is called {method!r}{hint}"


def _not_measured(claim: Claim, experiment: Experiment, tasks: Iterable[str]) -> Iterator[str]:
    """Yields why no run will report the claim's metric.

    Some names cannot be checked in advance, as rules and graders add metrics of their own.
    """
    source, _, name = claim.metric.partition("/")
    if source == "mean" and name not in METRICS:
        for close in difflib.get_close_matches(name, METRICS, n=1, cutoff=0.8):
            yield f"metric: {name!r} is not a logged metric; did you mean 'mean/{close}'?"
    data, k = pass_at(claim.metric) or (None, 0)
    samples = experiment.evaluation.samples
    if data == "" and k > samples:
        yield (
            f"metric: {claim.metric} needs {k} samples per problem, but evaluation.samples is {samples}; "
            "raise it or choose a smaller k"
        )
    if data in DATA_SETS or claim.metric == MATH_EVAL_MEAN:
        measured = dict.fromkeys(name for task in tasks for name in _of_data_sets(experiment.tasks[task]))
        if claim.metric not in measured:
            available = ", ".join(measured) or "nothing"
            yield f"metric: runs here do not report {claim.metric}; evaluate_on gives {available}"


def _of_data_sets(task: TaskSettings) -> Iterator[str]:
    """Yields the pass@k metrics that a task's runs will report for the data sets in ``evaluate_on``."""
    for name, suite in task.evaluate_on.items():
        yield from (f"{name}/pass@{k}" for k in reported_ks(suite.samples))
    if set(MATH_EVAL) <= set(task.evaluate_on):
        yield MATH_EVAL_MEAN
