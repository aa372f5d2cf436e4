"""Shrinks an experiment for a rehearsal: fewer runs and smaller numbers, with the same keys and names."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import gcd
from typing import Any

from troll.experiment.experiment import COORDINATES, Experiment, Run
from troll.experiment.measurement_settings import CostBenchmark, StepBenchmark
from troll.experiment.settings import Training
from troll.operations.rehearsal.report import PREFIX
from troll.operations.rehearsal.sources import id_of, template_of

Pair = tuple[str, str, str, str]
PROCESSES = "processes"
"""Suffix of the name of the condition under which one run keeps its number of processes."""

_RESPONSE_TOKENS = 16
_SUPERVISED_STEPS, _SUPERVISED_BATCH = 2, 4
_SPLITS = {"train": 24, "validation": 4, "test": 4}
_SUITE = 2
# Settings of training. Any number of responses, mini-batches and micro-batches divides.
_PROMPTS = 8
_FIXED = {"prompts_per_batch": _PROMPTS, "rollout_batches": 2, "checkpoint_every": 1, "gpus": 0}
_FIXED |= {"max_response_tokens": _RESPONSE_TOKENS}
_AT_MOST = {"responses_per_prompt": 2, "policy_lag": 1, "validate_every": 1, "micro_batch_tokens": 64}
_DIVISORS_OF = {"mini_batches": 4, "micro_batches": 2}
_OVERLONG = 8


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


def small_training(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Shrinks training settings, or overrides of them, key by key."""
    return {key: _value(key, value) for key, value in settings.items()}


def _value(key: str, value: Any) -> Any:
    if value is None or key == "vllm":
        return None
    if key == "critic" and "warmup_steps" in value:
        return {**value, "warmup_steps": min(1, value["warmup_steps"])}
    if key == "overlong":
        return {**value, "buffer": min(_OVERLONG, value.get("buffer", _OVERLONG))}
    if key in _AT_MOST:
        return min(_AT_MOST[key], value)
    return gcd(_DIVISORS_OF[key], value) if key in _DIVISORS_OF else _FIXED.get(key, value)


def shrink(experiment: Experiment, runs: Sequence[Run]) -> dict[str, Any]:
    """Returns the contents of an experiment file with only these runs, small enough for a laptop."""
    trainings = {run: experiment.training_of(run) for run in runs}

    def used(coordinate: str) -> list[str]:
        return list(dict.fromkeys(getattr(run, coordinate) for run in runs))

    small: dict[str, Any] = {
        "experiment": f"{PREFIX}{experiment.experiment}",
        "summary": f"rehearsal of {experiment.experiment}: small, on random models, its numbers mean nothing",
        "rehearsal": True,
        "seeds": [experiment.seeds[0]],
        "tasks": {name: _task(experiment, name) for name in used("task")},
        "models": {name: _model(experiment, name) for name in used("model")},
        "trust_regions": {name: _rule(experiment.trust_regions[name]) for name in used("trust_region")},
        "estimators": {name: _rule(experiment.estimators[name]) for name in used("estimator")},
        "conditions": {name: small_training(experiment.conditions[name]) for name in used("condition")},
        "training": small_training(experiment.training.model_dump()),
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
        _add_processes(small, kept, trainings[kept].gpus)
    return small


def _task(experiment: Experiment, name: str) -> dict[str, Any]:
    task = experiment.tasks[name]
    sizes = {}
    for split, count in _SPLITS.items():
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
        "training": small_training(task.training),
    }


def _model(experiment: Experiment, name: str) -> dict[str, Any]:
    model = experiment.models[name]
    training = small_training(model.training)
    if (source := model.pretrained) is not None:
        hub = {"id": id_of(source), "chat_template_of": template_of(source), "billions": 1e-4}
        supervised = model.supervised_steps
        few = {"steps": _SUPERVISED_STEPS, "batch_size": _SUPERVISED_BATCH}
        learnt = {"supervised": supervised.model_dump() | few} if supervised is not None else {}
        return {"hub": hub, **learnt, "training": training}
    settings = model.model_dump(exclude={"hub", "wheel", "training"})
    settings["supervised"] |= {"steps": min(20, settings["supervised"]["steps"]), "batch_size": 16}
    return {**settings, "training": training}


def _rule(rule: Any) -> dict[str, Any]:
    return {"rule": rule.rule, "settings": rule.settings, "training": small_training(rule.training)}


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


def _add_processes(small: dict[str, Any], run: Run, processes: int) -> None:
    """Adds the run that keeps its number of processes, with its own condition and prompts for all of them."""
    prompts, name = processes * _PROMPTS, f"{run.condition}-{processes}-{PROCESSES}"
    condition = small["conditions"][run.condition]
    small["conditions"][name] = {**condition, "gpus": processes, "prompts_per_batch": prompts}
    task = small["tasks"][run.task]
    task["train"] = max(task["train"], 2 * prompts)  # as too long ones are dropped
    small["matrix"].append(_block(run) | {"conditions": [name]})
