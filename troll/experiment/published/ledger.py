"""The settings of the released configuration beside those of workflow/config/paper.yaml, and why they differ.

The file `LEDGER` was read from the released repository; README.md in this directory explains its fields.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from troll.common.errors import UserError
from troll.common.explain import explain
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


class Variant(StrictModel):
    """A choice of ours that takes the place of a released setting by one key of paper.yaml."""

    name: str
    key: str = Field(description="place in paper.yaml")
    value: Any = Field(None, description="its value there; a mapping changes the keys that it names")
    meaning: str = Field(description="what it does")


class Ledger(StrictModel):
    """All keys, the files that they were read from (path and commit by name), and our variants."""

    files: dict[str, tuple[str, str]]
    keys: list[Released]
    variants: list[Variant]

    @model_validator(mode="after")
    def _has_files(self) -> "Ledger":
        for entry in self.keys:
            if entry.file and entry.file not in self.files:
                raise ValueError(f"{entry.key}: file {entry.file!r} is not in `files`")
        return self


@cache
def read_ledger(path: Traversable = LEDGER) -> Ledger:
    """Returns the ledger; rejects an entry that is not explained, or that names no file."""
    try:
        return Ledger.model_validate(read_yaml(path, "file; the list of deviations needs it"))
    except ValidationError as error:
        raise UserError(f"{path}: {explain(error, Ledger)}") from None


def ledger_problems(ledger: Ledger, settings: Mapping[str, Any]) -> list[str]:
    """Returns a line for each key whose value in an experiment is not the one that the ledger knows."""
    problems = []
    for entry in ledger.keys:
        if entry.ours and (found := value_at(settings, entry.ours)) != entry.here:
            problems.append(f"{entry.ours}: is {found!r}, but the ledger has {entry.here!r} for {entry.key}")
    return problems


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
    lines = [
        "# The released configuration and paper.yaml",
        "",
        "Generated by `make docs` from `troll/experiment/published/ledger.yaml`: the settings of the",
        "released configuration (repository NiklasFreymuth/troll) and those of `workflow/config/paper.yaml`.",
        f"{len(same)} are the same, {len(differs)} differ, {len(unread)} sources could not be read.",
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
        "Other choices of ours are runs of `paper.yaml` beside the released ones: `gspo-clip-tight` and",
        "`troll-pooled`.",
        "",
        "## What could not be read",
        "",
        *_table(("source", "what is missing"), [(entry.key, entry.unread) for entry in unread]),
        "",
        "## What is the same",
        "",
        *_table(("released", "value", "here", "remark"), [_cells(entry) for entry in same]),
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
    return f"`{entry.key}`", _shown(entry.value), here, entry.reason or entry.same


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
