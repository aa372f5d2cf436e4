"""Runs lm-eval on recorded samples, and writes its results in its own file formats."""

import contextlib
import importlib.metadata
import io
import logging
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from troll.common.errors import UserError
from troll.common.files import fresh_directory
from troll.evaluation.lm_eval.builtin import PROMPTED, Scorer, document, of_subject
from troll.evaluation.lm_eval.scores import scores
from troll.evaluation.lm_eval.tasks.functions import NO_SAMPLE

_AT_ONCE = "chains"
"""Our task that scores all samples of a problem at once, for its pass@k."""


@dataclass(frozen=True)
class Scored:
    """lm-eval's results on recorded samples."""

    # by task: ``version``, ``n`` (problems), ``hash`` of documents, prompts and targets (if files are
    # written) and ``metrics``: by ``metric,filter``, its ``value`` and ``stderr`` (over problems; None if
    # there is only one)
    results: dict[str, dict[str, Any]]
    # by task, ``metric,filter`` and task_id: the metric of each sample. ``chains``, which scores all samples
    # of a problem at once, has none
    samples: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)
    # by task: number of samples on which lm-eval's scoring function failed; they count as wrong
    failures: dict[str, int] = field(default_factory=dict)


def replay(
    tasks: Sequence[Scorer],
    problems: Mapping[str, Mapping[str, Any]],
    completions: Mapping[str, Sequence[str]],
    *,
    out: Path | None = None,
    source: str = "recorded",
) -> Scored:
    """Evaluates recorded completions with lm-eval, as if a model had just generated them.

    lm-eval's own tasks score one response to a problem, so every sample is a document of its own here. Of
    these, the problem gets the mean: returned values and errors are over problems, those in lm-eval's
    files over samples. Responses are cut at the task's stop strings.

    Args:
        tasks: lm-eval tasks that score the same data set.
        problems: rows by task_id.
        completions: by task_id; problems without any are left out.
        out: directory for lm-eval's files, ``results_*.json`` and ``samples_*.jsonl``; replaced if it exists.
            None writes nothing.
        source: where the samples come from; lm-eval's files name it as the model.
    """
    try:
        from lm_eval.evaluator import evaluate
    except ImportError as error:
        raise UserError(f"lm-eval: {error}; install it: pip install 'troll[evaluate]'") from None
    import datasets

    started = time.time()
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    rows = [{**problems[task_id], "task_id": task_id} for task_id, texts in completions.items() if texts]
    scored = Scored({})
    built = {}
    for one in tasks:
        chosen = [row for row in rows if of_subject(row, one.subject)]
        if chosen:
            built[one.name] = _build(one, chosen, completions, scored)
    # Not simple_evaluate, which also spends seconds on collecting facts about the environment. Standard error
    # would only show progress bars.
    with contextlib.redirect_stderr(io.StringIO()):
        results = evaluate(lm=_replayed(completions), task_dict={"tasks": built}, log_samples=True)
    for name in built:
        found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for sample in results["samples"][name]:
            for metric in sample["metrics"]:
                key, task_id = f"{metric},{sample['filter']}", sample["doc"]["task_id"]
                found[key][task_id].append(float(sample[metric]))
        if name != _AT_ONCE:
            scored.samples[name] = {key: dict(values) for key, values in found.items()}
        scored.results[name] = {
            "version": results["versions"][name],
            "n": len({sample["doc"]["task_id"] for sample in results["samples"][name]}),
            "metrics": {key: _over_problems(values.values()) for key, values in found.items()},
        }
    if out is not None:
        results["config"] = {"model": "recorded samples", "model_args": {"path": source}, "limit": None}
        results |= {"date": started, "lm_eval_version": importlib.metadata.version("lm_eval")}
        _write(results, out, source)
        for name, result in scored.results.items():
            result["hash"] = results["task_hashes"][name]
    return scored


def _over_problems(values: Iterable[Sequence[float]]) -> dict[str, float | None]:
    """Mean and standard error over problems of the means of their samples."""
    means = [statistics.fmean(of_problem) for of_problem in values]
    error = statistics.stdev(means) / len(means) ** 0.5 if len(means) > 1 else None
    return {"value": statistics.fmean(means), "stderr": error}


