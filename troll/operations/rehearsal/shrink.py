"""Shrinks an experiment for a rehearsal: fewer runs and smaller numbers, with the same keys and names."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil, gcd, lcm
from typing import Any

from troll.experiment.experiment import Experiment, Run
from troll.experiment.measurement_settings import CostBenchmark, StepBenchmark
from troll.experiment.settings import Training
from troll.operations.rehearsal.report import PREFIX
from troll.operations.rehearsal.sources import as_hub

COORDINATES = ("model", "task", "trust_region", "estimator", "condition")
Pair = tuple[str, str, str, str]
PROCESSES = "processes"
"""Suffix of the name of the condition under which one run keeps its number of processes."""

_RESPONSE_TOKENS = 16
_SUPERVISED_STEPS, _SUPERVISED_BATCH = 2, 4
_SPLITS = {"train": 24, "validation": 4, "test": 4}
_SUITE = 2
_FIXED = {"rollout_batches": 2, "max_response_tokens": _RESPONSE_TOKENS, "checkpoint_every": 1, "gpus": 0}
# The smallest run's sizes; others are in proportion, which keeps the ratios of mini-batches and staleness.
_SMALLEST = {"prompts_per_batch": 4, "responses_per_prompt": 2, "mini_batches": 4}


def pairs_of(run: Run) -> set[Pair]:
    """Returns every pair of coordinates of a run, as (coordinate, name, coordinate, name)."""
    return {
        (first, getattr(run, first), second, getattr(run, second))
        for first, second in combinations(COORDINATES, 2)
    }


def cover(runs: Sequence[Run]) -> list[Run]:
    """Chooses runs that together have all pairs of these runs, greedily; returns them in their given order.

    The greedy set cover has at most ln(n) + 1 times as many runs as the smallest one, n being the number of
    pairs of one run (Chvatal 1979). Chosen runs that later choices made redundant are dropped.
    """
    pairs = {run: pairs_of(run) for run in runs}
    missing: set[Pair] = set().union(*pairs.values())
    chosen: list[Run] = []
    while missing:
        chosen.append(max(pairs, key=lambda run: len(pairs[run] & missing)))
        missing -= pairs[chosen[-1]]
    for run in list(chosen):
        if pairs[run] <= set().union(*(pairs[other] for other in chosen if other != run)):
            chosen.remove(run)
    return sorted(chosen, key=list(pairs).index)


def selection(experiment: Experiment, groups: Iterable[str] = (), *, full: bool = False) -> list[Run]:
    """Selects the runs of a rehearsal among those of the first seed: a pairwise cover, or all (``full``)."""
    names = list(groups)
    runs = [run for run in experiment.runs(names) if run.seed == experiment.seeds[0]]
    if full:
        return runs
    possible, chosen = set(runs), set(cover(runs))
    for members in experiment.groups().values():  # a group without a run would have no page
        selected = [run for run in members if run in possible]
        if selected and not names and not chosen & set(selected):
            chosen.add(selected[0])
    return [run for run in runs if run in chosen]


@dataclass(frozen=True)
class Scale:
    """The factors by which the numbers of an experiment shrink."""

    divisors: Mapping[str, tuple[int, int]]  # (divide by, multiply by) of prompts, responses and mini-batches
    tokens: float  # factor of ``micro_batch_tokens``
    response: float  # factor of lengths relative to ``max_response_tokens``

    def count(self, key: str, value: int) -> int:
        """Shrinks a number of prompts, responses or mini-batches."""
        divide, multiply = self.divisors[key]
        return max(1, value * multiply // divide)

    def more_prompts(self, training: Training, processes: int = 1) -> int:
        """Returns the factor on prompts with which responses divide into mini-batches and processes."""
        parts = self.count("mini_batches", training.mini_batches) * training.micro_batches * processes
        responses = self.count("prompts_per_batch", training.prompts_per_batch)
        responses *= self.count("responses_per_prompt", training.responses_per_prompt)
        return parts // gcd(parts, responses)

    def training(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Shrinks training settings, or overrides of them, key by key."""
        return {key: self._value(key, value) for key, value in settings.items()}

    def _value(self, key: str, value: Any) -> Any:
        if value is None or key == "vllm":
            return None
        if key in self.divisors:
            return self.count(key, value)
        if key == "micro_batch_tokens":
            return max(1, round(value * self.tokens))
        if key == "critic":
            return {name: min(1, item) if name == "warmup_steps" else item for name, item in value.items()}
        if key == "overlong":
            return dict(value) | {"buffer": max(1, ceil(value.get("buffer", 4096) * self.response))}
        if key in ("validate_every", "policy_lag"):
            return min(1, value)
        return _FIXED.get(key, value)


