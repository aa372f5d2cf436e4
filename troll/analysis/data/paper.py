"""The comparisons of the paper: which of our runs belong to each, and its published numbers.

Every comparison has a baseline and a method on one model and data set.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from troll.analysis.data.summaries import Cell
from troll.experiment.published import read_published

_ALIASES = {
    "Llama3.2-3B": "Llama-3.2-3B",
    "Llama3.2-3B-Instruct": "Llama-3.2-3B-Instruct",
    "Llama3.1-8B": "Llama-3.1-8B",
    "Llama3.1-8B-Instruct": "Llama-3.1-8B-Instruct",
    "Apertus-8B": "Apertus-8B-2509",
    "Apertus-8B-Instruct": "Apertus-8B-Instruct-2509",
}
"""Hub names of models by their names in the source of the numbers, where these differ."""
_TASKS = {
    "GSM8K": "gsm8k*",
    "Eurus": "eurus-math*",
    "Code": "eurus-code*",
    "MATH": "math*",
    "MBPP": "mbpp*",
    "HumanEval": "mbpp*",  # has no training problems: models trained on MBPP are evaluated on it
}
"""Patterns of our tasks by data set of the source; DAPO's parts and MATH Eval are the task dapo."""
_ESTIMATORS = {"GRPO": ("grpo",), "DrGRPO": ("dr-grpo",), "PPO": ("ppo", "gae"), "GSPO": ("grpo", "gspo")}
_ESTIMATORS |= {"GAE": ("gae", "ppo"), "PPO-max": ("ppo-max",)}
_MEASURES = {"DAPO_Train": "final", "MATH_Eval": "math-eval/pass@1", "HumanEval": "humaneval/pass@1"}
"""Our metric by data set where it is not test pass@1."""
_SWEPT = re.compile(r"([2-9]|\d\d+)x$|lr\d+$")
"""Conditions of a sweep over staleness or learning rate, which only match rows of these sweeps."""
QWEN3 = ("Qwen3-0.6B", "Qwen3-1.7B", "Qwen3-4B", "Qwen3-8B", "Qwen3-14B")


@dataclass(frozen=True)
class Comparison:
    """A comparison in one setting, with its published numbers."""

    model: str  # name in the source
    data: str  # data set, name in the source
    estimator: str  # name in the source
    baseline: str  # our trust region
    method: str  # our trust region
    measure: str = "pass@1"  # column of ``per_run``
    # of baseline and method; NaN if unknown
    published: tuple[float, float] = (math.nan, math.nan)
    quantity: str = ""  # name of the quantity, in tables with several
    condition: str = "*"  # pattern of condition names
    step: float = math.nan  # training step at which the numbers were read; NaN if unknown
    hours: float = math.nan  # wall-clock time at which they were read, of figures against time

    @property
    def read_at(self) -> str:
        """Where the published numbers were read, in words; empty if unknown."""
        if not math.isnan(self.step):
            return f"step {self.step:.0f}"
        return "" if math.isnan(self.hours) else f"{self.hours:.0f} h"

    def holds(self, cell: Cell) -> bool:
        """Returns whether a cell belongs to this row's setting."""
        task = _TASKS.get(self.data, "dapo*")
        return (
            cell.model == _ALIASES.get(self.model, self.model)
            and fnmatchcase(cell.task, task)
            and cell.estimator in _ESTIMATORS[self.estimator]
            and fnmatchcase(cell.condition, self.condition)
            and (self.condition != "*" or not _SWEPT.search(cell.condition))
        )


def _numbers(source: str, metric: str = "final_success*") -> list[Mapping[str, Any]]:
    return [row for row in read_published() if row["source"] == source and fnmatchcase(row["metric"], metric)]


def _pairs(rows: Sequence[Mapping[str, Any]], *, measure: str = "", quantity: str = "") -> list[Comparison]:
    """Comparisons of clip and TROLL on the same model, data and estimator, in file order."""
    by_setting: dict[tuple[str, str, str], dict[str, float]] = {}
    places: dict[tuple[str, str, str], tuple[float, float]] = {}
    for row in rows:
        key = (row["model"], row["dataset"], row["estimator"])
        by_setting.setdefault(key, {})[row["method"].partition("_")[0]] = float(row["value"])
        places[key] = _place(row)
    return [
        Comparison(
            model,
            data,
            estimator,
            "gspo-clip" if estimator == "GSPO" else "clip",
            "troll-seq" if estimator == "GSPO" else "troll",
            measure or _MEASURES.get(data, "pass@1"),
            (values.get("Clip", math.nan), values.get("TROLL", math.nan)),
            quantity,
            step=places[model, data, estimator][0],
            hours=places[model, data, estimator][1],
        )
        for (model, data, estimator), values in by_setting.items()
    ]


