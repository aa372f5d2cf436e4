"""What a claim may name: a number of a run, and what it is compared with.

A name with a typo has no runs, which would be found after all the training; so it is refused beforehand.
"""

import math
import re
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BeforeValidator

from troll.common.errors import nearest
from troll.tasks.datasets.catalogue import DATA_SETS

SUMMARIES = (
    *("kl", "kl_max", "entropy", "entropy_start", "final", "peak", "drop", "area", "response_length"),
    *("steps", "hours", "batch_s", "batch_cpu_s", "peak_gib"),
)
"""Numbers of a run that `troll.analysis.data.summaries.per_run` makes, those with a name of their own."""
WALL_CLOCK = ("hours", "batch_s")
"""Of them, those that a busy machine makes longer, unless each run has a GPU for itself."""
MATH_EVAL_MEAN = "math-eval/pass@1"
LOGGED = (
    *("success", "response_length", "truncated", "entropy", "loss", "grad_norm", "learning_rate"),
    *("kl_to_old", "kl_to_old_max", "kl_to_old_sampled", "kl_to_reference", "log_ratio_abs"),
    *("ratio_max", "ratio_mean", "clip_fraction", "groups_without_signal", "generated_samples"),
    *(
        "kept_mass",
        "kept_mass_min",
        "kept_tokens",
        "support_full",
        "kl_bound",
        "kl_projected",
        "kl_projected_max",
    ),
    *("kl_violation", "kl_violation_max", "multiplier", "solver_residual", "solver_residual_max"),
)
"""What runs log whatever their rule, or with the projection; rules add their own, so these are for hints."""
_PASS = re.compile(r"(?:(?P<data>\S+)/)?pass@(?P<k>[1-9][0-9]{0,5})")
_OPEN = re.compile(r"(mean|status)/\S+")  # rules and graders add names of their own
_LARGEST = 2**31
_BASE = re.compile(r"(^|/)(base|official)$")  # of sets with fewer tests, and by lm-eval or evalplus, too


def pass_at(metric: str) -> tuple[str, int] | None:
    """The data set and the k of pass@k, with an empty name for a run's own test problems; None for others."""
    found = _PASS.fullmatch(metric)
    return (found["data"] or "", int(found["k"])) if found else None


def own_k(metric: str) -> int | None:
    """The k of pass@k on a run's own test problems; None for any other metric."""
    data, k = pass_at(metric) or (None, None)
    return None if data else k


def _checked_metric(metric: str) -> str:
    found = pass_at(metric)
    of_data = found is not None and _BASE.sub("", found[0]) in ("", *DATA_SETS)
    if of_data or metric in (*SUMMARIES, MATH_EVAL_MEAN) or _OPEN.fullmatch(metric):
        return metric
    valid = ("pass@k (k from 1 on)", "<data set>/pass@k", *SUMMARIES, "mean/<logged metric>", "status/<...>")
    hint = nearest(metric, _alike(metric))
    raise ValueError(f"unknown metric {metric!r}; valid: {', '.join(valid)}{hint}")


def _alike(metric: str) -> list[str]:
    """What a name with a typo may have been meant to be, with its own k and logged metric."""
    given = re.search(r"[1-9][0-9]{0,5}", metric.rpartition("/")[2])
    k = given[0] if given else "1"
    logged = [*LOGGED, *filter(None, [metric.partition("/")[2]])]
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
