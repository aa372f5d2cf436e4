"""An experiment's runs, their files and everything made from them, as the workflow's rules need them.

The rules contain only inputs, outputs and a command each; their computed parts are here. Methods that take
``wildcards`` are passed to Snakemake as input functions.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from troll.analysis.claims.packaged import DEFAULT, claims_file
from troll.common.digests import sha256_of_file
from troll.experiment.budget import billions_of
from troll.experiment.directories import RESULTS, released_directory
from troll.experiment.experiment import Experiment, Run
from troll.experiment.keys import largest_values, planned_keys, suites_of
from troll.experiment.settings import Size, Suite
from troll.operations.outputs import reusable_runs, rule_of
from troll.operations.places import Wildcards, place_of_base, place_of_run, places_of, run_id_of, task_of

if TYPE_CHECKING:
    from troll.analysis.data.archive import ArchivedRun

_NEEDS_A_GPU = 0.05
"""Size, in 10^9 parameters, from which a hub model is expected to train on GPUs."""


def skipped_tasks(experiment: Experiment) -> dict[str, str]:
    """Returns the tasks and data sets that this machine cannot grade, with the reason."""
    from troll.tasks.registry import get_task
    from troll.tasks.sandbox.pool import sandbox_available

    suites = [name for task in experiment.tasks.values() for name in (*task.evaluate_on, *task.validate_on)]
    names = dict.fromkeys([*experiment.tasks, *suites])
    code = [task for task in names if get_task(task).kind == "code"]
    available, reason = sandbox_available() if code else (True, "")
    return {} if available else dict.fromkeys(code, reason)


@dataclass(frozen=True, eq=False)
class Targets:
    """The files of an experiment, and which of them are made on this machine."""

    experiment: Experiment
    # tasks that this machine cannot run, with the reason
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def root(self) -> str:
        """``results/<experiment>``."""
        return f"{RESULTS}/{self.experiment.experiment}"

    @property
    def released(self) -> Path:
        """``results/released/<experiment>``, which need not exist."""
        return released_directory(Path(self.root))

    @cached_property
    def runs(self) -> list[Run]:
        """Runs that this machine can make."""
        return self._possible(self.experiment.runs())

    @cached_property
    def bases(self) -> list[tuple[str, str]]:
        """(model, task) of the base models that this machine can make."""
        return [(model, task) for model, task in self.experiment.bases() if task not in self.skipped]

    @cached_property
    def groups(self) -> dict[str, list[Run]]:
        """Runs of each named group that this machine can make."""
        return {group: self._possible(runs) for group, runs in self.experiment.groups().items()}

    @property
    def tasks(self) -> list[str]:
        """Tasks of the runs."""
        return list(dict.fromkeys(run.task for run in self.runs))

    @property
    def suites(self) -> dict[str, Size]:
        """Number of problems of the data sets in the ``evaluate_on`` or ``validate_on`` of any task."""
        tasks = self.experiment.tasks.values()
        evaluated = {name: suite.test for task in tasks for name, suite in task.evaluate_on.items()}
        return evaluated | {name: size for task in tasks for name, size in task.validate_on.items()}

    @property
    def pretrained(self) -> list[str]:
        """Names of pretrained models."""
        return [name for name, model in self.experiment.models.items() if model.pretrained]

    @property
    def scratch(self) -> list[str]:
        """Names of from-scratch models."""
        return [name for name in self.experiment.models if name not in self.pretrained]

    def _possible(self, runs: Iterable[Run]) -> list[Run]:
        return [run for run in runs if run.task not in self.skipped]

    # Derived from training settings.

    @cached_property
    def max_tokens_by_place(self) -> dict[str, int]:
        """Longest response, in tokens, that a place's model is trained for."""
        return largest_values(self.experiment, self.runs, "max_response_tokens")

    @cached_property
    def gpus_by_place(self) -> dict[str, int]:
        """GPUs of a run; for a base model, the most that one of its runs uses."""
        return largest_values(self.experiment, self.runs, "gpus")

    @cached_property
    def most_gpus(self) -> int:
        """GPUs of the largest job; 0 if no job uses a GPU."""
        training = max(self.gpus_by_place.values(), default=0)
        return max(training, self.experiment.evaluation.gpus) if training else 0

    @cached_property
    def trains_with_vllm(self) -> bool:
        """Whether any run samples its rollouts with vLLM."""
        return any(self.experiment.training_of(run).vllm for run in self.runs)

    @property
    def samples_with_vllm(self) -> bool:
        """Whether trained and base models are sampled with vLLM."""
        return self.experiment.evaluation.engine == "vllm"

    @property
    def budgeted(self) -> bool:
        """Whether the experiment has a GPU budget, that is, is too large for CPUs or requests GPUs."""
        sizes = (billions_of(model.hub) for model in self.experiment.models.values() if model.hub)
        large = any(size is None or size >= _NEEDS_A_GPU for size in sizes)
        return bool(self.pretrained) and (large or any(self.gpus_by_place.values()))

    # Which results are made here, and which are already in the tables.

    @cached_property
    def keys(self) -> dict[str, str]:
        """Keys that tell whether a row of the tables is the planned run or base model, by its name there."""
        return planned_keys(self.experiment, self.runs, self.skipped)

    @cached_property
    def marked(self) -> set[str]:
        """Places whose results here have been appended to the tables."""
        archive = self.experiment.archive
        return {place for place in places_of(self.runs) if archive and Path(self.mark_of(place)).exists()}

    @cached_property
    def archived_runs(self) -> "dict[str, ArchivedRun]":
        """Runs and base models that are in the released tables as planned."""
        _ = self.marked  # read the marks first: a concurrent process writes the row before the mark
        return reusable_runs(self.experiment, Path(self.root), self.skipped)

    @cached_property
    def taken(self) -> list[str]:
        """Ids of the runs that are taken from the released tables."""
        if not self.archived_runs or self.experiment.repeat:
            return []
        from troll.analysis.data.archive import archived_runs

        here = archived_runs(Path(self.root))
        found = {run.run_id: self.archived_runs.get(run.run_id) for run in self.runs}
        return [name for name, row in found.items() if row is not None and here.get(name) != row]

    @cached_property
    def finished(self) -> list[str]:
        """Ids of the runs that have ended here, also by an earlier version in the same checkout."""
        return [
            run.run_id for run in self.runs if Path(self.root, place_of_run(run), "manifest.json").exists()
        ]

    @cached_property
    def missing_places(self) -> list[str]:
        """Places that are not in the tables."""
        return [place for place in places_of(self.runs) if run_id_of(place) not in self.archived_runs]

    @property
    def collected(self) -> str:
        """Mark file written once runs were collected; tables are made again if it is missing."""
        return f"{self.root}/runs/collected"

    def mark_of(self, place: str) -> str:
        """Returns the mark file which says that a place was appended to the tables."""
        return f"{self.root}/{place}/appended"

    @property
    def stale_marks(self) -> list[Path]:
        """Marks of places that are not, or no longer, in the tables, for example after a file was removed."""
        if not self.experiment.archive:
            return []
        removed = bool(self.taken) and not self._has_copies
        marks = [Path(self.mark_of(place)) for place in self.missing_places]
        return [Path(self.collected), *marks] if marks or removed else []

    @property
    def _has_copies(self) -> bool:
        """Whether the rows of released runs have been copied here."""
        from troll.analysis.data.archive import FROM_RELEASE
        from troll.analysis.data.tidy import table_file

        return table_file(Path(self.root), FROM_RELEASE).exists()

    def local_places(self, runs: Iterable[Run]) -> list[str]:
        """Returns the places of runs and base models whose results are, or will be, in directories here.

        Without an archive, all of them; with one, those that are not in its tables, and those appended from
        here.
        """
        return [
            place
            for place in places_of(runs)
            if run_id_of(place) not in self.archived_runs or place in self.marked
        ]

    def directories(self, runs: Iterable[Run]) -> list[str]:
        """Returns the directories of `local_places`."""
        return [f"{self.root}/{place}" for place in self.local_places(runs)]

    def files_of(self, runs: Iterable[Run]) -> list[str]:
        """Returns the files that the tidy table of these runs is made from."""
        places = self.local_places(runs)
        if self.experiment.archive:
            return [self.mark_of(place) for place in places]
        graded = [path for place in places for path in self.grades_of(place)]
        return [f"{self.root}/{place}/manifest.json" for place in places] + graded

    # Files of a place.

    def test_problems(self, wildcards: Wildcards) -> str:
        """Returns the file of the test problems of a place."""
        return f"{self.root}/data/{task_of(wildcards)}/test.jsonl"

    def suites_of(self, task: str) -> dict[str, Suite]:
        """Returns the data sets in a task's ``evaluate_on`` that can be graded on this machine."""
        return suites_of(self.experiment, task, self.skipped)

    def suite_problems(self, wildcards: Wildcards) -> list[str]:
        """Returns the files of the problems of further data sets for a place."""
        return [f"{self.root}/suites/{name}/test.jsonl" for name in self.suites_of(task_of(wildcards))]

    def validation_suites(self, wildcards: Wildcards) -> list[str]:
        """Returns the files of the problems of the data sets that a run validates on."""
        names = self.experiment.tasks[wildcards["task"]].validate_on
        return [f"{self.root}/suites/{name}/test.jsonl" for name in names]

    def grades_of(self, place: str) -> list[str]:
        """Returns the files that exist once a place is graded."""
        suites = self.suites_of(place.split("/")[2])
        names = ["grades.json", *(["suites/graded.json"] if suites else [])]
        return [f"{self.root}/{place}/{name}" for name in names]

    def grades(self, wildcards: Wildcards) -> list[str]:
        """Returns the files that exist once the place of a job is graded."""
        return self.grades_of(wildcards["checkpoint_dir"])

    def key(self, wildcards: Wildcards) -> str:
        """Returns the key of the planned run or base model of a job; see `keys`."""
        return self.keys[run_id_of(wildcards["checkpoint_dir"])]

    def first_run_of(self, task: str) -> str:
        """Returns the directory of a task's first run."""
        return next(f"{self.root}/{place_of_run(run)}" for run in self.runs if run.task == task)

    def base_of(self, task: str) -> str:
        """Returns the directory of the base model of a task's first run."""
        run = next(run for run in self.runs if run.task == task)
        return f"{self.root}/{place_of_base(run.model, task)}"

    @property
    def base_directories(self) -> list[str]:
        """Directories of all base models."""
        return [f"{self.root}/{place_of_base(model, task)}" for model, task in self.bases]

    # Made from the tidy table.

    @property
    def claims(self) -> list[str]:
        """Paths of the claims files."""
        return [str(claims_file(name)) for name in self.experiment.claims]

    @property
    def claims_digests(self) -> list[str]:
        """Digests of the claims files, as parameters of a rule.

        They are no inputs, because Snakemake takes braces in the paths of input files for wildcards.
        """
        return [sha256_of_file(Path(path)) for path in self.claims]

    def claims_arguments(self, wildcards: Wildcards) -> list[str]:
        """Returns claims files as arguments; Snakemake would take braces in a text for wildcards."""
        return [quote(path) for path in self.claims]

    def claims_options(self, wildcards: Wildcards) -> list[str]:
        """Returns claims files as options."""
        return [f"--ledger {quote(path)}" for path in self.claims]

    def collect_options(self, wildcards: Wildcards) -> list[str]:
        """Returns the options of `troll job collect` for all tables of the experiment."""
        archive = [f"--archive {quote(self.root)}"] if self.experiment.archive else []
        if archive and not self.experiment.repeat and self.released.exists():
            archive.append(f"--released {quote(str(self.released))}")
        mixed = ["--allow-mixed"] if self.experiment.allow_mixed else []
        # Named as in the experiment file, so that the tables can be judged again elsewhere.
        names = self.experiment.claims if self.experiment.claims != [DEFAULT] else []
        return [*archive, *mixed, *(f"--ledger {quote(name)}" for name in names)]

    def plan_of(self, runs: Sequence[Run]) -> dict[str, Any]:
        """Returns the plan; ``runs`` include those of skipped tasks, so that tables can name them."""
        names = map(run_id_of, places_of(self._possible(runs)))
        return {
            "expected": [vars(run) | {"rule": rule_of(self.experiment, run)} for run in runs],
            "skipped": dict(self.skipped),
            "summary": self.experiment.summary,
            "keys": {name: self.keys[name] for name in names},
        }

    @property
    def measurements(self) -> list[str]:
        """Measurements besides the runs: costs and approximation errors, as far as requested."""
        cost = self.experiment.cost
        places = ["zipf", *(f"task/{task}" for task in self.tasks)]
        approximations = [f"{self.root}/approximation/{place}/approximation.png" for place in places]
        return [
            *([f"{self.root}/cost/cost.csv"] if cost else []),
            *([f"{self.root}/cost/cost_step.csv"] if cost and cost.step else []),
            *(approximations if self.experiment.approximation else []),
        ]
