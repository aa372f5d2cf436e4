"""The table of public benchmarks: reference solutions ("oracle") and base models, graded alike."""

import math
import os
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
from scipy import stats

from troll.analysis.render.formats import Style, percent, table, whole
from troll.analysis.render.substitutes import marked, substitute_note, substitutes_of
from troll.analysis.statistics import LEVEL
from troll.common.errors import UserError
from troll.common.files import read_json, read_jsonl

ORACLE = "oracle"
_COLUMNS = (
    *("task", "answers", "problems", "available", "samples"),
    *("scorer", "official", "official_low", "official_high", "official_base"),
    *("pass@1", "pass@1_low", "pass@1_high", "base/pass@1", "disagreements", "list"),
    *("cut", "data", "sha256"),
)


def benchmark_table(
    rows: Sequence[tuple[str, Mapping[str, Any], int]], skipped: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """Returns one row per data set and source of answers.

    Args:
        rows: (name of the answers, grades as written by `troll.evaluation.grading.grade`, number of samples
            whose prompt was truncated).
        skipped: reason by data set, for those that were not run.

    Returns:
        ``task``, ``answers``, ``problems`` of ``available``, ``samples`` per problem; ``official``, the
        pass@1 of ``scorer`` (lm-eval or evalplus), and ``official_base`` (plus sets: with the few tests
        only); ``pass@1`` and ``base/pass@1``, the same by our judge; ``disagreements``, the number of samples
        on which the two differ, and a link to their ``list``; ``cut`` (share of samples with a truncated
        prompt); source and digest of the data. 95 % intervals over problems: Wilson's with one sample per
        problem, else a t-interval on the problems' success rates.
    """
    entries = []
    for answers, grades, cut in rows:
        metrics, problems = grades["metrics"], grades["problems"].values()
        samples = [len(item["passed"]) for item in problems]
        shares = [sum(item["passed"]) / len(item["passed"]) for item in problems]
        low, high = _interval(shares, max(samples))
        means = [sum(item["official"]) / len(item["official"]) for item in problems if "official" in item]
        official_low, official_high = _interval(means, max(samples))
        disagreements = float(metrics.get("disagreements", math.nan))
        entries.append(
            {
                "task": marked(grades["task"], bool(substitutes_of(grades))),
                "answers": answers,
                "problems": len(shares),
                "available": len(shares) + len(grades["missing"]),
                "samples": max(samples),
                "scorer": _scorer(grades),
                "official": float(metrics.get("official/pass@1", math.nan)),
                "official_low": official_low,
                "official_high": official_high,
                "official_base": float(grades.get("evalplus", {}).get("base/pass@1", math.nan)),
                "pass@1": float(metrics["pass@1"]),
                "pass@1_low": low,
                "pass@1_high": high,
                "base/pass@1": float(metrics.get("base/pass@1", math.nan)),
                "disagreements": disagreements,
                "list": f"[list]({grades['listed']})" if disagreements > 0 and grades.get("listed") else "",
                "cut": cut / sum(samples),
                "data": str(grades["data"].get("source", "")),
                "sha256": str(grades["data_sha256"])[:12],
            }
        )
    styles = {
        "task": Style("Data set"),
        "answers": Style("Answers"),
        "problems": Style("Problems", whole),
        "available": Style("of", whole),
        "samples": Style("Samples", whole),
        "scorer": Style("Official scorer"),
        "official": Style("Its pass@1 (%)", percent),
        "official_base": Style("few tests (%)", percent),
        "pass@1": Style("Our pass@1 (%)", percent),
        "base/pass@1": Style("few tests (%)", percent),
        "disagreements": Style("Disagreements", whole),
        "list": Style("Their list"),
        "cut": Style("Prompts cut (%)", percent),
        "data": Style("Data"),
        "sha256": Style("SHA-256"),
    }
    notes: dict[str, str] = {}
    for _, grades, _ in rows:
        notes |= substitutes_of(grades)
    explained = _EXPLAINED if entries else ()
    below = (*explained, *substitute_note(notes), *_left_out(skipped or {}))
    return table(entries, styles, *below, columns=_COLUMNS)


OFFICIAL = (
    "The official scorer is lm-eval for mathematics, by its own task and metric where it has the data set "
    "(GSM8K, MATH, MATH-500, AIME) and by our judge in it elsewhere, and evalplus for code. Our judge is "
    "stricter: it looks at the last box alone, and runs programs where they cannot cheat. Disagreements "
    "are samples that one accepts and the other does not."
)
"""Note of tables with official scores."""
_EXPLAINED = (
    f"{ORACLE}: the reference solutions, which show what the graders accept. The intervals cover the choice "
    "of problems alone. Where fewer problems are answered than there are, they were drawn without looking "
    "at them, the same for all rows.",
    OFFICIAL,
    "A prompt that does not fit a model's context is cut to its last tokens, as lm-eval does; such an "
    "answer is hardly ever right.",
)


def _scorer(grades: Mapping[str, Any]) -> str:
    """Name, task and metric of the official scorer; empty without official grades."""
    official = grades.get("official")
    if not official:
        return ""
    names = official["tasks"]
    parts = takewhile(
        lambda part: len(set(part)) == 1, zip(*(name.split("_") for name in names), strict=False)
    )
    name = names[0] if len(names) == 1 else "_".join([part[0] for part in parts] + ["*"])
    metric, _, chosen = str(official["metric"]).partition(",")
    how = metric if chosen in ("", "none", "all") else chosen
    return f"{official['scorer']}: {name} ({how})"


def _left_out(skipped: Mapping[str, str]) -> list[str]:
    """Returns a sentence about skipped data sets for each reason."""
    reasons: dict[str, list[str]] = {}
    for name, reason in skipped.items():
        reasons.setdefault(reason, []).append(name)
    return [f"Not run: {', '.join(names)}; {reason}." for reason, names in reasons.items()]


def _interval(shares: Sequence[float], samples: int) -> tuple[float, float]:
    """95 % interval of the mean over problems."""
    if samples == 1 and shares:
        ends = stats.binomtest(round(sum(shares)), len(shares)).proportion_ci(LEVEL, method="wilson")
        return float(ends.low), float(ends.high)
    if len(set(shares)) < 2:  # the spread cannot be estimated
        return math.nan, math.nan
    mean, error = sum(shares) / len(shares), stats.sem(shares)
    low, high = stats.t.interval(LEVEL, len(shares) - 1, loc=mean, scale=error)
    return max(0.0, float(low)), min(1.0, float(high))


def read_answers(
    label: str, grades: Path, samples: Path, directory: Path | None = None
) -> tuple[str, Mapping[str, Any], int]:
    """Returns a row for `benchmark_table` from two files; links are relative to ``directory``."""
    graded = read_json(grades)
    missing = {"task", "metrics", "problems", "missing", "data", "data_sha256"} - set(graded)
    if missing:
        raise UserError(f"{grades}: not a file of grades; it lacks {', '.join(sorted(missing))}")
    listed = grades.with_name("disagreements.jsonl")
    if directory is not None and listed.exists():
        graded["listed"] = quote(Path(os.path.relpath(listed, directory)).as_posix())
    return label, graded, sum(bool(row.get("cut")) for row in read_jsonl(samples))
