"""What is known of claims before any run: which files are broken, and which claims no run is about."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from troll.analysis.claims.packaged import claims_file
from troll.analysis.claims.verdicts import Claim, read_claims
from troll.analysis.data.summaries import Cell
from troll.analysis.data.tidy import BASE
from troll.experiment.experiment import Experiment


def claims_of(experiment: Experiment) -> list[Claim]:
    """The claims that an experiment names, read and checked.

    Raises:
        UserError: a file is missing or broken, or a field is wrong.
    """
    return read_claims([claims_file(name) for name in experiment.claims])


def without_runs(claims: Sequence[Claim], experiment: Experiment) -> list[Claim]:
    """The claims that no run is about: there is none of the method, or none of the baseline beside it.

    Only the runs can tell what else a claim needs: enough seeds, its metric, a baseline that stays as near.

    Args:
        claims: of the experiment.
        experiment: checked.
    """
    cells = list(
        dict.fromkeys(
            Cell(run.model, run.task, run.condition, run.estimator, run.trust_region)
            for run in experiment.runs()
        )
    )

    def judged(claim: Claim) -> bool:
        return any(
            fnmatchcase(cell.trust_region, claim.method)
            and claim.where.holds(experiment.experiment, cell)
            and _has_baseline(claim, cell, cells)
            for cell in cells
        )

    return [claim for claim in claims if not judged(claim)]


def _has_baseline(claim: Claim, cell: Cell, cells: Sequence[Cell]) -> bool:
    if not isinstance(claim.baseline, str) or claim.baseline == BASE:
        return True
    if not claim.at_equal_kl:
        return cell.method(claim.baseline) in cells
    if fnmatchcase(cell.trust_region, claim.baseline):  # baselines are not compared with one another
        return False
    here = [other for other in cells if other.method("") == cell.method("")]
    return any(fnmatchcase(other.trust_region, claim.baseline) for other in here)


def claims_in_words(claims: Sequence[Claim], experiment: Experiment) -> str:
    """A line for people: how many claims have runs. It names these or the others: the fewer."""
    lacking = [claim.id for claim in without_runs(claims, experiment)]
    having = [claim.id for claim in claims if claim.id not in lacking]
    line = f"{len(having)} of {len(claims)} claims {'has' if len(having) == 1 else 'have'} runs here"
    if lacking and having and len(having) < len(lacking):
        return f"{line}: {', '.join(having)}"
    return f"{line}; not {', '.join(lacking)}" if lacking else line
