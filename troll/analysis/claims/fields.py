"""Validated fields of a claim: its metric and its baseline.

Unknown names are rejected before training; otherwise a typo would only show as a claim without runs.
"""

import math
import re
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BeforeValidator

from troll.analysis.metrics import METRICS, SUMMARIES
from troll.common.errors import nearest
from troll.tasks.datasets.catalogue import DATA_SETS

WALL_CLOCK = tuple(name for name, summary in SUMMARIES.items() if summary.wall_clock)
"""Wall-clock summaries, which load on the machine increases unless each run has its own GPU."""
MATH_EVAL_MEAN = "math-eval/pass@1"
_PASS = re.compile(r"(?:(?P<data>\S+)/)?pass@(?P<k>[1-9][0-9]{0,5})")
_OPEN = re.compile(r"(mean|status)/\S+")  # rules and graders may add names
_LARGEST = 2**31
_BASE = re.compile(r"(^|/)(base|official)$")  # a set with fewer tests, or graded as by lm-eval or evalplus


def pass_at(metric: str) -> tuple[str, int] | None:
    """Data set and k of a pass@k metric, ("", k) for the run's test problems; None for other metrics."""
    match = _PASS.fullmatch(metric)
    return (match["data"] or "", int(match["k"])) if match else None


def own_k(metric: str) -> int | None:
    """Returns the k of pass@k on the run's test problems; None for other metrics."""
    data, k = pass_at(metric) or (None, None)
    return None if data else k


def _checked_metric(metric: str) -> str:
    parsed = pass_at(metric)
    of_data = parsed is not None and _BASE.sub("", parsed[0]) in ("", *DATA_SETS)
    if of_data or metric in (*SUMMARIES, MATH_EVAL_MEAN) or _OPEN.fullmatch(metric):
        return metric
    valid = ("pass@k (k from 1 on)", "<data set>/pass@k", *SUMMARIES, "mean/<logged metric>", "status/<...>")
    hint = nearest(metric, _candidates(metric))
    raise ValueError(f"unknown metric {metric!r}; valid: {', '.join(valid)}{hint}")


def _candidates(metric: str) -> list[str]:
    """Valid names that a misspelt metric may have meant, with its k and logged metric."""
    given = re.search(r"[1-9][0-9]{0,5}", metric.rpartition("/")[2])
    k = given[0] if given else "1"
    logged = [*METRICS, *filter(None, [metric.partition("/")[2]])]
    names = ["pass@" + k, *(f"{name}/pass@{k}" for name in DATA_SETS), MATH_EVAL_MEAN, *SUMMARIES]
    return [*names, *(f"mean/{name}" for name in logged)]


def _checked_baseline(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("expected a trust region or a number, found a flag")
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return value
        if math.isfinite(number):
            written = yaml.safe_dump(number).partition("\n")[0]  # YAML takes 1e-3 for text
            raise ValueError(f"text names a trust region; write the number as {written}, without quotes")
        value = number
    # Differences from huge numbers would overflow.
    if not isinstance(value, int | float) or not abs(value) < _LARGEST:
        raise ValueError("expected a trust region, or a number between -2^31 and 2^31")
    return value


Metric = Annotated[str, AfterValidator(_checked_metric)]
Baseline = Annotated[str | float, BeforeValidator(_checked_baseline)]
