"""Chooses the lm-eval tasks that score a data set, and writes task files for lm-eval's command line.

Our tasks (``tasks/``) follow the paper in prompt, answers and number of samples, and cover every mathematics
data set; of these, lm-eval's own tasks cover GSM8K, MATH, MATH-500 and AIME. Those use lm-eval's metrics and,
on its command line, its prompts and few-shot examples. None of them downloads from the hub here.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from troll.common.errors import UserError
from troll.common.files import write_jsonl, write_text
from troll.tasks.datasets.catalogue import DATA_SETS, MATH_EVAL
from troll.tasks.datasets.convert import Row
from troll.tasks.datasets.load import load
from troll.tasks.verifiers.math import Form, last_boxed

TASKS = Path(__file__).parent / "tasks"
_TEMPLATE = TASKS / "troll_math500.yaml"

Columns = Callable[[Row], dict[str, Any]]


@dataclass(frozen=True)
class Scorer:
    """An lm-eval task that scores a data set."""

    name: str  # in lm-eval
    file: Path
    columns: Columns  # turns a problem into a document of the task
    subject: str | None = None  # scores the problems of this ``type``; None scores all
    # the official metric, as ``metric,filter``; None if another task gives the official verdicts
    official: str | None = None
    own: bool = False  # one of our tasks, which score all samples of a problem at once


def scorers(task: str, form: Form = "boxed") -> list[Scorer]:
    """Returns the lm-eval tasks for a mathematics data set or ``chains``: ours, then lm-eval's own.

    ``form`` is how answers are written: with ``####``, the official filter of GSM8K is the strict one. For
    GSM8K, MATH, MATH-500 and AIME lm-eval's own task is the official one, for other data sets ours.
    """
    if task == "chains":
        return [Scorer("chains", TASKS / "chains.yaml", _own, own=True)]
    found = [
        Scorer(name, task_root() / file, columns, subject, _STRICT if form == "####" else official)
        for name, file, data_set, columns, subject, official in _STOCK
        if data_set == task
    ]
    official = None if any(one.official for one in found) else "pass@1,all"
    return [Scorer(own_name(task), _TEMPLATE, _own, official=official, own=True), *found]


def own_name(data_set: str) -> str:
    """Returns the name of our lm-eval task for a data set."""
    return f"troll_{data_set.replace('-', '_')}"


def task_root() -> Path:
    """Returns the directory of lm-eval's own tasks."""
    try:
        import lm_eval.tasks
    except ImportError as error:
        raise UserError(f"lm-eval: {error}; install it: pip install 'troll[evaluate]'") from None
    return Path(lm_eval.tasks.__file__).parent


def _own(row: Row) -> dict[str, Any]:
    return {key: row[key] for key in ("answer", "answers") if key in row}


def _question(row: Row) -> Any:
    """Returns the question; problems of a user may only have a prompt, and no solution."""
    return row.get("problem", row["prompt"])


def _gsm8k(row: Row) -> dict[str, Any]:
    return {"question": _question(row), "answer": f"{row.get('solution', '')}\n#### {row['answer']}"}


def _math(row: Row) -> dict[str, Any]:
    solution, answer = str(row.get("solution", "")), row["answer"]
    # lm-eval takes the answer from the solution, and fails if that has no box.
    if last_boxed(solution) is None and "\\boxed " not in solution:
        solution = f"{solution}\n\\boxed{{{answer}}}"
    return {"problem": _question(row), "solution": solution, "answer": answer}


def _aime(row: Row) -> dict[str, Any]:
    text, answer = _question(row), row["answer"]
    return {"Problem": text, "problem": text, "Answer": answer, "answer": answer}


_SUBJECTS: Mapping[str, str] = {
    "algebra": "Algebra",
    "counting_and_prob": "Counting & Probability",
    "geometry": "Geometry",
    "intermediate_algebra": "Intermediate Algebra",
    "num_theory": "Number Theory",
    "prealgebra": "Prealgebra",
    "precalc": "Precalculus",
}
"""lm-eval's names of MATH's subjects, and the data set's."""

