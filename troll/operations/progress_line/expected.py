"""What jobs took before on this machine, from finished experiments under ``results/``."""

import json
from pathlib import Path
from statistics import mean, median

from troll.experiment.experiment import Experiment
from troll.experiment.looks import with_further_seeds
from troll.operations.outputs import made
from troll.operations.plan import earlier_runs, estimate

_MEASURED = ("base_model", "sample", "grade")
_MOST_FILES = 50


def expected_seconds(experiment: Experiment, root: Path) -> dict[str, float]:
    """Seconds of a job, by rule; rules of which nothing is known are left out.

    Training is estimated as `troll check` does, for the runs that are missing; the other rules take what
    they took, by Snakemake's benchmarks, in this experiment or else in any.
    """
    measured = {rule: seconds for rule in _MEASURED if (seconds := _measured(root, rule)) is not None}
    experiment = with_further_seeds(experiment, root)
    held = made(experiment, root)
    missing = [
        run
        for run in experiment.runs()
        if run.run_id not in held and not (root / "runs" / run.run_id / "manifest.json").exists()
    ]
    seen = list(earlier_runs(root.parent)) if missing else []
    times = [estimate(experiment, run, experiment.training_of(run), seen) for run in missing]
    estimated = [seconds for seconds in times if seconds is not None]
    if estimated and len(estimated) == len(missing):
        # An estimate is of all jobs of a run.
        others = measured.get("sample", 0.0) + measured.get("grade", 0.0)
        measured["train"] = max(mean(estimated) - others, 1.0)
    return measured


def _measured(root: Path, rule: str) -> float | None:
    for place in (root, *sorted(root.parent.glob("*"))):
        times = []
        for path in sorted((place / "benchmarks" / rule).rglob("*.jsonl"))[:_MOST_FILES]:
            try:
                times.append(float(json.loads(path.read_text().splitlines()[-1])["s"]))
            except (OSError, IndexError, KeyError, TypeError, ValueError):
                continue  # half written, or of another version
        if times:
            return median(times)
    return None
