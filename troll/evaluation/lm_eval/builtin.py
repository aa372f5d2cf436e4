"""Tasks for lm-eval in one directory: the package's own, and lm-eval's own on local data.

The package's (``tasks``) follow the paper in prompt, answers and number of samples, and cover all
seven sets of its MATH Eval; lm-eval has but MATH-500 and AIME of these. Its own tasks, with its prompts,
few-shot examples and metrics, are for a second opinion, without its downloads.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from troll.common.errors import UserError
from troll.common.files import write_jsonl, write_text
from troll.evaluation.lm_eval.replay import TASKS
from troll.tasks.datasets.load import load
from troll.tasks.types import Problem

Columns = Callable[[Problem], dict[str, Any]]


def _gsm8k(problem: Problem) -> dict[str, Any]:
    record = problem.record
    return {"question": record["problem"], "answer": f"{record['solution']}\n#### {problem.answer}"}


def _math(problem: Problem) -> dict[str, Any]:
    record = problem.record
    return {"problem": record["problem"], "solution": record["solution"], "answer": problem.answer}


def _aime(problem: Problem) -> dict[str, Any]:
    text = problem.record["problem"]
    return {"Problem": text, "problem": text, "Answer": problem.answer, "answer": problem.answer}


# lm-eval's task: its file, our data set, the columns that it reads
_BUILTIN: Mapping[str, tuple[str, str, Columns]] = {
    "gsm8k": ("gsm8k/gsm8k.yaml", "gsm8k", _gsm8k),
    "minerva_math": ("minerva_math/minerva_math_algebra.yaml", "math", _math),
    "hendrycks_math": ("hendrycks_math/hendrycks_math_algebra.yaml", "math", _math),
    "minerva_math500": ("minerva_math/minerva_math500.yaml", "math500", _math),
    "hendrycks_math500": ("hendrycks_math/hendrycks_math500.yaml", "math500", _math),
    "aime24": ("aime/aime24.yaml", "aime24", _aime),
    "aime25": ("aime/aime25.yaml", "aime25", _aime),
}


def write_tasks(out: Path) -> list[str]:
    """Writes all tasks, ready for lm-eval's ``--include_path``.

    The package's tasks read their problems when lm-eval runs, from the same source as this package; lm-eval's
    own read files that are written here.

    Args:
        out: directory.

    Returns:
        Names of the tasks and groups: the package's, which start with ``troll_``, then lm-eval's with
        ``local_`` before them.

    Raises:
        UserError: lm-eval is not installed, or a data set has no source.
    """
    names = []
    for path in sorted(TASKS.glob("troll_*.yaml")):
        write_text(out / path.name, path.read_text(encoding="utf-8"))
        names.append(path.stem)
    functions = TASKS / "functions.py"
    write_text(out / functions.name, functions.read_text(encoding="utf-8"))
    return [*names, *write_builtin_tasks(out)]


def write_builtin_tasks(out: Path) -> list[str]:
    """Writes YAML files that build on lm-eval's tasks and read local files, and those files.

    Args:
        out: directory; name it in lm-eval's ``--include_path``.

    Returns:
        Names of the tasks, lm-eval's with ``local_`` before them.

    Raises:
        UserError: lm-eval is not installed, or a data set has no source.
    """
    try:
        import lm_eval.tasks
    except ImportError:
        raise UserError("lm-eval: not installed; install it: pip install 'troll[evaluate]'") from None
    root = Path(lm_eval.tasks.__file__).parent
    names = []
    for name, (file, data_set, columns) in _BUILTIN.items():
        splits = {"test": load(data_set).problems}
        if name == "gsm8k":  # its examples come from the training split
            splits["train"] = load(data_set, "train").problems
        files = {}
        for split, problems in splits.items():
            path = (out / f"{name}.{split}.jsonl").resolve()
            write_jsonl(path, map(columns, problems))
            files[split] = str(path)
        task = {
            "include": str(root / file),
            "task": f"local_{name}",
            "dataset_path": "json",
            "dataset_name": None,
            "dataset_kwargs": {"data_files": files},
            "training_split": "train" if "train" in files else None,
            "fewshot_split": "train" if "train" in files else None,
            "test_split": "test",
        }
        # JSON is YAML.
        write_text(out / f"local_{name}.yaml", json.dumps(task, indent=2) + "\n")
        names.append(f"local_{name}")
    return names