_STRICT = "exact_match,strict-match"  # the number after ``####``
_OWN_TOKENS = {"gsm8k": 2048}  # longest response in tokens, if not the template's
_BY_MATH_VERIFY = "math_verify,none"
# lm-eval's own tasks: name, file, our data set, the columns that it reads, subject, official metric
_STOCK: Sequence[tuple[str, str, str, Columns, str | None, str | None]] = (
    ("gsm8k", "gsm8k/gsm8k.yaml", "gsm8k", _gsm8k, None, "exact_match,flexible-extract"),
    *(
        (f"{kind}_math_{name}", f"{kind}_math/{kind}_math_{name}.yaml", "math", _math, subject, official)
        for kind, official in (("minerva", _BY_MATH_VERIFY), ("hendrycks", None))
        for name, subject in _SUBJECTS.items()
    ),
    ("minerva_math500", "minerva_math/minerva_math500.yaml", "math500", _math, None, _BY_MATH_VERIFY),
    ("hendrycks_math500", "hendrycks_math/hendrycks_math500.yaml", "math500", _math, None, None),
    ("aime24", "aime/aime24.yaml", "aime24", _aime, None, "exact_match,none"),
    ("aime25", "aime/aime25.yaml", "aime25", _aime, None, "exact_match,none"),
)


def write_tasks(out: Path) -> list[str]:
    """Writes all tasks for lm-eval's ``--include_path``, and returns the names of tasks and groups.

    Our tasks, named ``troll_*``, load their problems when lm-eval runs, from the same source as this package.
    lm-eval's own tasks read files that are written here: ``local_*`` with lm-eval's prompts, ``prompted_*``
    with ours.
    """
    for name in ("functions.py", _TEMPLATE.name, "troll_math_eval.yaml"):
        write_text(out / name, (TASKS / name).read_text(encoding="utf-8"))
    names = [_TEMPLATE.stem, "troll_math_eval"]
    text = _TEMPLATE.read_text(encoding="utf-8").replace("!function ", "")
    generation = yaml.safe_load(text)["generation_kwargs"]
    for data_set in DATA_SETS.values():
        name = own_name(data_set.name)
        if data_set.kind != "math" or name in names:
            continue
        task: dict[str, Any] = {"include": _TEMPLATE.name, "task": name}
        task["dataset_kwargs"] = {"data_set": data_set.name}
        task["repeats"] = MATH_EVAL.get(data_set.name, 1)
        if data_set.name in _OWN_TOKENS:
            task["generation_kwargs"] = {**generation, "max_gen_toks": _OWN_TOKENS[data_set.name]}
        _write_task(out / f"{name}.yaml", task)
        names.append(name)
    return [*sorted(names), *write_builtin_tasks(out)]


def write_builtin_tasks(out: Path) -> list[str]:
    """Writes lm-eval's own tasks as YAML files that read local data files, and those data files.

    Returns the names of the tasks: lm-eval's, prefixed by ``local_`` or ``prompted_``.
    """
    root = task_root()
    names: dict[str, list[str]] = {"local": [], "prompted": []}
    for name, file, data_set, columns, subject, _ in _STOCK:
        splits = {"test": load(data_set).problems}
        if name == "gsm8k":  # its few-shot examples come from the training split
            splits["train"] = load(data_set, "train").problems
        files = {}
        for split, problems in splits.items():
            rows = [problem.as_row() for problem in problems]
            path = (out / f"{name}.{split}.jsonl").resolve()
            write_jsonl(path, (document(columns, row) for row in rows if of_subject(row, subject)))
            files[split] = str(path)
        for kind in names:
            task = {
                "include": str(root / file),
                "task": f"{kind}_{name}",
                "dataset_path": "json",
                "dataset_name": None,
                "dataset_kwargs": {"data_files": files},
                "training_split": "train" if "train" in files else None,
                "fewshot_split": "train" if "train" in files else None,
                "test_split": "test",
                **(PROMPTED if kind == "prompted" else {}),
            }
            _write_task(out / f"{kind}_{name}.yaml", task)
            names[kind].append(f"{kind}_{name}")
    return [*names["local"], *names["prompted"]]


PROMPTED: Mapping[str, Any] = {
    "doc_to_text": "{{prompt}}",
    "target_delimiter": "",
    "num_fewshot": 0,
    "fewshot_split": None,
    "fewshot_config": None,
}
"""Settings with which a task of lm-eval uses our prompts."""


def document(columns: Columns, row: Row) -> dict[str, Any]:
    """Returns a problem as a document of lm-eval, with its task_id and our prompt."""
    return {"task_id": str(row["task_id"]), "prompt": row["prompt"], **columns(row)}


def of_subject(row: Row, subject: str | None) -> bool:
    """Tells whether a problem is of a subject of MATH; None fits all, unknown subjects count as the first."""
    subjects = list(_SUBJECTS.values())
    own = row.get("type")
    return subject is None or (own if own in subjects else subjects[0]) == subject


def _write_task(path: Path, task: Mapping[str, Any]) -> None:
    # JSON is YAML.
    write_text(path, json.dumps(task, indent=2) + "\n")
