"""Names in an experiment file: they become parts of file names, of targets and of commands."""

import re
from collections.abc import Iterator

from troll.experiment.experiment import BASE, Experiment

LONGEST = 100
"""Characters of a name; file names have at most 255."""

RULES = frozenset(
    {
        "all",
        "append",
        "approximation_task",
        "approximation_zipf",
        "audit",
        "base_model",
        "benchmark_problems",
        "benchmarks",
        "claims",
        "collect",
        "configure",
        "cost",
        "cost_step",
        "difficulty",
        "grade",
        "grade_benchmark",
        "grade_suites",
        "hub_model",
        "oracle",
        "problems",
        "report",
        "sample",
        "sample_benchmark",
        "sample_suites",
        "suite_problems",
        "tokenizer",
        "train",
    }
)
"""Names of the workflow's rules, which a group cannot have: `snakemake NAME` asks for either."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_GROUP = re.compile(r"[a-z][a-z0-9_]*")


def name_problems(experiment: Experiment) -> Iterator[str]:
    """Names that cannot be, and seeds that are there twice, as one line each."""
    sections = ("models", "trust_regions", "estimators", "conditions")
    names = [("experiment", experiment.experiment)]
    names += [(section, name) for section in sections for name in getattr(experiment, section)]
    for where, name in names:
        if not _NAME.fullmatch(name) or len(name) > LONGEST or name == BASE:
            yield (
                f"{where}: name {_cut(name)}: letters, digits, dots, dashes and underscores only, at most "
                f"{LONGEST}, and not {BASE!r}"
            )
    for number, block in enumerate(experiment.matrix):
        if block.group is None:
            continue
        where = f"matrix[{number}].group: {_cut(block.group)}"
        if not _GROUP.fullmatch(block.group) or len(block.group) > LONGEST:
            yield f"{where}: small letters, digits and underscores only, at most {LONGEST}"
        if block.group in RULES:
            yield f"{where}: is the name of a rule of the workflow; take another"
    if len(set(experiment.seeds)) != len(experiment.seeds):
        yield f"seeds: {experiment.seeds} names a seed twice"


def _cut(name: str) -> str:
    return repr(name if len(name) <= LONGEST else f"{name[:40]}...")