def _place(row: Mapping[str, Any]) -> tuple[float, float]:
    """Returns the training step and the hours at which a number was read, NaN where unknown."""
    return float(row.get("step", math.nan)), float(row.get("hours", math.nan))


def families() -> list[Comparison]:
    """Returns the models of the paper's table."""
    return _pairs(_numbers("page_table"))


def sizes() -> list[Comparison]:
    """Returns the Qwen3 sizes on DAPO and MATH Eval."""
    return _pairs(_numbers("fig_size"))


def estimators() -> list[Comparison]:
    """Returns the advantage estimators on Qwen3-8B; with GSPO its clipped rule and TROLL on sequences."""
    return _pairs(_numbers("fig_methods"))


def ablations() -> list[Comparison]:
    """Variants of TROLL on Qwen3-1.7B, compared with its default."""
    rows = [row for row in _numbers("page_cost") if row["model"] == "Qwen3-1.7B"]
    default = next(float(row["value"]) for row in rows if row["note"].startswith("default"))
    comparisons = []
    for row in rows:
        for sign, pattern in (("kl", r"eps=([\d.]+)$"), ("k", r"^K=(\d+)")):
            if changed := re.search(pattern, row["note"]):
                setting = (
                    row["model"],
                    row["dataset"],
                    row["estimator"],
                    "troll",
                    f"troll-{sign}{changed[1]}",
                )
                values = (default, float(row["value"]))
                step, hours = _place(row)
                comparisons.append(
                    Comparison(*setting, _MEASURES[row["dataset"]], values, step=step, hours=hours)
                )
    return comparisons


def entropy() -> list[Comparison]:
    """Returns the policy's entropy late in the training of Qwen3-14B."""
    return _pairs(_numbers("page_cost", "policy_entropy*"), measure="entropy")


def cost() -> list[Comparison]:
    """Memory and time of a training step on Qwen3-4B."""
    memory = _pairs(_numbers("page_cost", "vram_gib"), measure="peak_gib", quantity="memory (GiB)")
    time = _pairs(_numbers("page_cost", "step_runtime_s"), measure="batch_s", quantity="time per step (s)")
    return [*memory, *time]


def code() -> list[Comparison]:
    """Comparisons without numbers: none were read off the figure; the text claims gains of 7 to 18 points.

    The paper's success is the share of tests that a program passes; problems solved are ours.
    """
    measures = {"reward": "tests passed", "pass@1": "problems solved"}
    return [
        Comparison(model, "Code", "GRPO", "clip", "troll", measure, quantity=name)
        for measure, name in measures.items()
        for model in QWEN3
    ]


def staleness() -> list[Comparison]:
    """Comparisons without numbers: none were read off the figure; the conditions are those of the matrix."""
    return [
        Comparison("Qwen3-4B", "DAPO_Eval", "GRPO", "clip", method, condition=f"*{condition}")
        for condition in ("stale1x", "stale4x", "stale16x")
        for method in ("troll", "gspo-clip", "quatro")
    ]


def summary() -> list[Comparison]:
    """Comparisons of a published summary, which describes other experiments and gives no numbers."""
    models = ("CodeLlama-7B", "CodeLlama-13B", "DeepSeek-Coder-1.3B", "DeepSeek-Coder-6.7B")
    comparisons = [
        Comparison(model, data, estimator, "clip", "troll", _MEASURES.get(data, "pass@1"))
        for data in ("GSM8K", "MATH", "HumanEval", "MBPP")
        for model in models
        for estimator in ("GAE", "PPO-max")
    ]
    variants = ("troll-k10", "troll-k20", "troll-kl0.01", "troll-kl0.25")
    return comparisons + [
        Comparison(model, "GSM8K", "GAE", "troll", name) for model in models for name in variants
    ]
