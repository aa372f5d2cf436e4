"""What the workflow's jobs run with: memory, time, threads, GPUs, environment and program."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from troll.experiment.resources import Request, base_request, sampling_request, training_request
from troll.operations.doctor import VLLM_ENVIRONMENT
from troll.operations.places import Wildcards, place_of_base, run_id
from troll.operations.targets import Targets


@dataclass(frozen=True, eq=False)
class Asked:
    """What the jobs of one rule ask a scheduler for: one function for each of Snakemake's resources."""

    request: Callable[[Wildcards, int], Request]

    def threads(self, wildcards: Wildcards) -> int:
        """Processors."""
        return self.request(wildcards, 1).threads

    def gpus(self, wildcards: Wildcards) -> int:
        """GPUs of one node."""
        return self.request(wildcards, 1).gpus

    def memory_mb(self, wildcards: Wildcards, attempt: int) -> int:
        """Main memory; a repeated job gets more."""
        return self.request(wildcards, attempt).memory_mb

    def minutes(self, wildcards: Wildcards) -> int:
        """Run time."""
        return self.request(wildcards, 1).minutes


@dataclass(frozen=True)
class Place:
    """Where the work of one kind is done."""

    environment: str  # a file of conda, seen from the rules
    program: str  # what is called there


@dataclass(frozen=True, eq=False)
class Requests:
    """What the jobs of an experiment run with."""

    targets: Targets
    deployed: bool = False  # jobs get their software from Snakemake, by conda or containers

    @property
    def training(self) -> Asked:
        """Of runs."""
        return Asked(self._training)

    @property
    def making(self) -> Asked:
        """Of pretrained base models."""
        return Asked(self._making)

    @property
    def sampling(self) -> Asked:
        """Of whatever samples from a place."""
        return Asked(self._sampling)

    def _training(self, wildcards: Wildcards, attempt: int) -> Request:
        model = self.targets.experiment.models[wildcards["model"]].pretrained
        gpus = self.targets.gpus_by_place[f"runs/{run_id(wildcards)}"]
        return training_request(model, gpus, attempt)

    def _making(self, wildcards: Wildcards, attempt: int) -> Request:
        model = self.targets.experiment.models[wildcards["model"]]
        gpus = self.targets.gpus_by_place[place_of_base(wildcards["model"], wildcards["task"])]
        return base_request(model.pretrained, model.supervised_steps, gpus, attempt)

    def _sampling(self, wildcards: Wildcards, attempt: int) -> Request:
        place = wildcards["checkpoint_dir"]
        model = self.targets.experiment.models[place.split("/")[1]].pretrained
        # A pretrained model that trains on GPUs is sampled on one, or on those that share it.
        shared = self.targets.experiment.evaluation.engine_options.get("tensor_parallel_size", 1)
        gpus = shared if model and self.targets.gpus_by_place[place] else 0
        return sampling_request(model, gpus, attempt)

    @property
    def training_place(self) -> Place:
        """Where runs are trained."""
        return self._place(self.targets.trains_with_vllm)

    @property
    def sampling_place(self) -> Place:
        """Where models are sampled."""
        return self._place(self.targets.experiment.evaluation.engine == "vllm")

    def _place(self, with_vllm: bool) -> Place:
        """Where work of a kind is done.

        vLLM pins other versions of some packages: where it is used, all of that work runs in its environment.
        """
        if not with_vllm:
            return Place("../../envs/train.yaml", "troll")
        beside = Path(VLLM_ENVIRONMENT, "bin", "troll")
        own = beside.exists() and not self.deployed
        return Place("../../envs/vllm.yaml", quote(str(beside)) if own else "troll")
