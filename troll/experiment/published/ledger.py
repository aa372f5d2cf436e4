"""The settings of the released configuration beside those of workflow/config/paper.yaml, and why they differ.

The file `LEDGER` was read from the released repository; README.md in this directory explains its fields.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Literal

from pydantic import Field, model_validator

from troll.common.explain import validated
from troll.common.files import read_yaml
from troll.common.settings import StrictModel

LEDGER = files("troll.experiment.published") / "ledger.yaml"


class Released(StrictModel):
    """A key of the released configuration, or a fact of its code."""

    key: str = Field(description="its name there")
    value: Any = Field(None, description="its value there")
    file: str = Field("", description="name of the file that it was read from, in the ledger's `files`")
    ours: str = Field("", description="place of its counterpart in paper.yaml; empty: it has none")
    here: Any = Field(None, description="the counterpart's value")
    also: list[str] = Field([], description="other places in paper.yaml that have this value")
    same: str = Field("", description="why another way to say it means the same")
    reason: str = Field("", description="why the runs here differ")
    unread: str = Field("", description="what could not be read")

    @model_validator(mode="after")
    def _is_explained(self) -> "Released":
        equal = bool(self.ours) and self.here == self.value
        if not (equal or self.same or self.reason or self.unread):
            raise ValueError(f"{self.key}: differs from the released value without a reason")
        if not self.file and not self.unread:
            raise ValueError(f"{self.key}: names no file that it was read from")
        return self

    @property
    def state(self) -> Literal["same", "differs", "not readable"]:
        """Whether the runs here have the released value."""
        if self.unread:
            return "not readable"
        return "differs" if self.reason else "same"


class Apart(StrictModel):
    """Keys of a released file without a counterpart that decide nothing about results."""

    file: str = Field(description="name of the file, in the ledger's `files`")
    why: str = Field(description="what they are for")
    keys: list[str] = Field(description="their names there; * stands for any text")


class Variant(StrictModel):
    """A choice of ours that takes the place of a released setting by one key of paper.yaml."""

    name: str
    key: str = Field(description="place in paper.yaml")
    value: Any = Field(None, description="its value there; a mapping changes the keys that it names")
    meaning: str = Field(description="what it does")


class Ledger(StrictModel):
    """All keys, the files that they were read from (path and commit by name), and our variants."""

    groups: list[str] = Field(description="groups of paper.yaml whose runs are the released ones")
    own: list[str] = Field(description="trust regions of ours in these groups")
    files: dict[str, tuple[str, str]]
    keys: list[Released]
    apart: list[Apart]
    variants: list[Variant]

    @model_validator(mode="after")
    def _has_files(self) -> "Ledger":
        named = [(entry.key, entry.file) for entry in self.keys if entry.file]
        for name, file in [*named, *((entry.keys[0], entry.file) for entry in self.apart)]:
            if file not in self.files:
                raise ValueError(f"{name}: file {file!r} is not in `files`")
        return self


@cache
def read_ledger(path: Traversable = LEDGER) -> Ledger:
    """Returns the ledger; rejects an entry that is not explained, or that names no file."""
    return validated(Ledger, read_yaml(path, "file; the list of deviations needs it"), path)


def value_at(settings: Mapping[str, Any], place: str) -> Any:
    """Returns the value at a dotted place, whose names may contain dots; None if there is none."""
    if place in settings:
        return settings[place]
    for name, value in settings.items():
        if place.startswith(f"{name}.") and isinstance(value, Mapping):
            return value_at(value, place.removeprefix(f"{name}."))
    return None


DIFFERENCE = ("released", "value", "here", "why")
"""Columns of `differences`."""


def differences(ledger: Ledger) -> list[tuple[str, ...]]:
    """Returns the settings that differ, as texts: the released key and its value, ours, and the reason."""
    return _rows(ledger, "differs")


def ledger_page(ledger: Ledger, paper: Mapping[str, Any]) -> str:
    """Returns the ledger in Markdown: what differs and why, our variants, what is unread or the same.

    ``paper`` has the settings of paper.yaml.
    """
    from jinja2 import Environment, StrictUndefined

    template = (files(__package__) / "released.md").read_text(encoding="utf-8")
    return (
        Environment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)
        .from_string(template)
        .render(
            ledger=ledger,
            table=_table,
            columns=DIFFERENCE,
            differs=differences(ledger),
            same=_rows(ledger, "same"),
            unread=[(entry.key, entry.unread) for entry in ledger.keys if entry.unread],
            own=_names(ledger.own),
            variants=[
                (
                    item.name,
                    f"`{item.key}`",
                    _shown(value_at(paper, item.key)),
                    _shown(item.value),
                    item.meaning,
                )
                for item in ledger.variants
            ],
            on_command_line=_on_command_line(ledger.variants[0]),
            apart=sum(len(entry.keys) for entry in ledger.apart),
            apart_rows=[
                (f"`{ledger.files[entry.file][0]}`", _names(entry.keys), entry.why) for entry in ledger.apart
            ],
            sources=[(f"`{path}`", commit[:8]) for path, commit in ledger.files.values()],
        )
    )


def _on_command_line(variant: Variant) -> str:
    """Returns the options of Snakemake that switch to a variant."""
    first, *rest = variant.key.split(".")
    value = _shown(variant.value)
    for name in reversed(rest):
        value = f"{{{name}: {value}}}"
    return f"--config experiment=paper-{variant.name} '{first}={value}'"


def _rows(ledger: Ledger, state: str) -> list[tuple[str, ...]]:
    """Returns the settings in a state as texts: the released key and its value, ours, and the reason."""
    return [_cells(entry) for entry in ledger.keys if entry.state == state]


def _cells(entry: Released) -> tuple[str, ...]:
    here = f"`{entry.ours}: {_shown(entry.here)}`" if entry.ours else "no key"
    if entry.also:
        here += f", also {_names(entry.also)}"
    return f"`{entry.key}`", _shown(entry.value), here, entry.reason or entry.same


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_shown(item)}" for name, item in value.items()) + "}"
    return str(value)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    ruled = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in ruled)
