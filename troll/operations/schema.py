"""What an experiment file may hold: a JSON schema for editors, a page for people; both from the settings."""

import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from troll.common.explain import takes
from troll.experiment.experiment import Experiment


def schema_text() -> str:
    """The JSON schema of experiment files with the settings of tasks, rules and estimators, as text."""
    from troll.algorithms.advantages import ESTIMATORS
    from troll.algorithms.trust_regions import TRUST_REGIONS
    from troll.tasks.registry import get_task, task_names

    schema = Experiment.model_json_schema()
    sections = schema["properties"]
    sections["tasks"]["properties"] = {
        name: {"$ref": "#/$defs/TaskSettings", "properties": {"settings": _settings_schema(get_task(name))}}
        for name in task_names()
        if get_task(name).settings
    }
    registries: tuple[tuple[str, Mapping[str, Any]], ...] = (
        ("trust_regions", TRUST_REGIONS),
        ("estimators", ESTIMATORS),
    )
    for section, registry in registries:
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
    """The JSON schema of the settings of a task, a rule or an estimator, without headings."""
    schema = entry.model.model_json_schema()
    settings = {
        name: {key: value for key, value in setting.items() if key != "title"}
        for name, setting in schema.get("properties", {}).items()
    }
    return {"additionalProperties": False, "properties": settings}


def _parts(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models inside of an annotation."""
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
        return "one block of everything"
    shown = json.dumps(value, ensure_ascii=False) if not isinstance(value, float) else f"{value:g}"
    return f"`{'none' if value is None else shown}`" if value is not None else "none"


def _section(model: type[BaseModel]) -> Iterator[str]:
    yield f"## {model.__name__}"
    yield ""
    yield inspect.cleandoc(model.__doc__ or "")
    yield ""
    yield "| key | type | default | meaning |"
    yield "| --- | --- | --- | --- |"
    for name, field in model.model_fields.items():
        cells = (
            f"`{name}`",
            takes(field.annotation, field.metadata),
            _default(field),
            field.description or "",
        )
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""


def _rules() -> Iterator[str]:
    """The registered rules, estimators and tasks with their settings."""
    from troll.algorithms.advantages import ESTIMATORS
    from troll.algorithms.trust_regions import TRUST_REGIONS
    from troll.tasks.registry import get_task, task_names

    for title, registry in (("Trust regions", TRUST_REGIONS), ("Estimators", ESTIMATORS)):
        yield f"## {title}"
        yield ""
        yield "| rule | what it does | settings with defaults |"
        yield "| --- | --- | --- |"
        for name, info in registry.items():
            settings = ", ".join(f"`{key}: {_plain(item)}`" for key, item in info.settings.items())
            yield f"| `{name}` | {info.summary.replace('|', chr(92) + '|')} | {settings or 'none'} |"
        yield ""
        yield f"## Settings of {title.lower()}"
        yield ""
        yield from setting_table(registry)
        yield ""
    yield "## Tasks"
    yield ""
    yield "| task | kind | what it is | settings with defaults |"
    yield "| --- | --- | --- | --- |"
    for name in task_names():
        task = get_task(name)
        settings = ", ".join(f"`{key}: {json.dumps(value)}`" for key, value in task.defaults.items())
        yield f"| `{name}` | {task.kind} | {task.summary} | {settings or 'none'} |"
    yield ""
    yield "## Settings of tasks"
    yield ""
    yield from setting_table({name: get_task(name) for name in task_names()}, "task")
    yield ""


def setting_table(entries: Mapping[str, Any], kind: str = "rule") -> Iterator[str]:
    """A table of the settings of rules, estimators or tasks."""
    yield f"| {kind} | setting | takes | default | meaning |"
    yield "| --- | --- | --- | --- | --- |"
    for name, info in entries.items():
        for key, setting in info.settings.items():
            allowed = takes(setting.annotation, setting.metadata)
            meaning = (setting.description or "").removesuffix(".").replace("|", "\\|")
            yield f"| `{name}` | `{key}` | {allowed} | `{_plain(setting)}` | {meaning} |"


def _plain(setting: Any) -> str:
    value = getattr(setting, "default", setting)
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else json.dumps(value)


_HEAD = """# Configuration

Everything that an experiment file may hold. This page is generated from the models that check the file, by
`make docs`. `troll check FILE` checks a file, and answers an unknown key with the nearest right one. Editors
that know YAML schemas (VS Code with the YAML extension, for instance) complete and check keys as you type, by
the first line of the files in `workflow/config/`.

`training` holds the settings of every run. A model, a task, a trust region, an estimator (`training:` inside
of their block) and a condition may override single keys of it, in this order. The estimators `ppo-max` and
`ppo-max-code` bring a critic, a regulariser and other settings (`troll/experiment/recipes.py`), which take
the place of those in `training`; to change one, write it into their block, as in
`training: {regulariser: null}`. `matrix` lists blocks of runs; left out, every combination is run.

Tables below: a key, what it takes, its default and what it means. `none` is written `null` in YAML.
"""


def reference() -> str:
    """The page docs/configuration.md."""
    models: dict[type[BaseModel], None] = {}
    waiting: list[type[BaseModel]] = [Experiment]
    while waiting:
        model = waiting.pop(0)
        if model not in models:
            models[model] = None
            waiting += [part for field in model.model_fields.values() for part in _parts(field.annotation)]
    lines = [line for model in models for line in _section(model)] + list(_rules())
    return _HEAD + "\n" + "\n".join(lines).rstrip() + "\n"
