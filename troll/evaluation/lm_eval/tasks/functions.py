"""The functions that the YAML tasks beside this file call."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from troll.common.errors import UserError
from troll.common.files import read_jsonl
from troll.evaluation.pass_at_k import pass_at_k
from troll.tasks.responses import judged_text
from troll.tasks.verifiers.math import form_of, judge_math

# Stands for a missing sample where a replayed problem has fewer than others; no tokenizer produces it.
NO_SAMPLE = "\0no sample\0"


def load_problems(data_file: str | None = None, **_: Any) -> dict[str, Any]:
    """Loads the test split from a file of problems as JSON lines, which lm-eval's ``--metadata`` names."""
    from datasets import Dataset

    if data_file is None:
        raise UserError("""lm-eval: no problems; add --metadata '{"data_file": "PROBLEMS.jsonl"}'""")
    rows, fields = read_jsonl(Path(data_file)), ("task_id", "prompt", "answer")
    return {"test": Dataset.from_list([{key: row[key] for key in fields} for row in rows])}


def load_data_set(data_set: str, limit: int | None = None, **_: Any) -> dict[str, Any]:
    """Loads the test split of a public data set, or its first ``limit`` problems (from ``--metadata``)."""
    from datasets import Dataset

    from troll.tasks.datasets.load import load

    fields, problems = ("task_id", "prompt", "answer"), load(data_set).problems[:limit]
    return {"test": Dataset.from_list([{key: getattr(item, key) for key in fields} for item in problems])}


def mean_success(document: Mapping[str, Any], results: Sequence[Sequence[str]]) -> dict[str, float]:
    """Returns the share of a problem's samples that are judged right, as `troll grade` judges."""
    answers = [judged_text(text, document.get("prompt", "")) for text in results[0]]
    forms = [form_of(document)] * len(answers)
    statuses = judge_math([document["answer"]] * len(answers), answers, forms=forms)
    return {"pass@1": statuses.count("passed") / len(statuses)}


def keep_all(responses: Iterable[Sequence[str]], _documents: Any) -> list[list[str]]:
    """Filters nothing: keeps all repeats of all problems."""
    return [list(repeats) for repeats in responses]


def process_results(document: Mapping[str, Any], results: Sequence[Sequence[str]]) -> dict[str, float]:
    """Returns pass@k of one problem's samples, judged as `troll grade` does."""
    prompt = document.get("prompt", "")
    responses = [judged_text(text, prompt) for text in results[0] if text != NO_SAMPLE]
    forms = [form_of(document)] * len(responses)
    statuses = judge_math([document["answer"]] * len(responses), responses, forms=forms)
    correct = statuses.count("passed")
    return {f"pass@{k}": pass_at_k(len(responses), correct, k) for k in (1, 8) if k <= len(responses)}
