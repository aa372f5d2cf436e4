"""Programs: Python functions of several statements from a docstring, in evalplus' problem schema.

A docstring lists steps of arithmetic; the body takes one statement for each. Remarks are made of words that
mean nothing and follow Zipf's law, so that there are many ways to write a right body. How many demonstrations
are right depends on what the function is called, so that a model which imitates them writes some functions
often and others hardly ever; hasty ones print instead of returning, or get a step wrong.

Steps and statements have as many tokens each where the tokenizer knows the words: a small model learns to
copy over a fixed distance long before it learns to search.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from troll.common.seeding import derive_seed
from troll.tasks.testbed.splits import draw_any, draw_distinct
from troll.tasks.testbed.words import MOST_WORDS, ZipfWords
from troll.tasks.types import Demonstration, Problem, Split, Task
from troll.tasks.verifiers.code import code_rewards

NAMES = ("solve", "compute", "evaluate", "process", "transform")
"""From the one whose functions are written with the most care."""
_VERBS = {"add": "+", "plus": "+", "minus": "-", "less": "-", "times": "*", "by": "*"}
_WAYS = ("then take all of that and {} {};", "next take what you have now {} {};")
_LABELS = "abcdefghijklmnopqrstuvwz"
_OPENING_WORDS, _WORDS = 7, 2

DEFAULTS: dict[str, Any] = {
    "steps": [3],
    # Share of careful demonstrations with the first name, and what each further one multiplies it by.
    "careful": 0.95,
    "careful_decay": 0.33,
    # Share of the hasty ones that print; the rest gets a step wrong. Those are few: a model
    # that imitates slips makes one at any step whether it has made one or not, and so more or fewer than it
    # saw.
    "print": 0.9,
    # How many words of remarks there are; the exponent of Zipf's law.
    "words": 3500,
    "zipf": 1.0,
    "base_inputs": 3,
    "plus_inputs": 12,
}

_Step = tuple[str, int]  # operator or verb, and a digit


@dataclass(frozen=True)
class Program:
    """A name and steps (verb, digit)."""

    name: str
    steps: tuple[_Step, ...]

    def prompt(self, generator: random.Random) -> str:
        """The head of the function, ready for the body."""
        steps = " ".join(generator.choice(_WAYS).format(verb, digit) for verb, digit in self.steps)
        return f'def {self.name}(x):\n    """From x; {steps}"""\n'

    @property
    def operations(self) -> list[_Step]:
        """Operator and digit of each step."""
        return [(_VERBS[verb], digit) for verb, digit in self.steps]

    @property
    def identity(self) -> str:
        """What the problem asks, whatever its wording."""
        return "x" + "".join(f"{operator}{digit}" for operator, digit in self.operations)

    @property
    def level(self) -> int:
        """The place of the name among `NAMES`, from 1."""
        return NAMES.index(self.name) + 1


def _draw(generator: random.Random, settings: Mapping[str, Any]) -> Program:
    count = generator.choice(settings["steps"])
    steps = tuple((generator.choice(list(_VERBS)), generator.randint(2, 9)) for _ in range(count))
    return Program(generator.choice(NAMES), steps)


def _body(operations: list[_Step], words: ZipfWords, generator: random.Random, end: str = "return {}") -> str:
    """A body: a remark, a statement for each operation, and an end that gives its result."""
    lines = [f"# {words.draw(generator, _OPENING_WORDS)}"]
    before = "x"
    for label, (operator, digit) in zip(_LABELS, operations, strict=False):
        lines.append(f"{label} = {before} {operator} {digit} # {words.draw(generator, _WORDS)}")
        before = label
    lines.append(end.format(before))
    return "".join(f"    {line}\n" for line in lines)


def _inputs(count: int, generator: random.Random) -> list[list[int]]:
    found: dict[str, list[int]] = {}
    while len(found) < count:
        arguments = [generator.randint(-99, 99)]
        found[json.dumps(arguments)] = arguments
    return list(found.values())


def careful_share(level: int, settings: Mapping[str, Any]) -> float:
    """Share of demonstrations of a level, from 1, that are right."""
    share: float = settings["careful"] * settings["careful_decay"] ** (level - 1)
    return share


def generate(split: Split, count: int, seed: int, settings: Mapping[str, Any]) -> list[Problem]:
    """Problems of one split, as evalplus records with base and plus inputs; for levels see `NAMES`."""
    programs = draw_distinct(
        lambda generator: _draw(generator, settings),
        lambda program: program.identity,
        split,
        count,
        task="programs",
        seed=seed,
    )
    words = ZipfWords(settings["words"], settings["zipf"])
    problems = []
    for number, program in enumerate(programs):
        generator = random.Random(derive_seed(stream="words", program=program.identity, seed=seed))
        prompt = program.prompt(generator)
        inputs = _inputs(settings["base_inputs"] + settings["plus_inputs"], generator)
        body = _body(program.operations, words, generator)
        record = {
            "entry_point": program.name,
            "canonical_solution": body,
            "base_input": inputs[: settings["base_inputs"]],
            "plus_input": inputs[settings["base_inputs"] :],
            "atol": 0,
            "contract": "",
        }
        problems.append(Problem(f"programs/{split}/{number}", prompt, body, program.level, record))
    return problems


def _with_slip(operations: list[_Step], generator: random.Random) -> list[_Step]:
    """The same operations but for one, which has another operator or digit."""
    place, wrong = generator.randrange(len(operations)), operations[0]
    while (wrong := (generator.choice("+-*"), generator.randint(2, 9))) == operations[place]:
        pass
    return [*operations[:place], wrong, *operations[place + 1 :]]


def demonstrate(count: int, seed: int, settings: Mapping[str, Any]) -> list[Demonstration]:
    """Careful and hasty demonstrations on problems of the train split."""
    generator = random.Random(derive_seed(task="programs", seed=seed, stream="demonstrations"))
    words = ZipfWords(settings["words"], settings["zipf"])
    demonstrations = []
    for _ in range(count):
        program = draw_any(
            lambda source: _draw(source, settings), lambda item: item.identity, "train", generator
        )
        prompt, operations, end = program.prompt(generator), program.operations, "return {}"
        if generator.random() >= careful_share(program.level, settings):
            if generator.random() < settings["print"]:
                end = "print({})"
            else:
                operations = _with_slip(operations, generator)
        demonstrations.append(Demonstration(prompt, _body(operations, words, generator, end)))
    return demonstrations


TASK = Task(
    name="programs",
    summary="Python functions of several statements from a docstring",
    kind="code",
    answer_key="canonical_solution",
    defaults=DEFAULTS,
    generate=generate,
    demonstrate=demonstrate,
    reward=code_rewards,
    ranges={
        "steps": (1, len(_LABELS)),
        "careful": (0, 1),
        "careful_decay": (0, 1),
        "print": (0, 1),
        "words": (1, MOST_WORDS),
        "zipf": (0, 5),
        "base_inputs": (1, 20),
        "plus_inputs": (0, 100),
    },
)
