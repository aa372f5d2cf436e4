"""Checks experiment files; each problem is one line with its place, its value and what would be right."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from troll.common.errors import UserError, unknown
from troll.common.explain import explain
from troll.common.user_files import load_callable
from troll.experiment.directories import RELEASED
from troll.experiment.experiment import BASE, Experiment, Run, merged
from troll.experiment.recipes import missing_parts
from troll.experiment.settings import TaskSettings, Training
from troll.tasks import testbed
from troll.tasks.datasets.catalogue import DATA_SETS
from troll.tasks.registry import check_settings, get_task, task_names
from troll.tasks.types import SPLITS

LONGEST = 100
"""Most characters of a name; file names may have 255."""

_RULES = """
all append approximation_task approximation_zipf audit base_model benchmark_problems benchmarks claims collect
configure cost cost_step difficulty grade grade_benchmark grade_suites hub_model oracle problems report sample
sample_benchmark sample_suites suite_problems tokenizer train
"""
RULES = frozenset(_RULES.split())
"""Names of the workflow's rules, which a group cannot have because `snakemake NAME` runs either."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_GROUP = re.compile(r"[a-z][a-z0-9_]*")


def _choices(where: str, kind: str, name: str, valid: list[str]) -> str:
    return f"{where}: {unknown(kind, name, valid)}"


def problems(experiment: Experiment) -> Iterator[str]:
    """Yields a line for every problem that keys and types do not show."""
    yield from _name_problems(experiment)
    for name, task in experiment.tasks.items():
        yield from _task_problems(name, task)
    yield from _suite_problems(experiment)
    yield from _rule_problems(experiment)
    yield from _matrix_problems(experiment)
    yield from _override_problems(experiment)
    yield from _engine_problems(experiment)
    if experiment.public_data is not None:
        for name in experiment.public_data.benchmarks:
            if name not in _suites():
                yield _choices("public_data.benchmarks", "data set", name, _suites())


def _name_problems(experiment: Experiment) -> Iterator[str]:
    """Yields a line for every invalid name, and for seeds that occur twice."""
    sections = ("models", "trust_regions", "estimators", "conditions")
    names = [("experiment", experiment.experiment)]
    names += [(section, name) for section in sections for name in getattr(experiment, section)]
    for where, name in names:
        reserved = RELEASED if where == "experiment" and name == RELEASED else BASE
        if not _NAME.fullmatch(name) or len(name) > LONGEST or name == reserved:
            yield (
                f"{where}: name {_cut(name)}: must start with a letter or digit, have only letters, digits, "
                f"dots, dashes and underscores, at most {LONGEST}, and not be {reserved!r}"
            )
    for number, block in enumerate(experiment.matrix):
        if block.group is None:
            continue
        where = f"matrix[{number}].group: {_cut(block.group)}"
        if not _GROUP.fullmatch(block.group) or len(block.group) > LONGEST:
            yield (
                f"{where}: must start with a lowercase letter and have only lowercase letters, digits and "
                f"underscores, at most {LONGEST}"
            )
        if block.group in RULES:
            yield f"{where}: is the name of a rule of the workflow; choose another"


def _cut(name: str) -> str:
    return repr(name if len(name) <= LONGEST else f"{name[:40]}...")


def _suites() -> list[str]:
    """Returns the data sets that have test problems."""
    return [item.name for item in DATA_SETS.values() if {"test", "all"} & set(item.parts)]


def _demonstrated() -> list[str]:
    """Returns the tasks that have demonstrations."""
    return [*testbed.NAMES, *(item.name for item in DATA_SETS.values() if item.solutions)]


def _task_problems(name: str, task: TaskSettings) -> Iterator[str]:
    if name not in task_names():
        yield _choices("tasks", "task", name, task_names())
        return
    try:
        check_settings(get_task(name), task.settings)
    except UserError as error:
        yield f"tasks.{name}.settings: {str(error).removeprefix(f'task {name}: ')}"
    if name in testbed.NAMES:
        for split in SPLITS:
            if getattr(task, split) == "all":
                yield f"tasks.{name}.{split}: is 'all', but the task generates any number; give a number"
    elif not {"train", "all"} & set(DATA_SETS[name].parts):
        yield (
            f"tasks.{name}: has no training problems, only {', '.join(DATA_SETS[name].parts)}; to evaluate "
            f"models of another task on it, use tasks.<task>.evaluate_on"
        )
    for key in ("evaluate_on", "validate_on"):
        for suite in getattr(task, key):
            if suite not in _suites():
                yield _choices(f"tasks.{name}.{key}", "data set", suite, _suites())


