"""Draws problems in splits that never overlap: what a problem asks decides its split, not its wording."""

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

from pydantic import model_validator

from troll.common.errors import UserError
from troll.common.seeding import derive_seed
from troll.common.settings import Settings
from troll.tasks.types import Split


class ProblemContent(Protocol):
    """The content of a problem."""

    @property
    def identity(self) -> str:
        """The problem as text that does not depend on its wording."""


Choice = TypeVar("Choice")
Item = TypeVar("Item", bound=ProblemContent)
Draw = Callable[[random.Random, Mapping[str, Any]], Item]
"""Draws one random problem with the settings of its task."""


class FlawedSettings(Settings):
    """Settings of a task with flawed demonstrations."""

    # The settings that are shares of flawed demonstrations; the rest are right.
    FLAWS: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="after")
    def _check_flaws(self) -> "FlawedSettings":
        if sum(getattr(self, name) for name in self.FLAWS) > 1 + 1e-9:
            raise ValueError(f"{' and '.join(self.FLAWS)} must add up to at most 1")
        return self


_TENTHS: Mapping[Split, range] = {"train": range(8), "validation": range(8, 9), "test": range(9, 10)}
_PATIENCE = 2000


def split_of(identity: str) -> Split:
    """Returns the split of a problem: 8 in 10 are train, 1 in 10 is validation and 1 in 10 is test."""
    tenth = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:8], "big") % 10
    return next(split for split, tenths in _TENTHS.items() if tenth in tenths)


def draw_distinct(
    task: str, draw: Draw[Item], split: Split, count: int, seed: int, settings: Mapping[str, Any]
) -> list[Item]:
    """Returns ``count`` problems of a split, all of which ask different things."""
    generator = random.Random(derive_seed(task=task, seed=seed, split=split))
    drawn: dict[str, Item] = {}
    fruitless = 0
    while len(drawn) < count:
        item = draw(generator, settings)
        if split_of(item.identity) == split and item.identity not in drawn:
            drawn[item.identity] = item
            fruitless = 0
        else:
            fruitless += 1
        if fruitless > _PATIENCE:
            raise UserError(
                f"task {task}: {count} {split} problems are wanted, but its settings "
                f"give about {len(drawn)}; ask for fewer or widen the settings"
            )
    return list(drawn.values())


def to_demonstrate(
    task: str, draw: Draw[Item], count: int, seed: int, settings: Mapping[str, Any]
) -> Iterator[tuple[Item, random.Random]]:
    """Yields train problems, which may repeat, each with the random generator for its demonstration."""
    generator = random.Random(derive_seed(task=task, seed=seed, stream="demonstrations"))
    for _ in range(count):
        items = (draw(generator, settings) for _ in range(_PATIENCE))
        item = next((item for item in items if split_of(item.identity) == "train"), None)
        if item is None:
            raise UserError(f"task {task}: its settings give no train problems; widen them")
        yield item, generator


def weighted(generator: random.Random, choices: Sequence[tuple[Choice, float]]) -> Choice:
    """Draws one of ``choices`` with probability proportional to its weight."""
    return generator.choices([item for item, _ in choices], [weight for _, weight in choices])[0]


def distinct_inputs(
    draw: Callable[[random.Random], list[Any]], generator: random.Random, settings: Mapping[str, Any]
) -> list[list[Any]]:
    """Returns different arguments for a program, as many as there are base and plus inputs."""
    inputs: dict[str, list[Any]] = {}
    while len(inputs) < settings["base_inputs"] + settings["plus_inputs"]:
        arguments = draw(generator)
        inputs[json.dumps(arguments)] = arguments
    return list(inputs.values())


def code_record(
    name: str, body: str, inputs: Sequence[list[Any]], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns an evalplus record of a problem about a function."""
    return {
        "entry_point": name,
        "canonical_solution": body,
        "base_input": inputs[: settings["base_inputs"]],
        "plus_input": inputs[settings["base_inputs"] :],
        "atol": 0,
        "contract": "",
    }
