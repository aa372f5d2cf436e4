"""What is wrong with an experiment file, as one line: place, value, and what would be right."""

import difflib
import re
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any

from pydantic import BaseModel, ValidationError

from troll.errors import UserError
from troll.experiments import BASE, Experiment, merged
from troll.recipes import estimator_problems, missing_parts
from troll.settings import TaskSettings, Training
from troll.tasks import testbed
from troll.tasks.registry import check_settings, get_task, task_names
from troll.tasks.types import SPLITS

NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
GROUP = re.compile(r"^[a-z][a-z0-9_]*$")


def nearest(name: str, valid: list[str]) -> str:
    """A hint at the valid name that is most like this one; empty if none is."""
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def _choices(where: str, name: str, valid: list[str]) -> str:
    return f"{where}: unknown name {name!r}; valid: {', '.join(valid)}{nearest(name, valid)}"


def _model_at(model: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel] | None:
    """The model whose key ``location[-1]`` was refused, found by walking the annotations."""
    current: Any = model
    for part in location[:-1]:
        if isinstance(current, type) and issubclass(current, BaseModel):
            field = current.model_fields.get(str(part))
            current = field.annotation if field else None
            if isinstance(current, UnionType):  # an optional block: X | None
                current = current.__args__[0]
        else:  # dict[str, X] or list[X]
            arguments = getattr(current, "__args__", ())
            current = arguments[-1] if arguments else None
    return current if isinstance(current, type) and issubclass(current, BaseModel) else None