def _suite_problems(experiment: Experiment) -> Iterator[str]:
    """Checks that all places take the same number of problems of a data set, since they share its file."""
    sizes: dict[str, tuple[str, int | str]] = {}
    for name, task in experiment.tasks.items():
        suites = [(suite, f"evaluate_on.{suite}.test", item.test) for suite, item in task.evaluate_on.items()]
        suites += [(suite, f"validate_on.{suite}", size) for suite, size in task.validate_on.items()]
        for suite, key, wanted in suites:
            other, size = sizes.setdefault(suite, (name, wanted))
            if size != wanted:
                yield (f"tasks.{name}.{key}: {wanted}, but task {other} takes {size}; use the same number")


def _rule_problems(experiment: Experiment) -> Iterator[str]:
    from troll.algorithms.advantages import ESTIMATORS
    from troll.algorithms.trust_regions import TRUST_REGIONS

    for section, registry in (("trust_regions", TRUST_REGIONS), ("estimators", ESTIMATORS)):
        kind = registry.kind
        for name, rule in getattr(experiment, section).items():
            try:
                registry.complete(rule.rule, rule.settings)
            except UserError as error:
                # The place in the file already names the rule.
                message = str(error).removeprefix(f"{kind}: ")
                of_settings = message.removeprefix(f"{kind} {rule.rule!r}: ")
                where = f"{section}.{name}" + ".settings" * (of_settings != message)
                yield f"{where}: {of_settings}"


_COORDINATES = ("tasks", "models", "trust_regions", "estimators", "conditions")


def _matrix_problems(experiment: Experiment) -> Iterator[str]:
    for number, block in enumerate(experiment.matrix):
        for section in _COORDINATES:
            names = getattr(block, section)
            if names == []:
                yield f"matrix[{number}].{section}: is empty; leave it out for all, or name some"
            for name in names or []:
                if name not in getattr(experiment, section):
                    kind = section.removesuffix("s").replace("_", " ")
                    yield _choices(f"matrix[{number}].{section}", kind, name, [*getattr(experiment, section)])
                    return
    for model, task in experiment.bases():
        settings = experiment.models[model]
        if settings.pretrained is None and task not in testbed.NAMES:
            yield (
                f"models.{model}: a model made from scratch needs demonstrations, and task {task} has none; "
                "use a pretrained model, such as hub: {id: OWNER/NAME}"
            )
        if settings.adapters and task not in settings.adapters:
            yield (
                f"models.{model}.adapters: none for task {task}; train one with `troll job adapter`, or "
                "leave the task out of the matrix"
            )
        if settings.supervised_steps is not None and task not in _demonstrated():
            yield (
                f"models.{model}.supervised: task {task} has no demonstrations; leave it out, or use one of "
                f"the tasks {', '.join(_demonstrated())}"
            )


def _engine_problems(experiment: Experiment) -> Iterator[str]:
    if experiment.evaluation.engine != "vllm":
        return
    for model in dict.fromkeys(model for model, _ in experiment.bases()):
        if experiment.models[model].pretrained is None:
            yield (
                f"evaluation.engine: vllm is for pretrained models, and model {model} is made from scratch; "
                "use transformers"
            )


def _override_problems(experiment: Experiment) -> Iterator[str]:
    overrides: list[tuple[str, Mapping[str, Any]]] = [
        *(
            (f"{section}.{name}.training", item.training)
            for section in ("models", "tasks", "trust_regions", "estimators")
            for name, item in getattr(experiment, section).items()
        ),
        *((f"conditions.{name}", condition) for name, condition in experiment.conditions.items()),
    ]
    for where, override in overrides:
        try:
            Training.model_validate(merged(experiment.training.model_dump(), override))
        except ValidationError as error:
            # Errors without a location are clashes between settings, which other overrides may resolve.
            if error.errors()[0]["loc"]:
                yield explain(error, Training, where)


