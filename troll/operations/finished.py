"""Tables, figures, verdicts and page of an experiment's finished runs, while others are still to be made.

They are made from the files that a running workflow has completed, beside it and without its lock.
"""

from collections.abc import Sequence
from pathlib import Path

from troll.analysis.claims.ledger import write_claims
from troll.analysis.claims.packaged import DEFAULT, claim_files
from troll.analysis.claims.verdicts import judge, read_claims
from troll.analysis.data.results import Plan, read_results
from troll.analysis.data.tidy import table_files
from troll.common.errors import UserError
from troll.experiment.directories import FINISHED, released_directory
from troll.experiment.experiment import Experiment
from troll.operations.collect import collect
from troll.operations.outputs import entries_of, figures_of, reusable_runs
from troll.operations.places import places_of, run_id_of
from troll.operations.report import write_report
from troll.operations.status import is_graded, status_of
from troll.operations.targets import Targets, skipped_tasks


def write_finished(
    experiment: Experiment, results: Path, only: Sequence[str] = (), *, command: str
) -> tuple[Path, int, int]:
    """Writes tidy tables, plan, claims, tables, figures and ``page.html`` of the finished runs.

    Planned runs that are not finished stand in the tables as not run. Runs that were made with other settings
    than the experiment file has now do not count, nor do base models that are not yet graded.

    Args:
        experiment: with the seeds that are planned.
        results: the directory with the results of each experiment.
        only: at most one group of runs, whose files go to a directory of its own.
        command: the command that makes the page, for its last section.

    Returns:
        The page, the number of finished runs, and that of planned ones.

    Raises:
        UserError: several groups are named, or no run has finished.
    """
    if len(only) > 1:
        raise UserError(f"--page makes the page of one group at a time (got {', '.join(only)})")
    root, group = results / experiment.experiment, next(iter(only), None)
    planned, skipped = experiment.runs(only), skipped_tasks(experiment)
    states = status_of(experiment, results, only, compare=True)
    done = {status.name for status in states if status.state == "done"}
    runs = [run for run in planned if run.run_id in done and run.task not in skipped]
    if not runs:
        raise UserError(f"{root}: none of {len(planned)} planned runs is finished, so there is no page yet")
    kept = reusable_runs(experiment, root, skipped)
    places = {run_id_of(place): place for place in places_of(runs)}
    here = {
        name: root / place
        for name, place in places.items()
        if name not in kept and _is_graded(root, place, experiment)
    }
    targets = Targets(experiment, skipped)
    keys = {name: targets.keys[name] for name in places if name in here or name in kept}
    out = (root / "groups" / group if group else root) / FINISHED
    named = experiment.claims if experiment.claims != [DEFAULT] else []
    released = released_directory(root)
    collect(
        [*here.values()],
        out,
        Plan(**targets.plan_of(planned) | {"keys": keys}),
        root if experiment.archive else None,
        named,
        released=released if released.exists() and not experiment.repeat else None,
        allow_mixed=experiment.allow_mixed,
    )
    found, files = read_results(out), claim_files(experiment.claims)
    judged = judge(read_claims(files), found.runs, found.items)
    write_claims(judged, found.runs, [*table_files(out).values(), *files], out / "claims")
    write_report(
        out,
        [entry.name for entry in entries_of("table", experiment, runs, group)],
        [(entry.name, task or None) for entry, task, _ in figures_of(experiment, runs, group)],
        named,
        commands=[command],
    )
    return out / "page.html", len(runs), len(planned)


def _is_graded(root: Path, place: str, experiment: Experiment) -> bool:
    task = place.split("/")[2]
    return is_graded(root / place, suites=bool(experiment.tasks[task].evaluate_on))
