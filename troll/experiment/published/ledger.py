"""The settings of the released configuration beside those of workflow/config/paper.yaml, and why they differ.

The file `LEDGER` was read from the released repository; README.md in this directory explains its fields.
"""

from collections.abc import Iterator, Mapping, Sequence
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


def ledger_problems(ledger: Ledger, settings: Mapping[str, Any]) -> list[str]:
    """Returns a line for each key whose value in an experiment is not the one that the ledger knows.

    Also for each override, in a released run, of a setting of training that the ledger knows by its default
    alone.
    """
    problems = []
    for entry in ledger.keys:
        for place in [entry.ours, *entry.also] if entry.ours else ():
            if (found := value_at(settings, place)) != entry.here:
                problems.append(f"{place}: is {found!r}, but the ledger has {entry.here!r} for {entry.key}")
    listed = {place for entry in ledger.keys for place in (entry.ours, *entry.also)}
    for place, value in _overrides(ledger, settings):
        _, _, setting = place.partition(".training.")
        if f"training.{setting}" in listed and place not in listed:
            problems.append(f"{place}: is {value!r}, but the ledger has training.{setting} alone")
    return problems


def _overrides(ledger: Ledger, settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields place and value of what models, tasks, rules and estimators of released runs set of training."""
    blocks = [block for block in settings["matrix"] if block["group"] in ledger.groups]
    for section in ("tasks", "models", "trust_regions", "estimators"):
        names = dict.fromkeys(name for block in blocks for name in block[section])
        for name in names:
            if name not in ledger.own:
                yield from _leaves(settings[section][name]["training"], f"{section}.{name}.training.")


def _leaves(settings: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


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
    return [_cells(entry) for entry in ledger.keys if entry.state == "differs"]


def ledger_page(ledger: Ledger, paper: Mapping[str, Any]) -> str:
    """Returns the ledger in Markdown: what differs and why, our variants, what is unread or the same.

    ``paper`` has the settings of paper.yaml.
    """
    differs, unread, same = (
        [entry for entry in ledger.keys if entry.state == state]
        for state in ("differs", "not readable", "same")
    )
    apart = sum(len(entry.keys) for entry in ledger.apart)
    lines = [
        "# The released configuration and paper.yaml",
        "",
        "Generated by `make docs` from `troll/experiment/published/ledger.yaml`: the settings of the",
        "released configuration (repository NiklasFreymuth/troll) and those of `workflow/config/paper.yaml`.",
        f"{len(same)} are the same, {len(differs)} differ, {apart} decide nothing about results, and",
        f"{len(unread)} sources could not be read. Runs of the groups {', '.join(ledger.groups)}",
        "are the released ones; no released file has the others.",
        "",
        "## What differs",
        "",
        *_table(DIFFERENCE, differences(ledger)),
        "",
        "## Our choices instead",
        "",
        "Each variant is one key of `paper.yaml`, for all of its runs: in a copy of the file, or on the",
        "command line, with an experiment's name of its own so that results stay apart:",
        "",
        "```bash",
        "snakemake -n --configfile workflow/config/paper.yaml "
        "--config experiment=paper-thinking-off thinking=off",
        "```",
        "",
        "A key below others is written as a mapping, which changes nothing else in them:",
        f"`{_on_command_line(ledger.variants[0])}`.",
        "",
        *_table(
            ("variant", "key", "as released", "ours", "meaning"),
            [
                (
                    item.name,
                    f"`{item.key}`",
                    _shown(value_at(paper, item.key)),
                    _shown(item.value),
                    item.meaning,
                )
                for item in ledger.variants
            ],
        ),
        "",
        f"Other choices of ours are runs of `paper.yaml` beside the released ones: {_names(ledger.own)}.",
        "",
        "## What could not be read",
        "",
        *_table(("source", "what is missing"), [(entry.key, entry.unread) for entry in unread]),
        "",
        "## What is the same",
        "",
        *_table(("released", "value", "here", "remark"), [_cells(entry) for entry in same]),
        "",
        "## What decides nothing about results",
        "",
        *_table(
            ("file", "keys", "they"),
            [(f"`{ledger.files[entry.file][0]}`", _names(entry.keys), entry.why) for entry in ledger.apart],
        ),
        "",
        "## Files",
        "",
        *_table(("file", "commit"), [(f"`{path}`", commit[:8]) for path, commit in ledger.files.values()]),
    ]
    return "\n".join(lines) + "\n"


def _on_command_line(variant: Variant) -> str:
    """Returns the options of Snakemake that switch to a variant."""
    first, *rest = variant.key.split(".")
    value = _shown(variant.value)
    for name in reversed(rest):
        value = f"{{{name}: {value}}}"
    return f"--config experiment=paper-{variant.name} '{first}={value}'"


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


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    ruled = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cells) + " |" for cells in ruled]
