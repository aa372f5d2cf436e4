"""Makes data sets into tasks, for experiments, sampling and grading."""

import random
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from troll.common.errors import UserError
from troll.common.seeding import derive_seed
from troll.tasks.datasets.catalogue import DATA_SETS, DataSet
from troll.tasks.datasets.load import load
from troll.tasks.datasets.settings import applied, require_system_turn
from troll.tasks.types import Demonstration, Problem, Split, Task
from troll.tasks.verifiers.code import code_rewards
from troll.tasks.verifiers.math import form_of, math_rewards

HELD_OUT = 256
"""Number of training problems that are used for validation if a data set has no such split."""


def whole_split(
    name: str, split: Split, settings: Mapping[str, Any] | None = None, *, validated: bool = True
) -> list[Problem]:
    """Returns all problems of a split of a data set, in the source's order.

    If a data set has no validation problems, they are taken out of its training problems; without
    ``validated`` these are complete.
    """
    item = DATA_SETS[name]
    source = split if split in item.parts else "train" if split == "validation" else None
    if source is None or source not in item.parts:
        raise UserError(f"data set {item.name} has no {split} problems; it has {', '.join(item.parts)}")
    loaded = load(item.name, source)
    problems = list(loaded.problems)
    if loaded.provenance["substitute"]:  # noted in every problem, as its file may be copied
        note = {"substitute": loaded.provenance["note"]}
        problems = [replace(problem, record={**problem.record, **note}) for problem in problems]
    if validated and "validation" not in item.parts and split in ("train", "validation"):
        order = list(range(len(problems)))
        random.Random(derive_seed(stream="validation", task=item.name)).shuffle(order)
        chosen = set(order[:HELD_OUT])
        problems = [p for number, p in enumerate(problems) if (number in chosen) == (split == "validation")]
    require_system_turn(name, problems, settings or {})
    return [applied(problem, settings or {}) for problem in problems]


def _generate(
    item: DataSet, split: Split, count: int, seed: int, settings: Mapping[str, Any]
) -> list[Problem]:
    """Returns ``count`` problems of a split, drawn without replacement, in the source's order."""
    if count == 0:
        return []
    problems = whole_split(item.name, split, settings)
    if count > len(problems):
        raise UserError(
            f"task {item.name}: {count} {split} problems wanted, but there are {len(problems)}; ask for at "
            f"most {len(problems)}"
        )
    generator = random.Random(derive_seed(stream="problems", task=item.name, split=split, seed=seed))
    return [problems[number] for number in sorted(generator.sample(range(len(problems)), count))]


def _demonstrate(item: DataSet, count: int, seed: int, settings: Mapping[str, Any]) -> list[Demonstration]:
    """Returns training problems with solutions, in a seeded order; none repeats before all have been used."""
    if not item.solutions:
        raise UserError(f"task {item.name} has no demonstrations; use a pretrained base model")
    solved = [
        Demonstration(problem.prompt, solution)
        for problem in whole_split(item.name, "train", settings)
        if (solution := worked_solution(problem))
    ]
    shown: list[Demonstration] = []
    for number in range(-(-count // len(solved))):
        stream = derive_seed(stream="demonstrations", task=item.name, seed=seed, round=number)
        shown += random.Random(stream).sample(solved, len(solved))
    return shown[:count]


def worked_solution(problem: Problem) -> str:
    r"""Returns a problem's solution without GSM8K's calculator notes, ended as the prompt asks.

    The box is not in ``$...$``: lm-eval's filter `flexible-extract` takes the last number, which it finds to
    be ``$.`` in ``$\boxed{18}$.``, and would count all answers of a model that learnt this ending as wrong.
    """
    words = re.sub(r"<<[^<>]*>>", "", str(problem.record.get("solution") or "")).strip()
    if words and form_of(problem.record) == "####":
        return f"{words}\n#### {problem.answer}"
    if not words or "\\boxed" in words:
        return words
    return f"{words}\nThe answer is \\boxed{{{problem.answer}}}."


TASKS: Mapping[str, Task] = {
    name: Task(
        name=name,
        summary=item.summary,
        kind=item.kind,
        answer_key="answer" if item.kind == "math" else "canonical_solution",
        generate=partial(_generate, item),
        demonstrate=partial(_demonstrate, item),
        reward=math_rewards if item.kind == "math" else code_rewards,
        model=item.settings,
    )
    for name, item in DATA_SETS.items()
}
