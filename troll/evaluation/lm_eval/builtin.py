"""Which tasks of lm-eval score a data set, and their files for lm-eval's command line.

The package's (``tasks``) follow the paper in prompt, answers and number of samples, and cover every
mathematics set; lm-eval has but GSM8K, MATH, MATH-500 and AIME of these. Its own have its metrics, and on its
command line its prompts and few-shot examples too. None of them asks the hub here.
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
from troll.tasks.verifiers.math import last_boxed

TASKS = Path(__file__).parent / "tasks"
_TEMPLATE = TASKS / "troll_math500.yaml"

Columns = Callable[[Row], dict[str, Any]]


@dataclass(frozen=True)
class Scorer:
    """A task of lm-eval that scores a data set."""

    name: str  # lm-eval's name of the task
    file: Path
    columns: Columns  # a problem as a document of the task
    subject: str | None = None  # which problems it scores, by their ``type``; None for all
    # the metric that tables show first, as ``metric,filter``; None for a further opinion
    official: str | None = None
    own: bool = False  # whether it is the package's, which scores all samples of a problem at once


def scorers(task: str) -> list[Scorer]:
    """The tasks of lm-eval for a mathematics data set or ``chains``: the package's, then lm-eval's own.

    Of GSM8K, MATH, MATH-500 and AIME the official one is lm-eval's own, of the others the package's.
    """
    if task == "chains":
        return [Scorer("chains", TASKS / "chains.yaml", _own, own=True)]
    found = [
        Scorer(name, task_root() / file, columns, subject, official)
        for name, file, data_set, columns, subject, official in _STOCK
        if data_set == task
    ]
    official = None if any(one.official for one in found) else "pass@1,all"
    return [Scorer(own_name(task), _TEMPLATE, _own, official=official, own=True), *found]


def own_name(data_set: str) -> str:
    """The package's task of lm-eval for a data set."""
    return f"troll_{data_set.replace('-', '_')}"


def task_root() -> Path:
    """Where lm-eval's own tasks lie."""
    try:
        import lm_eval.tasks
    except ImportError as error:
        raise UserError(f"lm-eval: {error}; install it: pip install 'troll[evaluate]'") from None
    return Path(lm_eval.tasks.__file__).parent


def _own(row: Row) -> dict[str, Any]:
    return {"answer": row["answer"]}


def _gsm8k(row: Row) -> dict[str, Any]:
    return {"question": row["problem"], "answer": f"{row['solution']}\n#### {row['answer']}"}


def _math(row: Row) -> dict[str, Any]:
    solution, answer = str(row["solution"]), row["answer"]
    # lm-eval takes the answer from the solution, where it breaks without a box.
    if last_boxed(solution) is None and "\\boxed " not in solution:
        solution = f"{solution}\n\\boxed{{{answer}}}"
    return {"problem": row["problem"], "solution": solution, "answer": answer}


def _aime(row: Row) -> dict[str, Any]:
    text, answer = row["problem"], row["answer"]
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

_OWN_TOKENS = {"gsm8k": 2048}  # the longest response, where it is not that of the template
_BY_MATH_VERIFY = "math_verify,none"
# lm-eval's task: its file, our data set, the columns that it reads, the subject, the official metric
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
    """Writes all tasks, ready for lm-eval's ``--include_path``, and gives their names and groups.

    The package's tasks read their problems when lm-eval runs, from the same source as this package; lm-eval's
    own read files that are written here. Names of the package's start with ``troll_``; lm-eval's own have
    ``local_`` before them; and ``prompted_`` have those that ask as the package does, and score as lm-eval.
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
    """Writes YAML files that build on lm-eval's tasks and read local files, and those files.

    Gives the names: lm-eval's with ``local_`` or ``prompted_`` before them.
    """
    root = task_root()
    names: dict[str, list[str]] = {"local": [], "prompted": []}
    for name, file, data_set, columns, subject, _ in _STOCK:
        splits = {"test": load(data_set).problems}
        if name == "gsm8k":  # its examples come from the training split
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
"""What makes a task of lm-eval ask as this package does."""


def document(columns: Columns, row: Row) -> dict[str, Any]:
    """A problem as a document of lm-eval, with its name and the package's prompt."""
    return {"task_id": str(row["task_id"]), "prompt": row["prompt"], **columns(row)}


def of_subject(row: Row, subject: str | None) -> bool:
    """Whether a problem is of a subject of MATH: all are of None, those of no known one are of the first."""
    subjects = list(_SUBJECTS.values())
    own = row.get("type")
    return subject is None or (own if own in subjects else subjects[0]) == subject


def _write_task(path: Path, task: Mapping[str, Any]) -> None:
    # JSON is YAML.
    write_text(path, json.dumps(task, indent=2) + "\n")
