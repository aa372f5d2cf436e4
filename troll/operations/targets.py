"""What the workflow's rules ask about an experiment: its runs, their files, and everything made from them.

The rules hold inputs, outputs and one command each; whatever has to be worked out for them is here. Methods
that take ``wildcards`` are handed to Snakemake as they are.
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
from troll.experiment.experiment import Experiment, Run
from troll.experiment.keys import largest_values, planned_keys, suites_of
from troll.experiment.settings import Suite
from troll.operations.outputs import made, rule_of
from troll.operations.places import Wildcards, place_of_base, place_of_run, places_of, run_id_of, task_of

if TYPE_CHECKING:
    from troll.analysis.data.archive import Held

_NEEDS_A_GPU = 0.05
"""10^9 parameters from which on nobody trains without a GPU for long."""


def skipped_tasks(experiment: Experiment) -> dict[str, str]:
    """Tasks that this machine cannot run, with the reason."""
    from troll.tasks.registry import get_task
    from troll.tasks.sandbox.pool import sandbox_available

    suites = [name for task in experiment.tasks.values() for name in task.evaluate_on]
    names = dict.fromkeys([*experiment.tasks, *suites])
    code = [task for task in names if get_task(task).kind == "code"]
    available, reason = sandbox_available() if code else (True, "")
    return {} if available else dict.fromkeys(code, reason)


@dataclass(frozen=True, eq=False)
class Targets:
    """The files of an experiment, and which of them are made here."""

    experiment: Experiment
    # tasks that this machine cannot run, with the reason
    skipped: Mapping[str, str] = field(default_factory=dict)
    results: str = "results"  # holds ``<experiment>/``, as the workflow names it

    @property
    def root(self) -> str:
        """``results/<experiment>``."""
        return f"{self.results}/{self.experiment.experiment}"

    @cached_property
    def runs(self) -> list[Run]:
        """The runs that can be made on this machine."""
        return self._possible(self.experiment.runs())

    @cached_property
    def bases(self) -> list[tuple[str, str]]:
        """(model, task) of the base models that can be made on this machine."""
        return [(model, task) for model, task in self.experiment.bases() if task not in self.skipped]

    @cached_property
    def groups(self) -> dict[str, list[Run]]:
        """The runs of each named group that can be made on this machine."""
        return {group: self._possible(runs) for group, runs in self.experiment.groups().items()}

    @property
    def tasks(self) -> list[str]:
        """The tasks of the runs."""
        return list(dict.fromkeys(run.task for run in self.runs))

    @property
    def suites(self) -> dict[str, Suite]:
        """Further data sets on which the models of some task are evaluated."""
        tasks = self.experiment.tasks.values()
        return {name: suite for task in tasks for name, suite in task.evaluate_on.items()}

    @property
    def pretrained(self) -> list[str]:
        """Models that are not made from scratch."""
        return [name for name, model in self.experiment.models.items() if model.pretrained]

    @property
    def scratch(self) -> list[str]:
        """Models that are made from scratch."""
        return [name for name in self.experiment.models if name not in self.pretrained]

    def _possible(self, runs: Iterable[Run]) -> list[Run]:
        return [run for run in runs if run.task not in self.skipped]

    # What training settings decide.

    @cached_property
    def max_tokens_by_place(self) -> dict[str, int]:
        """The longest response that a place's model was trained to give."""
        return largest_values(self.experiment, self.runs, "max_response_tokens")

    @cached_property
    def gpus_by_place(self) -> dict[str, int]:
        """The GPUs of a run; of a base model, the most that one of its runs asks for."""
        return largest_values(self.experiment, self.runs, "gpus")

    @cached_property
    def trains_with_vllm(self) -> bool:
        """Whether some run has its rollouts by vLLM."""
        return any(self.experiment.training_of(run).vllm for run in self.runs)

    @property
    def budgeted(self) -> bool:
        """Whether the experiment has a budget of GPUs: what is small enough for a processor has none."""
        sizes = (billions_of(model.hub) for model in self.experiment.models.values() if model.hub)
        large = any(size is None or size >= _NEEDS_A_GPU for size in sizes)
        return bool(self.pretrained) and (large or any(self.gpus_by_place.values()))

    # Which results are made here, and which stand in the tables already.

    @cached_property
    def keys(self) -> dict[str, str]:
        """What makes each run and base model the one that was planned, by its name in the tables."""
        return planned_keys(self.experiment, self.runs, self.skipped)

    @cached_property
    def marked(self) -> set[str]:
        """Places that were appended to the tables from here."""
        archive = self.experiment.archive
        return {place for place in places_of(self.runs) if archive and Path(self.mark_of(place)).exists()}

    @cached_property
    def held(self) -> "dict[str, Held]":
        """Runs and base models that stand in the released tables as they are planned."""
        _ = self.marked  # looked for first: whoever appends meanwhile leaves the mark after the row
        return made(self.experiment, Path(self.root), self.skipped)

    @cached_property
    def lacking(self) -> list[str]:
        """Places that the tables lack."""
        return [place for place in places_of(self.runs) if run_id_of(place) not in self.held]

    @property
    def collected(self) -> str:
        """The mark of runs that were collected here, by which a clone's tables are not believed."""
        return f"{self.root}/runs/collected"

    def mark_of(self, place: str) -> str:
        """What says that a place was appended to the tables."""
        return f"{self.root}/{place}/appended"

    @property
    def stale_marks(self) -> list[Path]:
        """Marks of runs that the tables do not hold (any more), say after a checkout: they say nothing."""
        if not (self.experiment.archive and self.lacking):
            return []
        return [Path(self.collected), *(Path(self.mark_of(place)) for place in self.lacking)]

    def made_here(self, runs: Iterable[Run]) -> list[str]:
        """Places of runs and base models whose results are, or are to be, in directories here.

        Without an archive these are all. With one, those that its tables lack, and those that were appended
        from here.
        """
        return [
            place for place in places_of(runs) if run_id_of(place) not in self.held or place in self.marked
        ]

    def directories(self, runs: Iterable[Run]) -> list[str]:
        """The directories of `made_here`."""
        return [f"{self.root}/{place}" for place in self.made_here(runs)]

    def files_of(self, runs: Iterable[Run]) -> list[str]:
        """Everything that the tidy table of these runs is made from."""
        places = self.made_here(runs)
        if self.experiment.archive:
            return [self.mark_of(place) for place in places]
        graded = [path for place in places for path in self.grades_of(place)]
        return [f"{self.root}/{place}/manifest.json" for place in places] + graded

    # Files of a place.

    def test_problems(self, wildcards: Wildcards) -> str:
        """What the model of a place is asked."""
        return f"{self.root}/data/{task_of(wildcards)}/test.jsonl"

    def suites_of(self, task: str) -> dict[str, Suite]:
        """Further data sets on which the models of a task are evaluated here."""
        return suites_of(self.experiment, task, self.skipped)

    def suite_problems(self, wildcards: Wildcards) -> list[str]:
        """What the model of a place is asked of further data sets."""
        return [f"{self.root}/suites/{name}/test.jsonl" for name in self.suites_of(task_of(wildcards))]

    def grades_of(self, place: str) -> list[str]:
        """Files that say that a place is graded."""
        suites = self.suites_of(place.split("/")[2])
        names = ["grades.json", *(["suites/graded.json"] if suites else [])]
        return [f"{self.root}/{place}/{name}" for name in names]

    def grades(self, wildcards: Wildcards) -> list[str]:
        """Files that say that the place of a job is graded."""
        return self.grades_of(wildcards["checkpoint_dir"])

    def key(self, wildcards: Wildcards) -> str:
        """What makes the run of a job the one that was planned."""
        return self.keys[run_id_of(wildcards["checkpoint_dir"])]

    def first_run_of(self, task: str) -> str:
        """The directory of a task's first run."""
        return next(f"{self.root}/{place_of_run(run)}" for run in self.runs if run.task == task)

    def base_of(self, task: str) -> str:
        """The directory of the base model of a task's first run."""
        run = next(run for run in self.runs if run.task == task)
        return f"{self.root}/{place_of_base(run.model, task)}"

    @property
    def base_directories(self) -> list[str]:
        """The directories of all base models."""
        return [f"{self.root}/{place_of_base(model, task)}" for model, task in self.bases]

    # What is made from the tidy table.

    @property
    def claims(self) -> list[str]:
        """Paths of the files of claims."""
        return [str(claims_file(name)) for name in self.experiment.claims]

    @property
    def claims_inputs(self) -> list[str]:
        """Files of claims as inputs of a rule.

        Snakemake takes braces in the names of input files for wildcards, whoever names them: files with
        braces in their path are known by their digests instead (`claims_digests`).
        """
        return [path for path in self.claims if not set(path) & set("{}")]

    @property
    def claims_digests(self) -> list[str]:
        """Digests of the files of claims that are no inputs."""
        return [sha256_of_file(Path(path)) for path in self.claims if path not in self.claims_inputs]

    def claims_arguments(self, wildcards: Wildcards) -> list[str]:
        """The files of claims; a function, because Snakemake takes braces in a text for wildcards."""
        return [quote(path) for path in self.claims]

    def claims_options(self, wildcards: Wildcards) -> list[str]:
        """The files of claims as options."""
        return [f"--ledger {quote(path)}" for path in self.claims]

    def collect_options(self, wildcards: Wildcards) -> list[str]:
        """Options of `troll job collect` that all tables of the experiment share."""
        archive = [f"--archive {quote(self.root)}"] if self.experiment.archive else []
        mixed = ["--allow-mixed"] if self.experiment.allow_mixed else []
        # As the experiment file names them, for whoever judges again.
        names = self.experiment.claims if self.experiment.claims != [DEFAULT] else []
        return [*archive, *mixed, *(f"--ledger {quote(name)}" for name in names)]

    def plan_of(self, runs: Sequence[Run]) -> dict[str, Any]:
        """What is planned; `runs` holds those of skipped tasks too, so that tables can name them."""
        more = self.experiment.more_seeds
        looks = {"first": len(set(self.experiment.seeds)), "most": more.most} if more else None
        names = map(run_id_of, places_of(self._possible(runs)))
        return {
            "expected": [vars(run) | {"rule": rule_of(self.experiment, run)} for run in runs],
            "skipped": dict(self.skipped),
            "looks": looks,
            "summary": self.experiment.summary,
            "keys": {name: self.keys[name] for name in names},
        }

    @property
    def measurements(self) -> list[str]:
        """What is measured beside the runs: costs and the approximation's error, where they are asked for."""
        cost = self.experiment.cost
        places = ["zipf", *(f"task/{task}" for task in self.tasks)]
        approximations = [f"{self.root}/approximation/{place}/approximation.png" for place in places]
        return [
            *([f"{self.root}/cost/cost.csv"] if cost else []),
            *([f"{self.root}/cost/cost_step.csv"] if cost and cost.step else []),
            *(approximations if self.experiment.approximation else []),
        ]
