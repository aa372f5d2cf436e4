"""Grades samples: mathematics with math-verify and lm-eval, code with our own checker and evalplus."""

import importlib.metadata
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from troll.common.digests import digest_of_json
from troll.common.errors import UserError
from troll.common.files import write_json, write_jsonl
from troll.common.progress import say
from troll.evaluation.graded_input import (
    completions_by_problem,
    prompt_digests,
    read_problems,
    read_samples,
)
from troll.evaluation.partial_credit import with_rewards
from troll.evaluation.pass_at_k import mean_pass_at_k, reported_ks
from troll.tasks import testbed
from troll.tasks.datasets.catalogue import DATA_SETS
from troll.tasks.registry import get_task

# The data set whose special oracles evalplus applies, by task. Plus sets also get verdicts on base inputs.
_EVALPLUS = {"functions": "humaneval", "humaneval": "humaneval", "humaneval+": "humaneval", "mbpp+": "mbpp"}
_PLUS = ("functions", "humaneval+", "mbpp+")
# lm-eval adds in another order, so its means may differ from ours by rounding.
_METRIC_TOLERANCE = 1e-9
_SOURCE_CHARACTERS = 100


def grade(
    task: str,
    samples_path: Path,
    problems_path: Path | None,
    out: Path,
    *,
    only_present: bool = False,
    split: str | None = None,
) -> None:
    """Grades samples and writes the verdicts as JSON.

    Args:
        task: name of any task.
        samples_path: JSON lines with ``task_id`` and ``completion``, any number of them per task_id. Instead
            of the problems' own ids, all task_ids may be row numbers of the problems, counted from 0; then
            row 0 must be among them. Thoughts, and text after a written-out end-of-text token (such as
            ``<|im_end|>``), are not judged (`troll.tasks.responses.judged_text`).
        problems_path: the task's problems as JSON lines; None loads the data set of that name.
        out: JSON file to write. Its keys are ``task``, ``metrics`` (pass@1 and unbiased pass@k; for plus sets
            also base/pass@k; for public data also ``official/pass@k`` and the number of ``disagreements``;
            ``reward`` if it is a share of tests), ``problems`` (by task_id: ``passed`` and ``status`` of each
            sample in input order, and, if there are any, ``official``, the public scorer's verdicts, and
            ``reward``), ``official`` (the public scorer: version, tasks, metric, results and standard
            error), ``disagreements`` between graders, ``missing`` (problems without a sample), ``versions``,
            ``data`` (where the problems come from, and whether they are a substitute), ``data_sha256`` and,
            if the samples have them, ``prompts_sha256`` (a digest of the prompts' token ids, by problem). For
            public data,
            ``disagreements.jsonl`` beside it lists the disagreements with their prompts, and for code what
            evalplus says of the program that we extract (``evalplus_on_our_program``); for mathematics,
            ``lm_eval/`` beside it holds lm-eval's own files.
        only_present: leave out problems without a sample; otherwise they are an error.
        split: split of the data set; default ``test``, or ``all`` if the samples name problems outside it.
    """
    if task not in testbed.NAMES and task not in DATA_SETS:
        raise UserError(f"cannot grade task {task!r}; valid: {', '.join((*testbed.NAMES, *DATA_SETS))}")
    samples = read_samples(samples_path)
    data = read_problems(task, problems_path, split, {one.task_id for one in samples}, samples_path)
    completions, missing = completions_by_problem(samples_path, samples, data, only_present)
    present = {task_id: data.problems[task_id] for task_id in completions}
    kind = DATA_SETS[task].kind if task in DATA_SETS else get_task(task).kind
    if kind == "code":
        verdicts = with_rewards(_grade_code(task, present, completions), present, completions)
    else:
        source = samples_path.parent.as_posix()[-_SOURCE_CHARACTERS:].strip("./") or "samples"
        verdicts = _grade_math(task, present, completions, sibling_path(out, "lm_eval"), source)
    if task in DATA_SETS:
        listed = ({**row, "prompt": present[row["task_id"]]["prompt"]} for row in verdicts["disagreements"])
        write_jsonl(sibling_path(out, "disagreements.jsonl"), listed)
    about = {"missing": missing, "data": data.provenance, "data_sha256": data.sha256}
    if digests := prompt_digests(samples_path, samples):
        about["prompts_sha256"] = digest_of_json(digests)
    write_json(out, {"task": task, **verdicts, **about})


def sibling_path(grades: Path, name: str) -> Path:
    """Returns the path beside a grades file: ``lm_eval`` for grades.json, ``x.lm_eval`` for x.grades.json."""
    return grades.with_name(f"{grades.stem.removesuffix('grades').rstrip('.')}.{name}".removeprefix("."))