def explain(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    """The first problem of a validation error as one line: field, what is wrong, what would be right."""
    # A renamed key is both missing and unknown: the unknown one tells more.
    found = sorted(error.errors(include_url=False), key=lambda item: item["type"] != "extra_forbidden")
    first = found[0]
    location = tuple(part for part in first["loc"] if part != "int")
    where = ".".join([*([prefix] if prefix else []), *(str(part) for part in location)])
    owner = _model_at(model, location) if location else None
    if first["type"] == "extra_forbidden" and owner is not None:
        valid = list(owner.model_fields)
        key = str(location[-1])
        return f"{where}: unknown key {key!r}; valid: {', '.join(valid)}{nearest(key, valid)}"
    if first["type"] == "missing":
        return f"{where}: is missing"
    inner = _model_at(model, (*location, ""))
    if first["type"] == "model_type" and inner is not None:
        keys = ", ".join(inner.model_fields)
        return f"{where}: expected a block with keys {keys} (found {first['input']!r})"
    message = first["msg"].removeprefix("Value error, ")
    shown = "" if isinstance(first["input"], dict) else f" (found {first['input']!r})"
    return f"{where or 'experiment'}: {message[0].lower()}{message[1:]}{shown}"


def problems(experiment: Experiment) -> Iterator[str]:
    """Everything that the shape of the file does not show, as one line each."""
    yield from _names(experiment)
    for name, task in experiment.tasks.items():
        yield from _task_problems(name, task)
    yield from _suite_problems(experiment)
    yield from _rule_problems(experiment)
    yield from _matrix_problems(experiment)
    yield from _override_problems(experiment)
    if experiment.public_data is not None:
        for name in experiment.public_data.benchmarks:
            if name not in _suites():
                yield _choices("public_data.benchmarks", name, _suites())


def _suites() -> list[str]:
    """Data sets that have test problems."""
    from troll.tasks.datasets.catalogue import DATA_SETS

    return [item.name for item in DATA_SETS.values() if {"test", "all"} & set(item.parts)]


def _names(experiment: Experiment) -> Iterator[str]:
    sections = ("models", "trust_regions", "estimators", "conditions")
    names = [experiment.experiment, *(name for section in sections for name in getattr(experiment, section))]
    for name in names:
        if not NAME.match(name) or name == BASE:
            yield f"name {name!r}: letters, digits, dots, dashes and underscores only, and not {BASE!r}"
    for number, block in enumerate(experiment.matrix):
        if block.group is not None and not GROUP.match(block.group):
            yield f"matrix[{number}].group: {block.group!r}: small letters, digits and underscores only"
    if len(set(experiment.seeds)) != len(experiment.seeds):
        yield f"seeds: {experiment.seeds} names a seed twice"


def _task_problems(name: str, task: TaskSettings) -> Iterator[str]:
    from troll.tasks.datasets.catalogue import DATA_SETS

    if name not in task_names():
        yield _choices("tasks", name, task_names())
        return
    try:
        check_settings(get_task(name), task.settings)
    except UserError as error:
        yield f"tasks.{name}.settings: {error}"
    if name in testbed.NAMES:
        for split in SPLITS:
            if getattr(task, split) == "all":
                yield f"tasks.{name}.{split}: a generated task has no last problem; give a number"
    elif not {"train", "all"} & set(DATA_SETS[name].parts):
        yield (
            f"tasks.{name}: has no problems to train on, only {', '.join(DATA_SETS[name].parts)}; models of "
            f"another task can be evaluated on it: tasks.<task>.evaluate_on"
        )
    for suite in task.evaluate_on:
        if suite not in _suites():
            yield _choices(f"tasks.{name}.evaluate_on", suite, _suites())


def _suite_problems(experiment: Experiment) -> Iterator[str]:
    """A data set that several tasks evaluate on is one file, and has one size."""
    sizes: dict[str, tuple[str, int | str]] = {}
    for name, task in experiment.tasks.items():
        for suite, settings in task.evaluate_on.items():
            other, size = sizes.setdefault(suite, (name, settings.test))
            if size != settings.test:
                yield (
                    f"tasks.{name}.evaluate_on.{suite}.test: {settings.test}, but task {other} takes {size}; "
                    "take as many"
                )


def _rule_problems(experiment: Experiment) -> Iterator[str]:
    from troll.algorithms.advantages import make_estimator
    from troll.algorithms.trust_regions import make_trust_region

    for section, make in (("trust_regions", make_trust_region), ("estimators", make_estimator)):
        for name, rule in getattr(experiment, section).items():
            try:
                make(rule.rule, **rule.settings)
            except UserError as error:
                yield f"{section}.{name}: {error}"
    for name, rule in experiment.estimators.items():
        yield from estimator_problems(f"estimators.{name}", rule)


def _matrix_problems(experiment: Experiment) -> Iterator[str]:
    for number, block in enumerate(experiment.matrix):
        for section in ("tasks", "models", "trust_regions", "estimators", "conditions"):
            for name in getattr(block, section) or []:
                if name not in getattr(experiment, section):
                    yield _choices(f"matrix[{number}].{section}", name, list(getattr(experiment, section)))
                    return
    for model, task in experiment.bases():
        if experiment.models[model].hub is None and task not in testbed.NAMES:
            yield (
                f"models.{model}: is made from scratch out of demonstrations, and task {task} has none; give "
                "it hub: {id: OWNER/NAME}"
            )


def _override_problems(experiment: Experiment) -> Iterator[str]:
    overrides: list[tuple[str, Mapping[str, Any]]] = [
        *((f"models.{name}.training", model.training) for name, model in experiment.models.items()),
        *((f"tasks.{name}.training", task.training) for name, task in experiment.tasks.items()),
        *(
            (f"trust_regions.{name}.training", rule.training)
            for name, rule in experiment.trust_regions.items()
        ),
        *((f"estimators.{name}.training", rule.training) for name, rule in experiment.estimators.items()),
        *((f"conditions.{name}", condition) for name, condition in experiment.conditions.items()),
    ]
    for where, override in overrides:
        try:
            Training.model_validate(merged(experiment.training.model_dump(), override))
        except ValidationError as error:
            # A single override may clash with what another one sets: only the merged run decides that.
            if error.errors()[0]["loc"]:
                yield explain(error, Training, where)


def run_problems(experiment: Experiment) -> Iterator[str]:
    """What is wrong with single runs, when all that they override has come together."""
    for run in experiment.runs():
        try:
            training = experiment.training_of(run)
        except ValidationError as error:
            yield f"run {run.run_id}: {explain(error, Training)}"
            continue
        where = f"estimators.{run.estimator}"
        yield from missing_parts(where, experiment.estimators[run.estimator], training)
        if training.pretraining is not None and run.task not in testbed.NAMES:
            yield (
                f"run {run.run_id}: training.pretraining needs demonstrations, and task {run.task} has none; "
                f"switch it off: {where}.training: {{pretraining: null}}"
            )
