"""Generates the JSON schema of experiment files, for editors, and the reference page, from the settings."""

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from troll.algorithms.advantages import ESTIMATORS
from troll.algorithms.trust_regions import TRUST_REGIONS
from troll.common.explain import takes
from troll.experiment.experiment import Experiment
from troll.tasks.registry import get_task, task_names


def schema_text() -> str:
    """Returns the JSON schema of experiment files, including the settings of tasks, rules and estimators."""
    schema = Experiment.model_json_schema()
    sections = schema["properties"]
    sections["tasks"]["properties"] = {
        name: {"$ref": "#/$defs/TaskSettings", "properties": {"settings": _settings_schema(get_task(name))}}
        for name in task_names()
        if get_task(name).settings
    }
    registries: dict[str, Mapping[str, Any]] = {"trust_regions": TRUST_REGIONS, "estimators": ESTIMATORS}
    for section, registry in registries.items():
        sections[section]["additionalProperties"]["allOf"] = [
            {
                "if": {"properties": {"rule": {"const": name}}},
                "then": {"properties": {"settings": _settings_schema(entry)}},
            }
            for name, entry in registry.items()
        ]
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "TROLL experiment file"
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _settings_schema(entry: Any) -> dict[str, Any]:
    """Returns the JSON schema of the settings of a task, rule or estimator, without titles."""
    schema = entry.model.model_json_schema()
    settings = {
        name: {key: value for key, value in setting.items() if key != "title"}
        for name, setting in schema.get("properties", {}).items()
    }
    return {"additionalProperties": False, "properties": settings}


def _parts(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yields the pydantic models in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _parts(argument)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "its defaults"
    if isinstance(value, list) and value and isinstance(value[0], BaseModel):
        return "one block with everything"
    return "none" if value is None else f"`{_plain(value)}`"


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _table(headings: str, rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yields the lines of a Markdown table; ``headings`` are separated by bars."""
    yield f"| {headings} |"
    yield "|" + " --- |" * (1 + headings.count("|"))
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def _section(model: type[BaseModel]) -> list[str]:
    rows = [
        (f"`{name}`", takes(field.annotation, field.metadata), _default(field), field.description or "")
        for name, field in model.model_fields.items()
    ]
    table = _table("key | type | default | meaning", rows)
    return [f"## {model.__name__}", "", inspect.cleandoc(model.__doc__ or ""), "", *table, ""]


def _rules() -> Iterator[str]:
    """Yields the lines about the registered rules, estimators and tasks with their settings."""
    tasks = {name: get_task(name) for name in task_names()}
    registries: dict[str, Mapping[str, Any]] = {"Trust regions": TRUST_REGIONS, "Estimators": ESTIMATORS}
    for title, registry in (registries | {"Tasks": tasks}).items():
        rows, shown = [], json.dumps if registry is tasks else _plain
        for name, entry in registry.items():
            settings = [f"`{key}: {shown(item.default)}`" for key, item in entry.settings.items()]
            kind = (entry.kind,) if registry is tasks else ()
            rows.append((f"`{name}`", *kind, entry.summary, ", ".join(settings) or "none"))
        what = "task | kind | what it is" if registry is tasks else "rule | what it does"
        yield from (f"## {title}", "", *_table(f"{what} | settings with defaults", rows), "")
        settings_of = setting_table(registry, "task" if registry is tasks else "rule")
        yield from (f"## Settings of {title.lower()}", "", *settings_of, "")


def setting_table(entries: Mapping[str, Any], kind: str = "rule") -> Iterator[str]:
    """Yields the lines of a table of the settings of rules, estimators or tasks."""
    rows = [
        (
            f"`{name}`",
            f"`{key}`",
            takes(setting.annotation, setting.metadata),
            f"`{_plain(setting.default)}`",
            (setting.description or "").removesuffix("."),
        )
        for name, info in entries.items()
        for key, setting in info.settings.items()
    ]
    return _table(f"{kind} | setting | takes | default | meaning", rows)


_HEAD = """# Configuration

All keys of an experiment file. `make docs` generates this page from the models that validate the file.
`troll check FILE` validates a file and suggests the closest valid key for an unknown one. Editors that
support YAML schemas (such as VS Code with the YAML extension) complete and check keys as you type, thanks to
the first line of the files in `workflow/config/`.

`training` contains the settings of every run. A model, a task, a trust region and an estimator (by
`training:` in their block) and a condition can override single keys, in this order. The estimators `ppo-max`
and `ppo-max-code` set a critic, a regulariser and other keys (`troll/experiment/recipes.py`), which override
those in `training`; to change one, set it in their block, as in `training: {regulariser: null}`. `matrix`
lists blocks of runs; without it, every combination is run.

Each table lists keys with their types, defaults and meanings. `none` is written `null` in YAML.
"""


def reference() -> str:
    """Returns the page docs/configuration.md."""
    models: dict[type[BaseModel], None] = {}
    waiting: list[type[BaseModel]] = [Experiment]
    while waiting:
        model = waiting.pop(0)
        if model not in models:
            models[model] = None
            waiting += [part for field in model.model_fields.values() for part in _parts(field.annotation)]
    lines = [line for model in models for line in _section(model)] + list(_rules())
    return _HEAD + "\n" + "\n".join(lines).rstrip() + "\n"