def scale_of(trainings: Sequence[Training], reference: Training) -> Scale:
    """Returns the factors for these runs.

    Prompts, responses and mini-batches are divided by their greatest common divisor over all runs, and
    multiplied by its common divisor with 4, 2 and 4. If responses then do not divide into mini-batches, all
    runs get more prompts.
    """
    divisors = {}
    for key, smallest in _SMALLEST.items():
        common = gcd(*(getattr(training, key) for training in trainings))
        divisors[key] = (common, gcd(common, smallest))
    unscaled = Scale(divisors, 1, 1)
    divide, multiply = divisors["prompts_per_batch"]
    more = lcm(*(unscaled.more_prompts(training) for training in trainings))
    divisors["prompts_per_batch"] = (divide, multiply * more)
    before = {key: getattr(reference, key) for key in _SMALLEST}
    after = {key: unscaled.count(key, value) for key, value in before.items()}
    return Scale(
        divisors,
        min(1.0, _per_step(after) / _per_step(before)),
        min(1.0, _RESPONSE_TOKENS / reference.max_response_tokens),
    )


def _per_step(sizes: Mapping[str, int]) -> float:
    """Returns the responses per optimiser step."""
    return sizes["prompts_per_batch"] * sizes["responses_per_prompt"] / sizes["mini_batches"]


def shrink(experiment: Experiment, runs: Sequence[Run]) -> dict[str, Any]:
    """Returns the contents of an experiment file with only these runs, small enough for a laptop."""
    trainings = {run: experiment.training_of(run) for run in runs}
    scale = scale_of(list(trainings.values()), experiment.training)

    def used(coordinate: str) -> list[str]:
        return list(dict.fromkeys(getattr(run, coordinate) for run in runs))

    prompts: dict[str, int] = {}
    for run, training in trainings.items():
        count = scale.count("prompts_per_batch", training.prompts_per_batch)
        prompts[run.task] = max(count, prompts.get(run.task, 0))
    small: dict[str, Any] = {
        "experiment": f"{PREFIX}{experiment.experiment}",
        "summary": f"rehearsal of {experiment.experiment}: small, on random models, its numbers mean nothing",
        "rehearsal": True,
        "seeds": [experiment.seeds[0]],
        "tasks": {name: _task(experiment, name, prompts[name], scale) for name in used("task")},
        "models": {name: _model(experiment, name, scale) for name in used("model")},
        "trust_regions": {
            name: _rule(experiment.trust_regions[name], scale) for name in used("trust_region")
        },
        "estimators": {name: _rule(experiment.estimators[name], scale) for name in used("estimator")},
        "conditions": {name: scale.training(experiment.conditions[name]) for name in used("condition")},
        "training": scale.training(experiment.training.model_dump()),
        "evaluation": {
            "samples": min(_SUITE, experiment.evaluation.samples),
            "temperature": experiment.evaluation.temperature,
            "batch_size": experiment.evaluation.batch_size,
        },
        "thinking": experiment.thinking,
        "matrix": _blocks(experiment, runs),
        "cost": _cost(experiment.cost),
        "approximation": experiment.approximation,
        "published": experiment.published,
        "claims": experiment.claims,
        "tracking": experiment.tracking if experiment.tracking == "tensorboard" else "none",
    }
    if experiment.public_data is not None:
        public = experiment.public_data.model_dump()
        small["public_data"] = public | {"audit": "none", "problems": _SUITE, "max_tokens": _RESPONSE_TOKENS}
    _shorten_warmup(small, trainings)
    several = [run for run, training in trainings.items() if training.gpus > 1]
    if several:  # one run keeps its number of processes: the one with fewest, if possible one that projects
        projecting = [run for run in several if run.trust_region.startswith("troll")]
        kept = min(projecting or several, key=lambda run: trainings[run].gpus)
        _add_processes(small, kept, trainings[kept], scale)
    return small