def _conflicting_override(experiment: Experiment, run: Run, clash: str) -> str:
    """Returns the place of the last override of a key that a clash names; empty if there is none."""
    overrides = experiment.overrides_of(run)
    named = set(re.findall(r"\w+", clash))
    return next((place for place in reversed(overrides) if place and named & overrides[place].keys()), "")


def context_problems(run: Run, training: Training, context: int) -> Iterator[str]:
    """Yields a line if a run's prompts and responses exceed its model's context: sampling would fail."""
    response, prompt = training.max_response_tokens, training.max_prompt_tokens
    if response >= context:
        yield (
            f"run {run.run_id}: max_response_tokens {response} leaves no room for a prompt in the context of "
            f"{context} tokens of model {run.model}; use a smaller max_response_tokens"
        )
    elif prompt is not None and prompt + response > context:
        yield (
            f"run {run.run_id}: max_prompt_tokens {prompt} and max_response_tokens {response} exceed the "
            f"context of {context} tokens of model {run.model}; reduce one of them"
        )


def problems_without_torch(experiment: Experiment) -> Iterator[str]:
    """Yields the problems that prevent listing runs or merging their settings, quickly and without torch."""
    yield from _name_problems(experiment)
    yield from _matrix_problems(experiment)
    yield from _override_problems(experiment)
    for run in experiment.runs():
        yield from _clashes(experiment, run)


def _clashes(experiment: Experiment, run: Run) -> Iterator[str]:
    """Yields a line if a run's settings clash once all overrides are merged."""
    try:
        experiment.training_of(run)
    except ValidationError as error:
        clash = explain(error, Training)
        where = _conflicting_override(experiment, run, clash)
        yield f"{where}: " * bool(where) + f"run {run.run_id}: {clash}"


def _user_function_problems(experiment: Experiment, run: Run, training: Training) -> Iterator[str]:
    """Yields a line if a reward, tool or environment cannot be loaded or used in a run."""
    for name, what in training.user_functions().items():
        try:
            found = load_callable(name, what)
        except UserError as error:
            yield str(error)
            continue
        if what == "training.environment" and training.reward is not None and hasattr(found, "get_reward"):
            yield two_rewards(name, training.reward)
    if not training.tools and training.environment is None:
        return
    key = "training.tools" if training.tools else "training.environment"
    if experiment.models[run.model].pretrained is None:
        yield (
            f"run {run.run_id}: {key} needs a model with a chat template, and model {run.model} is made "
            "from scratch"
        )
    if experiment.tasks[run.task].validate_on:
        yield (
            f"run {run.run_id}: validate_on samples single responses, without {key}; leave one of the two "
            "out (the validation split is solved with calls)"
        )


def two_rewards(environment: str, reward: str) -> str:
    """Returns the message for an environment with ``get_reward`` beside ``training.reward``."""
    return (
        f"training.environment: {environment} has get_reward, and training.reward is {reward}; a run has one "
        "reward: leave one of the two out"
    )


def run_problems(experiment: Experiment) -> Iterator[str]:
    """Yields a line for every problem of a single run with all its overrides merged."""
    for run in experiment.runs():
        clashes = list(_clashes(experiment, run))
        if clashes:
            yield from clashes
            continue
        training = experiment.training_of(run)
        where = f"estimators.{run.estimator}"
        yield from missing_parts(where, experiment.estimators[run.estimator], training)
        yield from _user_function_problems(experiment, run, training)
        model = experiment.models[run.model]
        if model.pretrained is None:
            yield from context_problems(run, training, model.context)
        train = experiment.tasks[run.task].train
        # The size of a public data set is not known here.
        if isinstance(train, int) and training.prompts_per_batch > train:
            yield (
                f"run {run.run_id}: prompts_per_batch is {training.prompts_per_batch}, but task {run.task} "
                f"has {train} train problems; raise tasks.{run.task}.train, or use smaller batches"
            )
        if training.pretraining is not None and run.task not in testbed.NAMES:
            yield (
                f"run {run.run_id}: training.pretraining needs demonstrations, and task {run.task} has none; "
                f"switch it off with {where}.training: {{pretraining: null}}"
            )
