"""Grades samples: mathematics through lm-eval and math-verify, code through our checker and evalplus."""

import importlib.metadata
import platform
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

from troll.errors import UserError
from troll.evaluation.pass_at_k import mean_pass_at_k, reported_ks
from troll.files import read_jsonl, write_json

_MATH_TASKS = ("chains",)
# and the data set whose special rules evalplus applies
_CODE_TASKS = {"functions": "humaneval", "humaneval+": "humaneval", "mbpp+": "mbpp"}
# lm-eval and our own sum agree but for the order of additions
_METRIC_TOLERANCE = 1e-9


def grade(
    task: str, samples_path: Path, problems_path: Path, out: Path, *, only_present: bool = False
) -> None:
    """Grades samples and writes the verdicts as JSON.

    Args:
        task: ``chains``, ``functions``, ``humaneval+`` or ``mbpp+``.
        samples_path: JSON lines with ``task_id`` and ``completion``; several per task_id are allowed.
        problems_path: the task's problems as JSON lines.
        out: gets ``task``, ``metrics`` (pass@1 and unbiased pass@k, for code also base/pass@k), ``problems``
            (by task_id: ``passed`` and ``status`` of each sample, in input order), ``disagreements`` between
            graders, ``missing`` (problems without a sample), ``versions`` and ``data_sha256``.
        only_present: leave problems without a sample out; otherwise they are an error.

    Raises:
        UserError: unknown task, unusable or unknown samples, problems without a sample, or a missing tool
            (for code: the sandbox; code is judged in no other way).
    """
    if task not in (*_MATH_TASKS, *_CODE_TASKS):
        raise UserError(f"cannot grade task {task!r}; valid: {', '.join((*_MATH_TASKS, *_CODE_TASKS))}")
    problems = {str(row.get("task_id", number)): row for number, row in enumerate(read_jsonl(problems_path))}
    completions, missing = _read_samples(samples_path, problems, problems_path, only_present)
    present = {task_id: problems[task_id] for task_id in completions}
    if task in _MATH_TASKS:
        verdicts = _grade_math(task, present, problems_path, completions, whole=not missing)
    else:
        verdicts = _grade_code(_CODE_TASKS[task], present, completions)
    write_json(
        out,
        {
            "task": task,
            **verdicts,
            "missing": missing,
            "data_sha256": sha256(problems_path.read_bytes()).hexdigest(),
        },
    )


def _read_samples(
    path: Path, problems: Mapping[str, Any], problems_path: Path, only_present: bool
) -> tuple[dict[str, list[str]], list[str]]:
    """Completions by task_id in the order of the problems, and the problems that have none."""
    found: dict[str, list[str]] = {task_id: [] for task_id in problems}
    for number, row in enumerate(read_jsonl(path), start=1):
        task_id, completion = row.get("task_id"), row.get("completion")
        if not isinstance(completion, str):
            raise UserError(f"{path}:{number}: no text field 'completion'")
        if str(task_id) not in found:
            raise UserError(f"{path}:{number}: task_id {task_id!r} is not in {problems_path}")
        found[str(task_id)].append(completion)
    missing = [task_id for task_id, texts in found.items() if not texts]
    if len(missing) == len(found):
        raise UserError(f"{path}: holds no samples")
    if missing and not only_present:
        names = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise UserError(
            f"{path}: {len(missing)} of {len(found)} problems have no sample ({names}); add them, or grade "
            f"only the problems present"
        )
    return {task_id: texts for task_id, texts in found.items() if texts}, missing


def _metrics(passed: Mapping[str, Sequence[bool]], prefix: str = "") -> dict[str, float]:
    counts = [(len(flags), sum(flags)) for flags in passed.values()]
    ks = reported_ks(min(samples for samples, _ in counts))
    return {f"{prefix}pass@{k}": mean_pass_at_k(counts, k) for k in ks}


