"""Data sets as tasks: what experiments, sampling and grading see of them."""

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
from troll.tasks.types import Demonstration, Problem, Split, Task
from troll.tasks.verifiers.code import code_rewards
from troll.tasks.verifiers.math import math_rewards

# Problems of the training split kept for validation where the source has no such split.
_VALIDATION = 256


def whole_split(name: str, split: Split) -> list[Problem]:
    """All problems of a split of a data set, in the source's order."""
    item = DATA_SETS[name]
    source = split if split in item.parts else "train" if split == "validation" else None
    if source is None or source not in item.parts:
        raise UserError(f"data set {item.name} has no {split} problems; it has {', '.join(item.parts)}")
    loaded = load(item.name, source)
    problems = list(loaded.problems)
    if loaded.provenance["substitute"]:  # said in every problem, so that it is known wherever its file goes
        note = {"substitute": loaded.provenance["note"]}
        problems = [replace(problem, record={**problem.record, **note}) for problem in problems]
    if "validation" not in item.parts and split in ("train", "validation"):
        order = list(range(len(problems)))
        random.Random(derive_seed(stream="validation", task=item.name)).shuffle(order)
        chosen = set(order[:_VALIDATION])
        problems = [p for number, p in enumerate(problems) if (number in chosen) == (split == "validation")]
    return problems


def _generate(item: DataSet, split: Split, count: int, seed: int, _: Mapping[str, Any]) -> list[Problem]:
    """``count`` problems of a split, drawn without replacement; all of them come in the source's order."""
    if count == 0:
        return []
    problems = whole_split(item.name, split)
    if count > len(problems):
        raise UserError(
            f"task {item.name}: {count} {split} problems wanted, but there are {len(problems)}; ask for at "
            f"most {len(problems)}"
        )
    generator = random.Random(derive_seed(stream="problems", task=item.name, split=split, seed=seed))
    return [problems[number] for number in sorted(generator.sample(range(len(problems)), count))]


def _demonstrate(item: DataSet, count: int, seed: int, _: Mapping[str, Any]) -> list[Demonstration]:
    """Training problems with solutions, in an order of the seed's; all of them before any comes again."""
    if not item.solutions:
        raise UserError(f"task {item.name} has no demonstrations; use a pretrained base model")
    solved = [
        Demonstration(problem.prompt, solution)
        for problem in whole_split(item.name, "train")
        if (solution := worked_solution(problem))
    ]
    shown: list[Demonstration] = []
    for number in range(-(-count // len(solved))):
        stream = derive_seed(stream="demonstrations", task=item.name, seed=seed, round=number)
        shown += random.Random(stream).sample(solved, len(solved))
    return shown[:count]


def worked_solution(problem: Problem) -> str:
    r"""A solution in words, ended as the prompt asks for it; GSM8K's notes for a calculator are left out.

    The box stands outside of mathematics: lm-eval's filter `flexible-extract` takes the last number, which of
    ``$\boxed{18}$.`` is ``$.``, and would count every answer of a model that learnt to end so as wrong.
    """
    words = re.sub(r"<<[^<>]*>>", "", str(problem.record.get("solution") or "")).strip()
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
    )
    for name, item in DATA_SETS.items()
}
