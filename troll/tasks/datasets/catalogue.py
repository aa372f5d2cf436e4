"""Lists the data sets: where each is stored, how its rows are converted, and how many there must be.

Hub names and splits of AIME 2024 and 2025 are those of lm-eval's tasks. Row counts are those of the mirror; a
hub data set with a different count is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from troll.common.settings import Settings
from troll.tasks.datasets import convert
from troll.tasks.datasets.convert import Row
from troll.tasks.datasets.hub import HubPart
from troll.tasks.datasets.settings import (
    ChatCodeSettings,
    ChatMathSettings,
    CodeSettings,
    Gsm8kSettings,
    MathSettings,
)


@dataclass(frozen=True)
class Part:
    """One split of a data set."""

    file: str | None  # path inside a mirror; None if mirrors do not have it
    hub: tuple[HubPart, ...] = ()  # parts on the hub, read in order; empty if the hub does not have it
    keep: Callable[[Row], bool] = lambda row: True  # which rows belong to it
    rows: int | None = None  # required number of problems; None if unknown


@dataclass(frozen=True)
class DataSet:
    """A public data set."""

    name: str
    summary: str  # description of one line
    kind: Literal["math", "code"]
    convert: convert.Convert  # (row, number) to a problem
    parts: Mapping[str, Part] = field(default_factory=dict)  # by split
    # evalplus' name for it, if it comes from evalplus instead of the hub
    evalplus: str | None = None
    # what the mirror has in place of the set that the paper used; None if it is the same
    substitute: str | None = None
    solutions: bool = False  # whether its training problems have solutions that a model can imitate
    settings: type[Settings] = Settings  # what an experiment file may set


_SUBJECTS = (
    "algebra counting_and_probability geometry intermediate_algebra number_theory prealgebra precalculus"
)


def _simple(file: str, repository: str, rows: int, split: str = "test", config: str | None = None) -> Part:
    return Part(file, (HubPart(repository, split, config, rows),), rows=rows)


def _test_set(
    name: str, summary: str, reader: convert.Convert, part: Part, substitute: str | None = None
) -> DataSet:
    """Returns a mathematics data set that has a test split only."""
    parts = {"test": part}
    return DataSet(name, summary, "math", reader, parts, substitute=substitute, settings=MathSettings)


def _math_part(split: str, rows: int) -> Part:
    parts = tuple(HubPart("EleutherAI/hendrycks_math", split, subject) for subject in _SUBJECTS.split())
    return Part(f"math/{split}.jsonl.gz", parts, rows=rows)


def _mbpp_part(split: str, first: int, last: int) -> Part:
    names = ("train", "validation", "test", "prompt") if split == "all" else (split,)
    hub = tuple(HubPart("google-research-datasets/mbpp", name, "full") for name in names)
    return Part("mbpp/mbpp.jsonl", hub, lambda row: first <= int(row["task_id"]) <= last, last - first + 1)


def _eurus(name: str, ability: Literal["math", "code"], reader: convert.Convert) -> DataSet:
    parts = {
        ours: Part(
            None, (HubPart("PRIME-RL/Eurus-2-RL-Data", theirs),), lambda row: row["ability"] == ability
        )
        for ours, theirs in (("train", "train"), ("test", "validation"))
    }
    settings = ChatCodeSettings if ability == "code" else ChatMathSettings
    return DataSet(name, f"Eurus-2-RL, {ability}", ability, reader, parts, settings=settings)


_SETS: Sequence[DataSet] = (
    DataSet(
        "gsm8k",
        "GSM8K: grade-school mathematics",
        "math",
        convert.gsm8k,
        {
            "train": _simple("gsm8k/train.jsonl.gz", "openai/gsm8k", 7473, "train", "main"),
            "test": _simple("gsm8k/test.jsonl", "openai/gsm8k", 1319, "test", "main"),
        },
        solutions=True,
        settings=Gsm8kSettings,
    ),
    DataSet(
        "math",
        "MATH: competition mathematics, 7,500 training and 5,000 test problems",
        "math",
        convert.boxed,
        {"train": _math_part("train", 7500), "test": _math_part("test", 5000)},
        solutions=True,
        settings=MathSettings,
    ),
    _test_set(
        "math500", "MATH-500", convert.answered, _simple("math500/test.jsonl", "HuggingFaceH4/MATH-500", 500)
    ),
    DataSet(
        "dapo",
        "DAPO-Math: integer answers, 1,024 held out",
        "math",
        convert.dapo,
        {
            "train": Part(None, (HubPart("philippbecker/troll_data", "train"),)),
            "test": Part(None, (HubPart("philippbecker/troll_data", "test"),), rows=1024),
            "all": Part("dapo_math_17k/dapo_math_17k.jsonl.gz", (), rows=17917),
        },
        substitute="DAPO-Math-17k, split here; not the authors' split (philippbecker/troll_data)",
        settings=ChatMathSettings,
    ),
    _test_set(
        "aime24",
        "AIME 2024",
        convert.answered,
        _simple("aime24/test.jsonl", "Maxwell-Jia/AIME_2024", 30, "train"),
    ),
    _test_set("aime25", "AIME 2025", convert.answered, _simple("aime25/test.jsonl", "math-ai/aime25", 30)),
    _test_set("amc23", "AMC 2023", convert.answered, _simple("amc23/test.jsonl", "math-ai/amc23", 40)),
    _test_set(
        "minerva",
        "Minerva: undergraduate science",
        convert.boxed,
        _simple("minerva_math/test.jsonl", "math-ai/minervamath", 272),
    ),
    _test_set(
        "olympiadbench",
        "OlympiadBench: open-ended English mathematics without pictures",
        convert.olympiadbench,
        _simple("olympiadbench/test.jsonl.gz", "math-ai/olympiadbench", 675),
    ),
    _test_set(
        "omni-math",
        "Omni-MATH, the part that rules can check",
        convert.answered,
        _simple("omni_math_rule/test.jsonl.gz", "KbsdJames/Omni-MATH-Rule", 2821),
        substitute="the 2,821 rule-checkable problems; not the authors' aligned and de-duplicated copy",
    ),
    _eurus("eurus-math", "math", convert.eurus_math),
    _eurus("eurus-code", "code", convert.eurus_code),
    DataSet(
        "humaneval",
        "HumanEval",
        "code",
        convert.evalplus,  # joined with HumanEval+ in load.py
        {"test": _simple("humaneval/HumanEval.jsonl.gz", "openai/openai_humaneval", 164)},
    ),
    DataSet(
        "humaneval+",
        "HumanEval+",
        "code",
        convert.evalplus,
        {"test": Part("humanevalplus/HumanEvalPlus.jsonl.gz", rows=164)},
        evalplus="humaneval",
    ),
    DataSet(
        "mbpp",
        "MBPP: problems 11 to 510 for testing",
        "code",
        convert.mbpp,
        {
            "train": _mbpp_part("train", 601, 974),
            "validation": _mbpp_part("validation", 511, 600),
            "test": _mbpp_part("test", 11, 510),
            "all": _mbpp_part("all", 1, 974),
        },
        settings=CodeSettings,
    ),
    DataSet(
        "mbpp+",
        "MBPP+",
        "code",
        convert.evalplus,
        {"test": Part("mbppplus/MbppPlus.jsonl.gz", rows=378)},
        evalplus="mbpp",
    ),
)

DATA_SETS: Mapping[str, DataSet] = {item.name: item for item in _SETS}

# The paper's "MATH Eval" is the mean over these data sets, with this number of samples per problem.
MATH_EVAL: Mapping[str, int] = {
    "math500": 1,
    "amc23": 32,
    "aime24": 32,
    "aime25": 32,
    "omni-math": 1,
    "olympiadbench": 1,
    "minerva": 1,
}