def _metrics(passed: Mapping[str, Sequence[bool]], prefix: str = "") -> dict[str, float]:
    counts = [(len(flags), sum(flags)) for flags in passed.values()]
    ks = reported_ks(min(samples for samples, _ in counts))
    return {f"{prefix}pass@{k}": mean_pass_at_k(counts, k) for k in ks}


def _grade_math(
    task: str,
    problems: Mapping[str, Mapping[str, Any]],
    completions: Mapping[str, list[str]],
    out: Path,
    source: str,
) -> dict[str, Any]:
    from troll.evaluation.lm_eval.builtin import scorers
    from troll.evaluation.lm_eval.replay import replay
    from troll.tasks.verifiers.math import form_of, judge_math

    forms = {task_id: form_of(problem) for task_id, problem in problems.items()}
    form = next(iter(forms.values()))
    tasks = scorers(task, form) if task in DATA_SETS or task == "chains" else []
    flat = [(task_id, text) for task_id, texts in completions.items() for text in texts]
    answers = [str(problems[task_id]["answer"]) for task_id, _ in flat]
    judged = iter(judge_math(answers, [text for _, text in flat], forms=[forms[name] for name, _ in flat]))
    statuses = {task_id: [next(judged) for _ in texts] for task_id, texts in completions.items()}
    passed = {task_id: [status == "passed" for status in found] for task_id, found in statuses.items()}
    rows: dict[str, dict[str, Any]] = {
        name: {"passed": passed[name], "status": statuses[name]} for name in completions
    }
    result: dict[str, Any] = {"metrics": _metrics(passed), "problems": rows, "disagreements": []}
    result["versions"] = _versions(*(["lm_eval"] if tasks else []), "math-verify", "sympy")
    if not tasks:
        return result
    public = task in DATA_SETS
    scored = replay(tasks, problems, completions, out=out if public else None, source=source)
    own = {
        key.removesuffix(",all"): found["value"]
        for key, found in scored.results[tasks[0].name]["metrics"].items()
    }
    if "pass@1" not in own:
        raise RuntimeError(f"lm-eval returned no pass@1, only {sorted(own)}")
    apart = [
        {"metric": name, "lm_eval": value, "troll": result["metrics"][name]}
        for name, value in own.items()
        if abs(value - result["metrics"][name]) > _METRIC_TOLERANCE
    ]
    if not public:
        return {**result, "metrics": result["metrics"] | own, "disagreements": apart}
    if apart:  # the task calls our own judge
        raise RuntimeError(f"lm-eval's task {tasks[0].name} disagrees with the judge that it calls: {apart}")
    official_tasks = [one for one in tasks if one.official and one.name in scored.results]
    verdicts = {
        task_id: [value == 1.0 for value in values]
        for one in official_tasks
        for task_id, values in scored.samples[one.name][str(one.official)].items()
    }
    disagreements = [
        {
            "task_id": task_id,
            "completion": text,
            "samples": [number for number, other in enumerate(texts) if other == text],
            "answer": str(problems[task_id]["answer"]),
            "troll": {"passed": passed[task_id][index], "status": statuses[task_id][index]},
            "lm_eval": {"passed": verdicts[task_id][index]},
        }
        for task_id, texts in completions.items()
        for index, text in enumerate(texts)
        if verdicts[task_id][index] != passed[task_id][index] and texts.index(text) == index
    ]
    about = {
        "scorer": "lm-eval",
        "version": importlib.metadata.version("lm_eval"),
        "tasks": [one.name for one in official_tasks],
        "metric": str(official_tasks[0].official),
    }
    official = _official(about, verdicts, result, disagreements)
    return {**result, **official, "lm_eval": scored.results, "lm_eval_failures": scored.failures}


