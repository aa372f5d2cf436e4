"""Says which runs of a rehearsal failed, and what they have in common."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from troll.experiment.experiment import Experiment, Run
from troll.operations.rehearsal.report import Check, failures_or_ok
from troll.operations.rehearsal.shrink import PROCESSES
from troll.operations.status import status_of

# The coordinates that failing runs may have in common, likeliest cause first.
_COORDINATES = ("trust_region", "estimator", "condition", "model", "task")


def common_causes(bad: Iterable[Run], runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Groups failed runs by the configuration key that all of them, and no other run, have in common.

    The key is ``training`` if all runs failed, and the run's name for a run without such a key.
    """
    left = list(bad)
    if len(runs) > 1 and set(left) == set(runs):
        return {"training": list(runs)}
    runs_by_key: dict[str, list[Run]] = {}
    for coordinate in _COORDINATES:
        for name in dict.fromkeys(getattr(run, coordinate) for run in left):
            members = [run for run in runs if getattr(run, coordinate) == name]
            if len(members) < len(runs) and set(members) <= set(left):
                runs_by_key[f"{coordinate}s.{name}"] = members
                left = [run for run in left if run not in members]
    return runs_by_key | {f"run {run.run_id}": [run] for run in left}


def check_runs(experiment: Experiment, root: Path) -> list[Check]:
    """Checks that all runs and base models are done; a failure is the last line of the run's log."""
    runs = experiment.runs()
    reasons = {
        status.name: status.reason or f"is {status.state}"
        for status in status_of(experiment, root.parent)
        if status.state != "done"
    }
    bad = {run: reasons.pop(run.run_id) for run in runs if run.run_id in reasons}
    failures = [Check("runs", "failed", reason, name) for name, reason in reasons.items()]
    for key, members in common_causes(bad, runs).items():
        count = f"{len(members)} run{'s' if len(members) > 1 else ''}"
        failures.append(Check("runs", "failed", f"{bad[members[0]]} ({count})", key))
    several = [run for run in runs if run.condition.endswith(PROCESSES)]
    words = f", one of them with {several[0].condition.split('-')[-2]} processes" if several else ""
    return failures_or_ok("runs", failures, f"{len(runs)} trained, sampled and graded{words}")