def _task(experiment: Experiment, name: str, prompts: int, scale: Scale) -> dict[str, Any]:
    task = experiment.tasks[name]
    # Twice the prompts of a batch, as too long ones are dropped.
    smallest = _SPLITS | {"train": max(_SPLITS["train"], 2 * prompts)}
    sizes = {}
    for split, count in smallest.items():
        there = getattr(task, split)
        sizes[split] = count if there == "all" else min(there, count)
    suites = {
        suite: {**settings.model_dump(), "samples": min(_SUITE, settings.samples), "test": _SUITE}
        for suite, settings in task.evaluate_on.items()
    }
    return {
        **sizes,
        "settings": task.settings,
        "evaluate_on": suites,
        "validate_on": dict.fromkeys(task.validate_on, _SUITE),
        "training": scale.training(task.training),
    }


def _model(experiment: Experiment, name: str, scale: Scale) -> dict[str, Any]:
    model = experiment.models[name]
    training = scale.training(model.training)
    if (source := as_hub(model)) is not None:
        hub = {"id": source.id, "chat_template_of": source.chat_template_of, "billions": 1e-4}
        supervised = model.supervised_steps
        few = {"steps": _SUPERVISED_STEPS, "batch_size": _SUPERVISED_BATCH}
        learnt = {"supervised": supervised.model_dump() | few} if supervised is not None else {}
        return {"hub": hub, **learnt, "training": training}
    settings = model.model_dump(exclude={"hub", "wheel", "training"})
    settings["supervised"] |= {"steps": min(20, settings["supervised"]["steps"]), "batch_size": 16}
    return {**settings, "training": training}


def _rule(rule: Any, scale: Scale) -> dict[str, Any]:
    return {"rule": rule.rule, "settings": rule.settings, "training": scale.training(rule.training)}


def _blocks(experiment: Experiment, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Returns a block for each run and group, so that the matrix has exactly these runs."""
    groups = experiment.groups()
    named = [(name, run) for name, members in groups.items() for run in members if run in runs]
    grouped = {run for _, run in named}
    return [_block(run) | {"group": name} for name, run in named] + [
        _block(run) for run in runs if run not in grouped
    ]


def _block(run: Run) -> dict[str, Any]:
    return {f"{coordinate}s": [getattr(run, coordinate)] for coordinate in COORDINATES}


def _cost(cost: CostBenchmark | None) -> dict[str, Any] | None:
    if cost is None:
        return None
    step = StepBenchmark(shape="tiny", responses=2, prompt=8, response=8) if cost.step is not None else None
    return CostBenchmark(tokens=32, widths=[64], vocabulary=512, repeats=1, step=step).model_dump()


def _shorten_warmup(small: dict[str, Any], trainings: Mapping[Run, Training]) -> None:
    """Limits critic warm-up to one step, also where an estimator's recipe sets it.

    PPO-max warms up for 8 steps, which is as long as a whole rehearsal.
    """
    for run, training in trainings.items():
        if training.critic is not None and training.critic.warmup_steps > 1:
            override = small["estimators"][run.estimator]["training"]
            override["critic"] = dict(override.get("critic") or {}) | {"warmup_steps": 1}


def _add_processes(small: dict[str, Any], run: Run, training: Training, scale: Scale) -> None:
    """Adds the run that keeps its number of processes, with its own condition and prompts for all of them."""
    prompts = scale.count("prompts_per_batch", training.prompts_per_batch)
    prompts *= scale.more_prompts(training, training.gpus)
    name = f"{run.condition}-{training.gpus}-{PROCESSES}"
    condition = small["conditions"][run.condition]
    small["conditions"][name] = {**condition, "gpus": training.gpus, "prompts_per_batch": prompts}
    task = small["tasks"][run.task]
    task["train"] = max(task["train"], 2 * prompts)
    small["matrix"].append(_block(run) | {"conditions": [name]})