def _official(
    about: Mapping[str, Any],
    verdicts: Mapping[str, list[bool]],
    result: Mapping[str, Any],
    disagreements: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Returns what the public scorer adds to the grades: its results, and its disagreements with ours."""
    metrics = _metrics(verdicts)
    means = [sum(flags) / len(flags) for flags in verdicts.values()]
    error = statistics.stdev(means) / len(means) ** 0.5 if len(means) > 1 else None
    rows = {name: {**row, "official": verdicts[name]} for name, row in result["problems"].items()}
    return {
        "metrics": {
            **result["metrics"],
            **{f"official/{name}": value for name, value in metrics.items()},
            "disagreements": sum(len(row["samples"]) for row in disagreements),
        },
        "problems": rows,
        "official": {**about, **metrics, "stderr": error, "n": len(means)},
        "disagreements": list(disagreements),
    }


def _grade_code(
    task: str, problems: Mapping[str, Mapping[str, Any]], completions: Mapping[str, list[str]]
) -> dict[str, Any]:
    from troll.evaluation.evalplus.check import Extraction, evalplus_verdicts, evalplus_version
    from troll.tasks.sandbox.pool import sandbox_available
    from troll.tasks.verifiers import code

    dataset = _EVALPLUS.get(task)
    if dataset is not None:
        evalplus_version()
    available, reason = sandbox_available()
    if not available:
        raise UserError(reason)
    unique = list(dict.fromkeys((task_id, text) for task_id, texts in completions.items() for text in texts))
    records = {task_id: {**problem, "task_id": task_id} for task_id, problem in problems.items()}
    as_written = task not in DATA_SETS and get_task(task).as_written
    how: Extraction = "evalplus" if task in DATA_SETS else "as_written" if as_written else "troll"
    with ThreadPoolExecutor(1) as side:
        theirs_later = None
        if dataset is not None:
            theirs_later = side.submit(evalplus_verdicts, dataset, records, unique, extraction=how)
        judged = code.verify_code(
            [records[task_id] for task_id, _ in unique],
            [text for _, text in unique],
            as_written=as_written,
        )
        ours = dict(zip(unique, judged, strict=True))
        theirs = dict(zip(unique, theirs_later.result(), strict=True)) if theirs_later else {}
    for (task_id, _), verdict in ours.items():
        if verdict.status == "infrastructure":
            raise UserError(
                f"sandbox: failed while judging a sample of {task_id} ({verdict.detail}); "
                f"no grades are written, because the fault is not the sample's"
            )
    incomparable = [
        {"task_id": task_id, "completion": text, "reason": verdict.detail}
        for (task_id, text), verdict in ours.items()
        if verdict.status == "incomparable"
    ]
    if incomparable:
        say(
            f"grade: {len(incomparable)} samples count as wrong because their outputs cannot be compared; "
            f"the first: {incomparable[0]['reason']}"
        )
    differ = [
        key for key in theirs if (ours[key].base, ours[key].passed) != (theirs[key].base, theirs[key].passed)
    ]
    disagreements: list[dict[str, Any]] = [
        {
            "task_id": key[0],
            "completion": key[1],
            "samples": [number for number, text in enumerate(completions[key[0]]) if text == key[1]],
            "troll": {"base": ours[key].base, "passed": ours[key].passed, "status": ours[key].status},
            "evalplus": {"base": theirs[key].base, "passed": theirs[key].passed},
        }
        for key in differ
    ]
    if dataset is not None and task in DATA_SETS:  # tells differences of extraction from those of judgement
        again = evalplus_verdicts(dataset, records, differ, extraction="troll") if differ else []
        for row, said in zip(disagreements, again, strict=True):
            row["evalplus_on_our_program"] = {"base": said.base, "passed": said.passed}

    def flags(verdicts: Mapping[tuple[str, str], Any], field: str) -> dict[str, list[bool]]:
        return {
            task_id: [bool(getattr(verdicts[task_id, text], field)) for text in texts]
            for task_id, texts in completions.items()
        }

    def metrics(verdicts: Mapping[tuple[str, str], Any]) -> dict[str, float]:
        base = _metrics(flags(verdicts, "base"), "base/") if task in _PLUS else {}
        return _metrics(flags(verdicts, "passed")) | base

    rows: dict[str, dict[str, Any]] = {
        task_id: {"passed": passed, "status": [ours[task_id, text].status for text in completions[task_id]]}
        for task_id, passed in flags(ours, "passed").items()
    }
    if task in _PLUS:
        rows = {task_id: {**rows[task_id], "base": base} for task_id, base in flags(ours, "base").items()}
    packages = ("evalplus",) if dataset else ()
    result = {
        "metrics": metrics(ours),
        "problems": rows,
        "disagreements": disagreements,
        "incomparable": incomparable,
        "versions": {**_versions(*packages), "bubblewrap": _bubblewrap_version()},
    }
    if not theirs:
        return result
    result["evalplus"] = metrics(theirs)
    if task not in DATA_SETS:
        return result
    about = {
        "scorer": "evalplus",
        "version": evalplus_version(),
        "tasks": [dataset],
        "metric": "plus" if task in _PLUS else "base",
    }
    return {**result, **_official(about, flags(theirs, "passed"), result, disagreements)}


def _versions(*packages: str) -> dict[str, str]:
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("troll", *packages)},
    }


def _bubblewrap_version() -> str:
    output = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=False)
    return output.stdout.strip().removeprefix("bubblewrap ")
