"""Suites: further data sets that a task's models are evaluated on. One job samples them all, one grades them.

Files under ``suites/`` of a run or base model: ``<name>.samples.jsonl``, ``<name>.made_of.json`` and
``<name>.grades.json`` for each data set. ``sampled.json`` and ``graded.json`` are written last, when all data
sets are done.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from troll.common.digests import sha256_of_file
from troll.common.errors import UserError
from troll.common.files import read_json, write_json
from troll.common.progress import say
from troll.evaluation.graded_input import prompt_digests, read_samples
from troll.evaluation.grading import grade
from troll.evaluation.sampling import digests_of_prompts, sample
from troll.experiment.settings import Suite
from troll.tasks.registry import get_task


def sample_suites(
    checkpoint: Path, suites: Mapping[str, Suite], data: Path, out: Path, **options: Any
) -> None:
    """Samples every data set, and skips those that an interrupted call has finished with the same prompts.

    ``data`` holds ``<name>/test.jsonl`` for each; options are those of `troll.evaluation.sampling.sample`.
    """
    model = sha256_of_file(_existing(checkpoint.parent / "manifest.json"))
    sampled = {name: suite.model_dump(exclude={"test"}) for name, suite in suites.items()}
    for name, how in sampled.items():
        problems, path = data / name / "test.jsonl", out / f"{name}.samples.jsonl"
        made_of = {"model": model, "problems": sha256_of_file(_existing(problems)), **how, **options}
        record = out / f"{name}.made_of.json"
        loaded = get_task(name).load(problems)
        if path.exists() and record.exists() and read_json(record) == made_of:
            recorded = prompt_digests(path, read_samples(path))
            thinking = options.get("thinking", "off")
            if not recorded or recorded == digests_of_prompts(checkpoint, loaded, thinking=thinking):
                continue
            say(f"{path}: its prompts have other token ids now; samples it anew")
        sample(
            checkpoint,
            loaded,
            samples_per_problem=how["samples"],
            temperature=how["temperature"],
            out=path,
            **options,
        )
        write_json(record, made_of)
    write_json(out / "sampled.json", sampled)


def grade_suites(data: Path, out: Path) -> None:
    """Grades what `sample_suites` has sampled, and writes all grades by name to ``<out>/graded.json``."""
    found = {}
    for name in read_json(out / "sampled.json"):
        path = out / f"{name}.grades.json"
        grade(name, out / f"{name}.samples.jsonl", data / name / "test.jsonl", path)
        found[name] = read_json(path)
    write_json(out / "graded.json", found)


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    return path
