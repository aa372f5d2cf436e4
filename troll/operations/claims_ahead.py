"""What is known of claims before any run: broken files, claims without runs, numbers that no run has."""

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
"""Claims that a line names; the others are counted."""


def claims_of(experiment: Experiment) -> list[Claim]:
    """The claims that an experiment names, read and checked."""
    return read_claims([claims_file(name) for name in experiment.claims])


def without_runs(claims: Sequence[Claim], experiment: Experiment) -> list[Claim]:
    """The claims that no run is about: there is none of the method, or none of the baseline beside it.

    Only the runs can tell what else a claim needs: enough seeds, its metric, a baseline that stays as near.
    """
    cells = _cells(experiment)
    return [claim for claim in claims if not any(_about(claim, experiment, cells))]


def _cells(experiment: Experiment) -> dict[Cell, None]:
    """Those of all runs, in their order; large experiments are looked through often."""
    runs = experiment.runs()
    return dict.fromkeys(
        Cell(run.model, run.task, run.condition, run.estimator, run.trust_region) for run in runs
    )


def _about(claim: Claim, experiment: Experiment, cells: Collection[Cell]) -> Iterator[Cell]:
    """The cells of the method that a claim will be judged by."""
    for cell in cells:
        of_method = fnmatchcase(cell.trust_region, claim.trust_region)
        if of_method and claim.where.holds(experiment.experiment, cell) and _has_baseline(claim, cell, cells):
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
    """For people: which claims this experiment can judge, and what is probably wrong with the user's own.

    The package's claims without runs are only counted. The user's own are named: they may be a mistake.
    """
    lacking = {claim.id for claim in without_runs(claims, experiment)}
    having = [claim.id for claim in claims if claim.id not in lacking]
    line = f"claims about this experiment: {_some(having) or 'none'}"
    if lacking:
        lacking_own = [name for name in _own(experiment) if name in lacking]
        line += f"; without runs here: {len(lacking)}" + (
            f", of your own: {_some(lacking_own)}" if lacking_own else ""
        )
    return "\n".join([line, *_doubts(claims, experiment)])


def _some(ids: Sequence[str]) -> str:
    more = len(ids) - _NAMED
    return ", ".join(ids[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _own(experiment: Experiment) -> dict[str, str]:
    """The user's own claims: the file that each stands in, by id."""
    files = [name for name in experiment.claims if name != DEFAULT and Path(name).exists()]
    return {claim.id: name for name in files for claim in read_claims([Path(name)])}


def _doubts(claims: Sequence[Claim], experiment: Experiment) -> Iterator[str]:
    """What keeps the user's own claims from a verdict here.

    These are no errors: a claim may be about other experiments too, and the package's claims mostly are.
    """
    own_metrics = _own(experiment)
    cells = _cells(experiment)
    for claim in claims:
        if claim.id in own_metrics:
            tasks = dict.fromkeys(cell.task for cell in _about(claim, experiment, cells))
            doubts = _not_measured(claim, experiment, tasks) if tasks else _alike(claim, experiment)
            yield from (f"{own_metrics[claim.id]}: claim {claim.id}: {doubt}" for doubt in doubts)


def _alike(claim: Claim, experiment: Experiment) -> Iterator[str]:
    """Methods that the experiment lacks, although it has one of a similar name."""
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
    """Why no run will have the claim's metric, as far as that is known: rules and graders add their own."""
    source, _, name = claim.metric.partition("/")
    if source == "mean" and name not in METRICS:
        for close in difflib.get_close_matches(name, METRICS, n=1, cutoff=0.8):
            yield f"metric: {name!r} is not a logged metric; did you mean 'mean/{close}'?"
    data, k = pass_at(claim.metric) or (None, 0)
    samples = experiment.evaluation.samples
    if data == "" and k > samples:
        yield (
            f"metric: {claim.metric} takes {k} samples of a problem, and evaluation.samples is {samples}; "
            "raise that, or take a smaller k"
        )
    if data in DATA_SETS or claim.metric == MATH_EVAL_MEAN:
        measured = dict.fromkeys(name for task in tasks for name in _of_data_sets(experiment.tasks[task]))
        if claim.metric not in measured:
            available = ", ".join(measured) or "nothing"
            yield f"metric: runs here are not evaluated for {claim.metric}; evaluate_on gives {available}"


def _of_data_sets(task: TaskSettings) -> Iterator[str]:
    """The pass@k that runs of a task will have on further data sets."""
    for name, suite in task.evaluate_on.items():
        yield from (f"{name}/pass@{k}" for k in reported_ks(suite.samples))
    if set(MATH_EVAL) <= set(task.evaluate_on):
        yield MATH_EVAL_MEAN