def _grade_math(
    task: str,
    problems: Mapping[str, Mapping[str, Any]],
    path: Path,
    completions: Mapping[str, list[str]],
    whole: bool,
) -> dict[str, Any]:
    from troll.tasks.verifiers.math import judge_math

    flat = [(task_id, text) for task_id, texts in completions.items() for text in texts]
    answers = [str(problems[task_id]["answer"]) for task_id, _ in flat]
    judged = iter(judge_math(answers, [text for _, text in flat]))
    statuses = {task_id: [next(judged) for _ in texts] for task_id, texts in completions.items()}
    passed = {task_id: [status == "passed" for status in found] for task_id, found in statuses.items()}
    metrics = _metrics(passed)
    disagreements = []
    if whole:
        from troll.evaluation.lm_eval_replay import replay

        theirs = replay(task, path, completions)
        disagreements = [
            {"metric": name, "lm_eval": value, "troll": metrics[name]}
            for name, value in theirs.items()
            if abs(value - metrics[name]) > _METRIC_TOLERANCE
        ]
        metrics.update(theirs)
        if "pass@1" not in theirs:
            raise RuntimeError(f"lm-eval returned no pass@1 but {sorted(theirs)}")
    return {
        "metrics": metrics,
        "problems": {name: {"passed": passed[name], "status": statuses[name]} for name in completions},
        "disagreements": disagreements,
        "versions": _versions("lm_eval", "math-verify", "sympy"),
    }


def _grade_code(
    dataset: str, problems: Mapping[str, Mapping[str, Any]], completions: Mapping[str, list[str]]
) -> dict[str, Any]:
    from troll.evaluation.evalplus_check import evalplus_verdicts, evalplus_version
    from troll.tasks.sandbox import sandbox_available
    from troll.tasks.verifiers.code import verify_code

    evalplus_version()
    available, reason = sandbox_available()
    if not available:
        raise UserError(reason)
    unique = list(dict.fromkeys((task_id, text) for task_id, texts in completions.items() for text in texts))
    records = {task_id: {**problem, "task_id": task_id} for task_id, problem in problems.items()}
    programs = [(task_id, str(records[task_id]["prompt"]) + text) for task_id, text in unique]
    with ThreadPoolExecutor(1) as side:
        theirs_later = side.submit(evalplus_verdicts, dataset, records, programs)
        ours = dict(
            zip(
                unique,
                verify_code([records[task_id] for task_id, _ in unique], [text for _, text in unique]),
                strict=True,
            )
        )
        theirs = dict(zip(unique, theirs_later.result(), strict=True))
    for (task_id, _), verdict in ours.items():
        if verdict.status == "infrastructure":
            raise UserError(
                f"sandbox: failed while judging a sample of {task_id} ({verdict.detail}); "
                f"nothing is graded, since that says nothing about the sample"
            )
    disagreements = [
        {
            "task_id": key[0],
            "completion": key[1],
            "samples": [number for number, text in enumerate(completions[key[0]]) if text == key[1]],
            "troll": {"base": ours[key].base, "passed": ours[key].passed, "status": ours[key].status},
            "evalplus": {"base": theirs[key].base, "passed": theirs[key].passed},
        }
        for key in unique
        if (ours[key].base, ours[key].passed) != (theirs[key].base, theirs[key].passed)
    ]
    found = {task_id: [ours[task_id, text] for text in texts] for task_id, texts in completions.items()}
    passed = {task_id: [verdict.passed for verdict in verdicts] for task_id, verdicts in found.items()}
    base = {task_id: [verdict.base for verdict in verdicts] for task_id, verdicts in found.items()}
    evalplus_passed = {
        task_id: [bool(theirs[task_id, text].passed) for text in texts]
        for task_id, texts in completions.items()
    }
    return {
        "metrics": {**_metrics(passed), **_metrics(base, "base/")},
        "evalplus": _metrics(evalplus_passed),
        "problems": {
            task_id: {
                "passed": passed[task_id],
                "base": base[task_id],
                "status": [verdict.status for verdict in verdicts],
            }
            for task_id, verdicts in found.items()
        },
        "disagreements": disagreements,
        "versions": {**_versions("evalplus"), "bubblewrap": _bubblewrap_version()},
    }


def _versions(*packages: str) -> dict[str, str]:
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("troll", *packages)},
    }


def _bubblewrap_version() -> str:
    output = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=False)
    return output.stdout.strip().removeprefix("bubblewrap ")
