"""Outcomes in the words of the first tables: above, below, level, not decided."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from troll.analysis.data.tidy import BASE
from troll.analysis.leaderboard.board import AT_EDGES
from troll.analysis.leaderboard.protocol import read_protocol
from troll.analysis.render.formats import bracketed, listed, points

OUTCOMES: Mapping[str, str] = {
    "above": "**above**",
    "below": "**below**",
    "within": "**level**",
    "undecided": "**not decided**",
}
"""By the reading of an interval beside 0 and a margin."""

BELOW = ("on average over seeds it ends below its own base model", "its mean is below the base model's")
"""In a reason, and in an answer: what nobody should overlook who reads that a method ends above another."""

_SIDES = {"higher": "above", "lower": "below", "equivalent": "level"}
_OTHER = {"not shown": "**not shown**", "inconclusive": "**not decided**", "not run": "no runs yet"}


def outcome(direction: str, margin: float, label: str, reason: str) -> str:
    """Returns a verdict as the side of the baseline on which the method is.

    Args:
        direction: that a claim states, such as "higher".
        margin: of a claim of equivalence, as a share of 1.
        label: the verdict for display.
        reason: of the verdict, by `troll.analysis.claims.wording.why`.

    Returns:
        For example "**above** on average (holds in 9 of 18 settings), but its mean is below the base model's
        in the one setting on chains".
    """
    text = _OTHER.get(label, f"**{label}**")
    if label.startswith("supported"):
        within = f" (within {100 * margin:g} points)" if direction == "equivalent" else ""
        text = f"**{_SIDES[direction]}**{within} in every setting"
    if label == "supported on average":
        alone = re.search(r"(holds in|no single setting of) [^,;]*", reason)
        text = text.replace("in every setting", "on average") + (f" ({alone[0]})" if alone else "")
    below = [part.replace(*BELOW) for part in reason.split("; ") if BELOW[0] in part]
    return ", but ".join([text, *below])


def other_contrasts(directory: Path) -> str:
    """Returns how the method of a protocol's first contrast stands to its other rules.

    For example "against gspo-clip **not decided**: +0.3 [−3.8, +4.4] (locks −12.3, programs +13.0)", in
    points of the first endpoint; empty if there is no other rule.
    """
    contrasts = pd.read_csv(directory / "contrasts.csv")
    contrasts = contrasts[contrasts["endpoint"] == contrasts["endpoint"].iloc[0]]
    averages = contrasts[contrasts["analysis"] == contrasts["analysis"].iloc[0]]
    parts = []
    for _, other in averages.iloc[1:][averages["method"].iloc[1:] == averages["method"].iloc[0]].iterrows():
        pair = (contrasts["method"] == other["method"]) & (contrasts["baseline"] == other["baseline"])
        alone = contrasts[pair & contrasts["analysis"].str.endswith(" alone")]
        tasks = [
            f"{row['analysis'].removesuffix(' alone')} {points(row['difference'])}"
            for _, row in alone.iterrows()
        ]
        parts.append(
            f"against {other['baseline']} {OUTCOMES[str(other['reading'])]}: "
            f"{points(other['difference'])} {bracketed(other, 'difference')} ({', '.join(tasks)})"
        )
    return "; ".join(parts)


def best_at_edges(directory: Path) -> str:
    """Returns which rules of a board did best at the edge of what was tried; empty if none did."""
    path = directory / "board.md"
    note = re.search(f"^{AT_EDGES}: (.*?)\\.( |$)", path.read_text(), re.M) if path.exists() else None
    rules = re.findall(r"([\w-]+) \(", note[1]) if note else []
    return f"{listed(rules)} did best at an edge of what was tried" if rules else ""


def by_task(ended: pd.DataFrame, names: Mapping[str, str], digits: int = 0) -> str:
    """Means by task of the trust regions in ``names``, in percent and under the names given there."""
    parts = []
    for task, rows in ended.groupby("task", sort=True, observed=True):
        means = rows.groupby("trust_region", observed=True)["value"].mean()
        shown = [f"{name} {100 * means[rule]:.{digits}f}" for rule, name in names.items() if rule in means]
        parts.append(f"{task}: {', '.join(shown)}")
    return "; ".join(parts)


def equal_up_to(directory: Path) -> str:
    """Returns which differences a protocol calls equal, in words."""
    margin = read_protocol(directory / "protocol.yaml").comparison.margin
    return f"its protocol calls differences up to {100 * margin:g} points equal"


def sequence_tests(
    directory: Path, runs: pd.DataFrame | None = None
) -> Iterator[tuple[Mapping[str, Any], str, str]]:
    """Yields the first two tests of a fixed sequence: mean height of the training curve at either rate.

    Each is a row of sequence.csv; its difference in words, with those of the tasks and of test pass@1; and
    its outcome. Nothing without this file. With ``runs``, the experiment's tidy table, the outcome names the
    tasks in which the method ends below its base model.
    """
    path = directory / "sequence.csv"
    if not path.exists():
        return
    tests = pd.read_csv(path)
    for _, test in tests[(tests["tasks"] == "both") & (tests["endpoint"] == "auc")].iloc[:2].iterrows():
        side = (
            "above" if test["difference_low"] > 0 else "below" if test["difference_high"] < 0 else "undecided"
        )
        answer = OUTCOMES["within" if side == "undecided" and test["within"] else side]
        at_rate = tests[tests["condition"] == test["condition"]]
        alone = at_rate[(at_rate["test"] == test["test"]) & (at_rate["tasks"] != "both")]
        tasks = ", ".join(f"{row['tasks']} {points(row['difference'])}" for _, row in alone.iterrows())
        shown = f"{_with_interval(test)} points of mean height of the training curve"
        shown += f" ({tasks})" if tasks else ""
        final = at_rate[(at_rate["tasks"] == "both") & (at_rate["endpoint"] == "pass@1")]
        shown += "".join(f"; {_with_interval(row)} points of test pass@1" for _, row in final.iterrows())
        below = [] if runs is None else _below_base(runs[runs["condition"].isin([test["condition"], ""])])
        but = f", but {BELOW[1]} on {listed(below)}" if below else ""
        yield (
            {str(name): value for name, value in test.items()},
            f"{shown}; {_seeds(test)}",
            answer + (" (exploratory)" if test["outcome"] == "exploratory" else "") + but,
        )


def _with_interval(test: "pd.Series[Any]") -> str:
    return f"{points(test['difference'])} {bracketed(test, 'difference')}"


def _below_base(runs: pd.DataFrame) -> list[str]:
    """Returns the tasks in which the mean test pass@1 of TROLL's runs is below the base model's."""
    ended = runs[(runs["metric"] == "pass@1") & (runs["source"] == "test")]
    means = ended.groupby(["task", "trust_region"], observed=True)["value"].mean().unstack()
    if not {BASE, "troll"} <= {*means.columns}:
        return []
    return [str(task) for task in means.index[means["troll"] < means[BASE]]]


def _seeds(test: "pd.Series[Any]") -> str:
    """How many seeds a test rests on, and of how many if fewer than planned."""
    seeds, planned = int(test["seeds"]), int(test["planned"])
    return f"{seeds} seeds" if seeds == planned else f"{seeds} of {planned} planned seeds"
