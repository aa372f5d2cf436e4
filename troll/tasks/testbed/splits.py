"""Splits that never overlap: what a problem asks decides where it belongs, not its wording."""

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar, TypeVar

from pydantic import model_validator

from troll.common.errors import UserError
from troll.common.seeding import derive_seed
from troll.common.settings import Settings
from troll.tasks.types import Split

Item = TypeVar("Item")


IDENTITY = attrgetter("identity")
"""What a problem asks, of those that say so themselves."""


class FlawedSettings(Settings):
    """Settings of a task whose demonstrations have flaws.

    Attributes:
        FLAWS: the settings that are shares of all demonstrations; what is left is right.
    """

    FLAWS: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="after")
    def _check_flaws(self) -> "FlawedSettings":
        if sum(getattr(self, name) for name in self.FLAWS) > 1 + 1e-9:
            raise ValueError(f"{' and '.join(self.FLAWS)} are more than 1 together")
        return self


_TENTHS: Mapping[Split, range] = {"train": range(8), "validation": range(8, 9), "test": range(9, 10)}
_PATIENCE = 2000


def split_of(identity: str) -> Split:
    """The split of a problem: eight tenths of all problems are train, one tenth each validation and test."""
    tenth = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:8], "big") % 10
    return next(split for split, tenths in _TENTHS.items() if tenth in tenths)


def draw_distinct(
    draw: Callable[[random.Random], Item],
    identity: Callable[[Item], str],
    split: Split,
    count: int,
    **coordinates: str | int,
) -> list[Item]:
    """``count`` problems of a split with distinct identities: what they ask, as text, whatever the wording.

    ``draw`` makes one random problem; coordinates name the random stream (`derive_seed`).
    """
    generator = random.Random(derive_seed(**coordinates, split=split))
    drawn: dict[str, Item] = {}
    fruitless = 0
    while len(drawn) < count:
        item = draw(generator)
        key = identity(item)
        if split_of(key) == split and key not in drawn:
            drawn[key] = item
            fruitless = 0
        else:
            fruitless += 1
        if fruitless > _PATIENCE:
            raise UserError(
                f"task {coordinates.get('task')}: {count} {split} problems are wanted, but its settings "
                f"give about {len(drawn)}; ask for fewer or widen the settings"
            )
    return list(drawn.values())


def draw_any(
    draw: Callable[[random.Random], Item],
    identity: Callable[[Item], str],
    split: Split,
    generator: random.Random,
) -> Item:
    """Draws one problem that belongs to ``split``; problems may repeat from call to call."""
    for _ in range(_PATIENCE):
        item = draw(generator)
        if split_of(identity(item)) == split:
            return item
    raise UserError(f"the task's settings give no {split} problems; widen them")


def weighted(generator: random.Random, choices: Sequence[tuple[Item, float]]) -> Item:
    """Draws one of ``choices`` with probability proportional to its weight."""
    return generator.choices([item for item, _ in choices], [weight for _, weight in choices])[0]


def distinct_inputs(draw: Callable[[], list[Any]], settings: Mapping[str, Any]) -> list[list[Any]]:
    """Different arguments for a program, as many as base and plus tests take."""
    inputs: dict[str, list[Any]] = {}
    while len(inputs) < settings["base_inputs"] + settings["plus_inputs"]:
        arguments = draw()
        inputs[json.dumps(arguments)] = arguments
    return list(inputs.values())


def code_record(
    name: str, body: str, inputs: Sequence[list[Any]], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """A problem about a function as evalplus has them."""
    return {
        "entry_point": name,
        "canonical_solution": body,
        "base_input": inputs[: settings["base_inputs"]],
        "plus_input": inputs[settings["base_inputs"] :],
        "atol": 0,
        "contract": "",
    }
