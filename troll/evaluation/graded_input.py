"""Reads what is graded: problems, and the samples that answer them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from troll.common.errors import UserError
from troll.common.files import read_jsonl
from troll.tasks.datasets.catalogue import DATA_SETS
from troll.tasks.datasets.load import Loaded, load
from troll.tasks.registry import get_task
from troll.tasks.responses import judged_text
from troll.tasks.types import Problem, Task

_NAMES_SHOWN = 20
# What converting a row raises that is not one of the data set.
_NOT_PUBLISHED = (UserError, AttributeError, LookupError, StopIteration, SyntaxError, TypeError, ValueError)
_GENERATED = "task {task} generates its problems; give {what} with --problems FILE"


def problems_of(task: str, path: Path | None, split: str | None = None) -> list[Problem]:
    """Returns the problems to grade a model on, from a file or from the public data set of that name."""
    if path is not None:
        return get_task(task).load(path)
    if task not in DATA_SETS:
        get_task(task)  # raises if the task is unknown
        raise UserError(_GENERATED.format(task=task, what="a file of them"))
    return list(load(task, _splits(task, split)[0]).problems)


def _splits(task: str, split: str | None) -> list[str]:
    """Returns the splits to look for problems in: the one given, or else ``test`` and ``all``."""
    return [split] if split else [name for name in ("test", "all") if name in DATA_SETS[task].parts]


@dataclass(frozen=True)
class Data:
    """Problems by task_id, where they come from, and the digest of their source."""

    problems: Mapping[str, Mapping[str, Any]]
    source: str
    provenance: Mapping[str, Any]
    sha256: str


@dataclass(frozen=True)
class Sample:
    """A line of a file of samples."""

    task_id: str
    completion: str
    in_thought: bool  # the prompt had begun a thought
    prompt: str | None  # the digest of the prompt's token ids; None if the file does not say


def read_problems(task: str, path: Path | None, split: str | None, ids: set[str], samples: Path) -> Data:
    """Returns the problems that the samples answer."""
    if path is not None:
        of_task = get_task(task)
        rows = [_problem(of_task, row, path, number) for number, row in enumerate(read_jsonl(path))]
        by_id: dict[str, Mapping[str, Any]] = {}
        for number, row in enumerate(rows):
            task_id = str(row.get("task_id", number))
            if task_id in by_id:
                raise UserError(
                    f"{path}:{number + 1}: task_id {task_id!r} is also that of an earlier problem, so it is "
                    "not clear which one samples answer; every problem needs its own task_id"
                )
            by_id[task_id] = row
            if (form := row.get("answers")) != (first := rows[0].get("answers")):
                raise UserError(
                    f"{path}:{number + 1}: answers: {form or 'boxed'!r}, where the first problem has "
                    f"{first or 'boxed'!r}; official scorers read one form: grade each in its own file"
                )
        notes = [str(row["substitute"]) for row in rows if "substitute" in row]
        provenance = {"source": "file", "substitute": bool(notes), "note": notes[0] if notes else ""}
        found = [Data(by_id, str(path), provenance, sha256(path.read_bytes()).hexdigest())]
    elif task not in DATA_SETS:
        raise UserError(_GENERATED.format(task=task, what="the file that was sampled"))
    else:
        first, *others = _splits(task, split)
        found = [_loaded(load(task, first))]
        if not ids <= set(found[0].problems):
            found += [_loaded(load(task, name)) for name in others]
    if path is None or all("task_id" in row for row in rows):
        by_ids = next((data for data in found if ids <= set(data.problems)), None)
        if by_ids is not None:
            return by_ids
    return _by_number(found, ids, samples)


def _problem(task: Task, row: Mapping[str, Any], path: Path, number: int) -> Mapping[str, Any]:
    """Returns a row of problems, which may be one of the public data set as published."""
    where = f"{path}:{number + 1}"
    if task.name not in DATA_SETS or (isinstance(row.get("prompt"), str) and task.answer_key in row):
        return task.checked(row, where)
    number = int(where.rpartition(":")[2]) - 1
    try:
        return DATA_SETS[task.name].convert(row, number).as_row()
    except (
        UserError,
        AttributeError,
        LookupError,
        StopIteration,
        SyntaxError,
        TypeError,
        ValueError,
    ) as error:
        reason = f"no field {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(
            f"{where}: neither a problem, with 'prompt' and {task.answer_key!r}, nor a row of {task.name} as "
            f"published ({reason})"
        ) from None


def _by_number(found: Sequence[Data], ids: set[str], samples: Path) -> Data:
    """Returns the problems by row number if the samples name them so, else by their own ids.

    Numbers without 0 might count from 1: then each sample would be judged by the problem before its own.
    """
    for data in found:
        rows = {str(number): row for number, row in enumerate(data.problems.values())}
        if ids <= {*rows, str(len(rows))}:
            if "0" not in ids:
                raise UserError(
                    f"{samples}: its task_ids ({_listed(sorted(ids, key=int))}) are not ids of problems in "
                    f"{data.source}, so they were read as row numbers; rows count from 0, and no sample "
                    "answers row 0. If yours count from 1, subtract 1; else name problems by their task_id"
                )
            if ids <= set(rows):
                return replace(data, problems=rows)
    return found[0]


def _loaded(data: Loaded) -> Data:
    rows = {problem.task_id: problem.as_row() for problem in data.problems}
    provenance = {"name": data.name, "split": data.split, **data.provenance}
    return Data(rows, f"{data.name} ({data.split})", provenance, provenance.get("sha256") or data.sha256)


def read_samples(path: Path) -> list[Sample]:
    """Reads samples; those with a number of their own (``sample``) may each occur once."""
    samples: list[Sample] = []
    lines: dict[tuple[str, str], int] = {}
    for number, row in enumerate(read_jsonl(path), start=1):
        if not isinstance(row.get("completion"), str):
            raise UserError(f"{path}:{number}: no text field 'completion'")
        if "task_id" not in row:
            raise UserError(f"{path}:{number}: no field 'task_id'")
        if "sample" in row:
            first = lines.setdefault((str(row["task_id"]), str(row["sample"])), number)
            if first != number:
                raise UserError(
                    f"{path}:{number}: sample {row['sample']!r} of task_id {row['task_id']!r} is in line "
                    f"{first}, too, and would count twice; remove one, or number them apart"
                )
        digest = row.get("prompt_digest")
        in_thought = row.get("in_thought") is True
        samples.append(Sample(str(row["task_id"]), row["completion"], in_thought, digest))
    return samples


def prompt_digests(path: Path, samples: Sequence[Sample]) -> dict[str, str]:
    """Returns the digest of each problem's prompt; refuses a problem whose samples had different prompts."""
    digests: dict[str, str] = {}
    for number, one in enumerate(samples, start=1):
        if one.prompt is not None and digests.setdefault(one.task_id, one.prompt) != one.prompt:
            raise UserError(
                f"{path}:{number}: the prompt of task_id {one.task_id!r} had other token ids "
                f"({one.prompt}) than in an earlier line ({digests[one.task_id]}): tokenizer, chat template "
                "or settings differed; grade the samples apart, or sample again"
            )
    return digests


def completions_by_problem(
    path: Path, samples: Sequence[Sample], data: Data, only_present: bool
) -> tuple[dict[str, list[str]], list[str]]:
    """Returns completions by task_id, in the order of the problems, and the problems that have none."""
    found: dict[str, list[str]] = {task_id: [] for task_id in data.problems}
    for number, one in enumerate(samples, start=1):
        if one.task_id not in found:
            raise UserError(f"{path}:{number}: task_id {one.task_id!r} is not in {data.source}")
        prompt = str(data.problems[one.task_id]["prompt"])
        found[one.task_id].append(judged_text(one.completion, prompt, in_thought=one.in_thought))
    missing = [task_id for task_id, texts in found.items() if not texts]
    if len(missing) == len(found):
        raise UserError(f"{path}: contains no samples")
    if missing and not only_present:
        raise UserError(
            f"{path}: {len(missing)} of {len(found)} problems have no sample ({_listed(missing)}); "
            f"add samples, or grade only the problems that have one (--only-present)"
        )
    return {task_id: texts for task_id, texts in found.items() if texts}, missing


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")
