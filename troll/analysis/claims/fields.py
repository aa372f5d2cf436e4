"""What a claim may name: a number of a run, and what it is compared with.

A name with a typo has no runs, which would be found after all the training; so it is refused beforehand.
"""

import math
import re
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BeforeValidator

from troll.analysis.metrics import METRICS, PRESENT_NAMES, SUMMARIES
from troll.common.errors import nearest
from troll.tasks.datasets.catalogue import DATA_SETS

WALL_CLOCK = tuple(name for name, summary in SUMMARIES.items() if summary.wall_clock)
"""Numbers of a run that a busy machine makes longer, unless each run has a GPU for itself."""
MATH_EVAL_MEAN = "math-eval/pass@1"
_PASS = re.compile(r"(?:(?P<data>\S+)/)?pass@(?P<k>[1-9][0-9]{0,5})")
_OPEN = re.compile(r"(mean|status)/\S+")  # rules and graders add names of their own
_LARGEST = 2**31
_BASE = re.compile(r"(^|/)(base|official)$")  # of sets with fewer tests, and by lm-eval or evalplus, too


def pass_at(metric: str) -> tuple[str, int] | None:
    """The data set and the k of pass@k, with an empty name for a run's own test problems; None for others."""
    match = _PASS.fullmatch(metric)
    return (match["data"] or "", int(match["k"])) if match else None


def own_k(metric: str) -> int | None:
    """The k of pass@k on a run's own test problems; None for any other metric."""
    data, k = pass_at(metric) or (None, None)
    return None if data else k


def _checked_metric(metric: str) -> str:
    parsed = pass_at(metric)
    of_data = parsed is not None and _BASE.sub("", parsed[0]) in ("", *DATA_SETS)
    if of_data or metric in (*SUMMARIES, MATH_EVAL_MEAN) or _OPEN.fullmatch(metric):
        return metric
    if metric in PRESENT_NAMES:
        raise ValueError(f"unknown metric {metric!r}; it is now called {PRESENT_NAMES[metric]}")
    valid = ("pass@k (k from 1 on)", "<data set>/pass@k", *SUMMARIES, "mean/<logged metric>", "status/<...>")
    hint = nearest(metric, _alike(metric))
    raise ValueError(f"unknown metric {metric!r}; valid: {', '.join(valid)}{hint}")


def _alike(metric: str) -> list[str]:
    """What a name with a typo may have been meant to be, with its own k and logged metric."""
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
    # Differences from numbers far beyond any that a run has would overflow.
    if not isinstance(value, int | float) or not abs(value) < _LARGEST:
        raise ValueError("expected a trust region, or a number between -2^31 and 2^31")
    return value


Metric = Annotated[str, AfterValidator(_checked_metric)]
Baseline = Annotated[str | float, BeforeValidator(_checked_baseline)]
