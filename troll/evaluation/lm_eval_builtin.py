"""lm-eval's own tasks on our data: its prompts, few-shot examples and metrics, without its downloads.

For a second opinion beside the tasks in ``lm_eval_tasks``, whose prompt and answers follow the paper.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from troll.errors import UserError
from troll.files import write_jsonl, write_text
from troll.tasks.datasets.load import load
from troll.tasks.registry import Problem

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
    "minerva_math500": ("minerva_math/minerva_math500.yaml", "math500", _math),
    "hendrycks_math500": ("hendrycks_math/hendrycks_math500.yaml", "math500", _math),
    "aime24": ("aime/aime24.yaml", "aime24", _aime),
    "aime25": ("aime/aime25.yaml", "aime25", _aime),
}


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