def _build(
    one: Scorer,
    rows: Sequence[Mapping[str, Any]],
    completions: Mapping[str, Sequence[str]],
    scored: Scored,
) -> Any:
    """Builds the task on these problems, without any download; failures of its function go to ``scored``."""
    from datasets import Dataset
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    config = {key: value for key, value in load_yaml(one.file, resolve_func=True).items() if key != "tag"}
    if not one.own:
        config |= PROMPTED
    most = max(len(completions[row["task_id"]]) for row in rows)
    repeats = most if one.name == _AT_ONCE else 1
    documents = [
        {**document(one.columns, row), "sample": number}
        for row in rows
        for number in range(0, len(completions[row["task_id"]]), repeats)
    ]
    config |= {
        "task": one.name,
        "custom_dataset": lambda **_: {"test": Dataset.from_list(documents)},
        "dataset_kwargs": None,
        "training_split": None,
        "test_split": "test",
        "repeats": repeats,
    }
    task = ConfigurableTask(config=config)
    if not one.own and callable(task.config.process_results):
        task.config.process_results = _bounded(task, one, completions, scored)
    return task


def _bounded(
    task: Any, one: Scorer, completions: Mapping[str, Sequence[str]], scored: Scored
) -> Callable[[Mapping[str, Any], Sequence[str]], Mapping[str, float]]:
    """Scores all samples by the task's own function, in processes with limits on time and memory.

    Returns a function that looks the scores up.
    """
    stops = task.config.generation_kwargs.get("until", [])
    documents = {row["task_id"]: dict(row) for row in task.test_docs()}
    pairs = {
        (task_id, _until(text, stops)): (row, _until(text, stops))
        for task_id, row in documents.items()
        for text in completions[task_id]
    }
    names = [metric["metric"] for metric in task.config.metric_list]
    found = dict(zip(pairs, scores(one.file, names, list(pairs.values())), strict=True))
    if failed := [score for score in found.values() if score.failure]:
        scored.failures[one.name] = len(failed)
    return lambda row, results: found[row["task_id"], results[0]].metrics


def _until(text: str, stops: Sequence[str]) -> str:
    """Cuts a text at the first of the stop strings, as lm-eval does."""
    for stop in filter(None, stops):
        text = text.split(stop)[0]
    return text


def _replayed(completions: Mapping[str, Sequence[str]]) -> Any:
    """Returns an lm-eval model that answers with the recorded completions, from the document's sample on."""
    from lm_eval.api.model import LM

    class Replay(LM):
        def __init__(self) -> None:
            super().__init__()
            self._used: Counter[tuple[str, str, int]] = Counter()

        def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
            return [self._next(request) for request in requests]

        def _next(self, request: Any) -> str:
            task_id, first = request.doc["task_id"], request.doc["sample"]
            key = (request.task_name, task_id, first)
            recorded, number = completions[task_id], first + self._used[key]
            self._used[key] += 1
            stops = request.args[1].get("until", [])
            return _until(recorded[number], stops) if number < len(recorded) else NO_SAMPLE

        def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> Any:
            raise NotImplementedError("recorded samples have no likelihoods")

        loglikelihood_rolling = loglikelihood

    return Replay()


def _write(results: dict[str, Any], out: Path, source: str) -> None:
    """Writes lm-eval's files with lm-eval's own writer, all of them or none."""
    from lm_eval.loggers import EvaluationTracker

    samples = results.pop("samples")
    with fresh_directory(out) as directory:
        tracker = EvaluationTracker(output_path=str(directory))
        tracker.general_config_tracker.log_experiment_args("recorded", {"path": source}, "", "", False)
        tracker.save_results_aggregated(results=results, samples=samples)
        for name, rows in samples.items():
            tracker.save_results_samples(task_name=name, samples=rows)
        if len(list(directory.rglob("*.json*"))) != 1 + len(samples):
            raise UserError(f"{out}: lm-eval could not write its files")  # it only warns
