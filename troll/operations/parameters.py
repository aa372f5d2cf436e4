"""The parameters, resources and environments of the workflow's jobs.

Snakemake repeats a job if its parameters differ from those it recorded, and for no other reason. Settings
are therefore passed as content-addressed files, whose paths are the parameters.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from troll.common.files import write_text
from troll.common.numerics import last_change
from troll.experiment.experiment import resolve, resolve_base, run_seeds
from troll.experiment.resources import Request, base_request, growth, sampling_request, training_request
from troll.operations.doctor import VLLM_ENVIRONMENT
from troll.operations.outputs import rule_of
from troll.operations.places import Wildcards, place_of_base, run_id, task_of
from troll.operations.targets import Targets
from troll.tasks import testbed

DIRECTORY = Path(".snakemake/settings")


def settings_file(kind: str, settings: Any) -> str:
    """Writes settings to a content-addressed file, unless it exists, and returns its path.

    The file, ``<kind>-<digest>.json``, never changes, so this may be called at any time, any number of times.
    """
    text = json.dumps(settings, sort_keys=True) + "\n"
    path = DIRECTORY / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    if not path.exists():
        write_text(path, text)
    return str(path)


@dataclass(frozen=True, eq=False)
class Parameters:
    """The parameters and resources of an experiment's jobs, each as a function of Snakemake's wildcards."""

    targets: Targets

    def problems(self, wildcards: Wildcards) -> str:
        """Returns the sizes of a task's splits."""
        settings = self.targets.experiment.tasks[wildcards["task"]]
        sizes = settings.model_dump(exclude={"training", "evaluate_on", "validate_on"})
        return settings_file("problems", {"name": wildcards["task"], **sizes})

    def suite_problems(self, wildcards: Wildcards) -> str:
        """Returns the number of problems of a data set in ``evaluate_on`` or ``validate_on``."""
        name, tasks = wildcards["suite"], self.targets.experiment.tasks
        settings = {"settings": tasks[name].settings} if name in tasks and tasks[name].settings else {}
        return settings_file("problems", {"name": name, "test": self.targets.suites[name], **settings})

    def tokenizer(self, wildcards: Wildcards) -> str:
        """Returns texts, vocabulary size and number of demonstrations of a model's tokenizer."""
        model = self.targets.experiment.models[wildcards["model"]]
        tasks = {name: task.settings for name, task in self.targets.experiment.tasks.items()}
        return settings_file(
            "tokenizer",
            {
                "tasks": testbed.tokenizer_texts(tasks),
                "vocabulary": model.vocabulary,
                "demonstrations": model.supervised.demonstrations_for_tokenizer,
            },
        )

    def base_model(self, wildcards: Wildcards) -> str:
        """Returns everything that defines a base model."""
        config = resolve_base(self.targets.experiment, wildcards["model"], wildcards["task"])
        return settings_file("base-model", config.model_dump())

    def run(self, wildcards: Wildcards) -> str:
        """Returns everything that defines a run."""
        experiment = self.targets.experiment
        config = resolve(experiment, experiment.run(run_id(wildcards)))
        return settings_file("run", config.model_dump())

    def numerics(self, wildcards: Wildcards) -> int:
        """Returns the last numerics version that affects a run's rule."""
        experiment = self.targets.experiment
        return last_change(rule_of(experiment, experiment.run(run_id(wildcards))))

    def sampling(self, wildcards: Wildcards) -> str:
        """Returns how answers to the test problems are sampled from the model of a run or base model."""
        return settings_file("sampling", self._sampling(wildcards))

    def suites(self, wildcards: Wildcards) -> str:
        """Returns how answers to each data set in ``evaluate_on`` are sampled."""
        settings = self._sampling(wildcards)
        del settings["samples"], settings["temperature"]
        suites = self.targets.suites_of(task_of(wildcards))
        settings["suites"] = {name: suite.model_dump(exclude={"test"}) for name, suite in suites.items()}
        return settings_file("suites", settings)

    def _sampling(self, wildcards: Wildcards) -> dict[str, Any]:
        place, experiment = wildcards["checkpoint_dir"], self.targets.experiment
        kind, name = place.split("/", 1)
        return {
            **experiment.how_evaluated(),
            "max_tokens": self.targets.max_tokens_by_place[place],
            # The same for all methods, which makes paired comparisons possible.
            "seed": run_seeds(experiment.run(name)).evaluation if kind == "runs" else 0,
        }

    @property
    def cost(self) -> dict[str, Any]:
        """Parameters of the benchmark of an update: tokens, widths as options, vocabulary and repeats."""
        cost = self.targets.experiment.cost
        if cost is None:
            return {"tokens": 0, "widths": [], "vocabulary": 0, "repeats": 0}
        settings = cost.model_dump(exclude={"step", "widths"})
        return settings | {"widths": [f"--width {width}" for width in cost.widths]}

    @property
    def step_sizes(self) -> list[str]:
        """Options of the benchmark of a training step; empty if the experiment does not request it."""
        cost = self.targets.experiment.cost
        return [f"--{key} {value}" for key, value in cost.step] if cost and cost.step else []

    def training_request(self, wildcards: Wildcards, attempt: int = 1) -> Request:
        """Returns the resources of a training job."""
        model = self.targets.experiment.models[wildcards["model"]].pretrained
        gpus = self.targets.gpus_by_place[f"runs/{run_id(wildcards)}"]
        return training_request(model, gpus, attempt)

    def base_request(self, wildcards: Wildcards, attempt: int = 1) -> Request:
        """Returns the resources of a job that makes a base model from a pretrained one."""
        model = self.targets.experiment.models[wildcards["model"]]
        gpus = self.targets.gpus_by_place[place_of_base(wildcards["model"], wildcards["task"])]
        return base_request(model.pretrained, model.supervised_steps, gpus, attempt)

    def sampling_request(self, wildcards: Wildcards, attempt: int = 1) -> Request:
        """Returns the resources of a job that samples from a run or base model."""
        place = wildcards["checkpoint_dir"]
        model = self.targets.experiment.models[place.split("/")[1]].pretrained
        trained_on_gpus = model and self.targets.gpus_by_place[place]
        gpus = self.targets.experiment.evaluation.gpus if trained_on_gpus else 0
        return sampling_request(model, gpus, attempt)


def growing(memory_mb: int) -> Callable[[Wildcards, int], int]:
    """Returns the main memory of a rule whose jobs are alike, as a function that grows with each attempt."""

    def memory(wildcards: Wildcards, attempt: int) -> int:
        return round(memory_mb * growth(attempt))

    return memory


def environment_of(with_vllm: bool, *, deployed: bool = False) -> tuple[str, str]:
    """Returns conda's environment file, relative to the rules, and the `troll` command of jobs.

    vLLM pins other versions of some packages, so jobs that use it run in an environment of their own.
    ``deployed`` tells whether Snakemake provides the software of jobs, by conda or containers.
    """
    if not with_vllm:
        return "../../envs/train.yaml", "troll"
    program = Path(VLLM_ENVIRONMENT, "bin", "troll")
    here = program.exists() and not deployed
    return "../../envs/vllm.yaml", quote(str(program)) if here else "troll"
