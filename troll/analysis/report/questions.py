"""What each directory of released results was made to answer: the question, the answer, and how to make it.

Plans of released runs record no question, so the questions are here; an experiment that is not in the table
is introduced by what its file says of itself.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from troll.analysis.claims.verdicts import Claim
from troll.analysis.claims.wording import show_difference, show_range
from troll.analysis.data.tidy import BASE
from troll.analysis.leaderboard.contrasts import sentence
from troll.analysis.leaderboard.protocol import read_protocol
from troll.analysis.registry import entries
from troll.analysis.render.formats import listed, significant
from troll.analysis.report.outcomes import by_task, equal_up_to, other_contrasts, outcome, sequence_tests
from troll.analysis.statistics import Interval
from troll.common.files import read_json

_STEP = "time of TROLL's step over clip's, K = 64"
"""The goal of the measurements on a GPU that people ask for."""
_STEPS = ("step, clip", "step, TROLL, K = 64")
"""The two measurements whose ratio it is."""


@dataclass(frozen=True)
class Question:
    """What a released experiment was asked."""

    text: str
    command: str  # makes its runs, in Markdown
    # id of the claim whose verdict is the answer; none: exploratory, or a part of another answer
    claim: str = ""
    difference: str = "TROLL minus clip"  # what is subtracted from what in the answer
    figure: str = "forest"  # the figure that shows the answer
    part_of: str = ""  # the directory, of `OTHERS`, whose answer these runs are behind


_REPEAT, _FIVE_SEEDS = "REPEAT=1", "SEEDS=0,1,2,3,4"


def _experiment(name: str, option: str = _REPEAT) -> str:
    """Returns the command that makes all runs of an experiment again, also those that the release has."""
    return f"`make results EXPERIMENT=workflow/config/{name}.yaml {option}`"


_BOARD = "made by version 0.3.0 ([how](../../docs/leaderboard.md#the-first-board))"
_DUEL = "`troll rank workflow/config/duel.yaml --repeat`"
QUESTIONS: Mapping[str, Question] = {
    "testbed": Question(
        "Does TROLL end above clip when rollouts are stale?",
        f"`make results {_FIVE_SEEDS}`",
        claim="testbed-stale-better",
    ),
    "testbed-estimators": Question(
        "Does TROLL end above clip with five advantage estimators, when rollouts are stale?",
        _experiment("testbed-estimators", _FIVE_SEEDS),
        claim="testbed-stale-better",
    ),
    "testbed-ablations": Question(
        "Does clip stay below TROLL with a narrower or wider clipping range?",
        _experiment("testbed-ablations", _FIVE_SEEDS),
        claim="testbed-stale-clip-ranges-below-troll",
        difference="clip minus TROLL",
    ),
    "smollm2-gpu": Question(
        "Does TROLL end above clip with a pretrained model of 135M parameters, when rollouts are stale?",
        "[`gpu_runs.sh`](../../workflow/benchmarks/gpu_runs.sh) `workflow/config/smollm2-gpu.yaml`",
        claim="smollm2-stale-better",
    ),
    "smollm2": Question(
        "Does TROLL end above clip with the pretrained model on two cores, when rollouts are stale?",
        _experiment("smollm2"),
        claim="smollm2-stale-better",
    ),
    "smollm2-rates": Question(
        "Does TROLL learn faster than clip with a pretrained model where the trust region acts?",
        "`troll run workflow/config/smollm2-rates.yaml --repeat`",
        claim="smollm2-rates-height-1e-5",
        figure="main",
    ),
    "smollm2-gsm8k": Question(
        "Does training a pretrained model on GSM8K work, to the last table?",
        _experiment("smollm2-gsm8k"),
        figure="main",
    ),
    "new-seeds-bound": Question(
        "Does TROLL with a KL bound five times narrower or wider end within 5 points of the default?",
        _experiment("new-seeds-bound"),
        claim="new-seeds-bound-matters-little",
        difference="another bound minus the default",
        figure="final",
    ),
    "new-seeds-small-k": Question(
        "Does TROLL that keeps 4 or 16 tokens end within 5 points of one that keeps 64?",
        _experiment("new-seeds-small-k"),
        claim="new-seeds-small-k-suffices",
        difference="4 or 16 tokens minus 64",
        figure="final",
    ),
    "benchmark-divergence": Question(
        "Does TROLL end above clip where both move the policy equally far?",
        _experiment("benchmark-divergence"),
        claim="benchmark-higher-than-clip-at-equal-kl",
        figure="frontier",
    ),
    "benchmark-map": Question(
        "How much wider is the range of learning rates that work with TROLL?",
        _experiment("benchmark-map"),
        claim="benchmark-wider-range-of-rates",
        figure="heat_map",
    ),
    "benchmark-size": Question(
        "At three times the learning rate that suits clip on the small model, does TROLL end above clip with "
        "three sizes of models?",
        _experiment("benchmark-size"),
        claim="benchmark-sizes-better-at-three-times-the-rate",
        figure="base_models",
    ),
    "benchmark-sparsity": Question(
        "Is it enough to project the 16 most likely of 4,096 tokens?",
        _experiment("benchmark-sparsity"),
        claim="benchmark-16-tokens-suffice",
        difference="16 or more tokens minus all",
        figure="final",
    ),
    "first-look": Question(
        "A first look at one seed: is TROLL above clip when rollouts are stale?",
        "`make results`",
        figure="main",  # the curves
    ),
    "leaderboard-locks": Question(
        "Which rule ends highest on locks when all are tuned alike?",
        _BOARD,
        figure="final",
        part_of="leaderboard",
    ),
    "leaderboard-programs": Question(
        "Which rule ends highest on programs when all are tuned alike?",
        _BOARD,
        figure="final",
        part_of="leaderboard",
    ),
    "leaderboard-trials": Question(
        "Which settings did the tuning of each rule try?", _BOARD, part_of="leaderboard"
    ),
    "duel-locks": Question(
        "How do clip, GSPO's clipping and TROLL end on locks, tuned well?", _DUEL, part_of="duel"
    ),
    "duel-programs": Question(
        "How do clip, GSPO's clipping and TROLL end on programs, tuned well?", _DUEL, part_of="duel"
    ),
    "duel-round-2": Question(
        "Which settings did the second round of the duel's tuning try?", _DUEL, part_of="duel"
    ),
}
"""By the name of the directory, in the order in which a visitor may want to read them."""


def answer(
    name: str,
    claims: Iterable[Mapping[str, Any]],
    directory: Path | None = None,
    runs: pd.DataFrame | None = None,
) -> str:
    """Returns the answer of an experiment; empty where nothing has it.

    Args:
        name: of the experiment.
        claims: of its ``claims.json``.
        directory: its results, in which a fixed sequence of tests decides before any claim.
        runs: its tidy table, which answers an exploratory question, one without a claim.
    """
    tests = [
        f"{test['condition'].replace('rate-', 'At a rate of ')} "
        + _with_numbers(reading, f"TROLL minus clip {difference}")
        for test, difference, reading in (sequence_tests(directory, runs) if directory else ())
    ]
    if tests:
        return ". ".join(tests)
    question = QUESTIONS.get(name)
    for record in claims:
        if question and record["id"] == question.claim:
            text = outcome(record["direction"], record["margin"], record["verdict"], record["reason"])
            if record.get("retired"):
                text = ", but ".join(["The claim is retired", *text.split(", but ")[1:]])
            if numbers := _numbers(record):
                text = _with_numbers(text, f"{question.difference} {numbers}")
            return re.sub(r"^\W*[a-z]", lambda start: start[0].upper(), text)
    if question and not question.claim and not question.part_of and runs is not None:
        tested = runs[(runs["metric"] == "pass@1") & (runs["source"] == "test")]
        ended = by_task(tested, {BASE: "base", "clip": "clip", "troll": "TROLL"}, digits=1)
        return f"Exploratory, no claim is judged by it; test pass@1 in %: {ended}"
    return ""


def _with_numbers(outcome_text: str, numbers: str) -> str:
    """Returns an outcome with its numbers, which stand before what must not be overlooked."""
    side, *below = outcome_text.split(", but ")
    return ", but ".join([f"{side}: {numbers}", *below])


def _numbers(record: Mapping[str, Any]) -> str:
    """Returns the average over settings with its interval; of too few for an average, their differences."""
    evidence = record["evidence"]
    claim = Claim.model_validate({name: record[name] for name in Claim.model_fields if name in record})
    if pooled := record["pooled"]:
        low, high = float(pooled["low"]), float(pooled["high"])
        average = Interval(float(pooled["estimate"]), low, high, 0.95, len(evidence), 1)
        return f"{show_difference(claim, average)} over {len(evidence)} settings"
    if len(evidence) == 1 and None not in evidence[0].values():
        only = evidence[0]
        interval = Interval(only["difference"], only["low"], only["high"], only["level"], only["seeds"], 1)
        return f"{show_difference(claim, interval)} in its one setting"
    if len(evidence) > 1:
        return f"{show_range(claim, [item['difference'] for item in evidence])} in {len(evidence)} settings"
    return ""


def heading(name: str, summary: str) -> str:
    """Returns the heading of an experiment's page: its question, else its summary, else its name."""
    if question := QUESTIONS.get(name):
        return question.text
    return f"{summary[:1].upper()}{summary[1:]}" or f"Trust regions on {name}"


def opening_figure(name: str, drawn: Sequence[str]) -> str:
    """Returns the figure that answers an experiment's question, of those drawn; empty without any."""
    question = QUESTIONS.get(name)
    preferred = [*([question.figure] if question else []), "forest", "final", *entries("figure")]
    return next((figure for figure in preferred if figure in drawn), "")


def _leaders(directory: Path) -> str:
    """Returns the first rule of each task."""
    board = pd.read_csv(directory / "board.csv")
    best = board.loc[board.groupby("task", sort=False)["pass@1"].idxmax()]
    return listed([f"`{row.trust_region}` on {row.task}" for row in best.itertuples()])


def _contrasts(directory: Path) -> str:
    """Returns the sentence that the protocol fixed, and how the method stands to the other rules."""
    contrasts, protocol = pd.read_csv(directory / "contrasts.csv"), read_protocol(directory / "protocol.yaml")
    fixed = f"{sentence(contrasts, protocol).removesuffix('.')} ({equal_up_to(directory)})"
    return "; ".join(part for part in (fixed, other_contrasts(directory)) if part)


def _compared(directory: Path) -> str:
    """Returns how many comparisons are clear after correction for their number."""
    readings = pd.read_csv(directory / "comparisons.csv")["reading"]
    clear = int(readings.isin(["higher", "lower"]).sum())
    return f"{clear} of {len(readings)} differences are clear, corrected for their number"


def _audit(directory: Path) -> str:
    """Returns whether the audit passed, and what shares of wrong answers either grader accepts."""
    audit = read_json(directory / "audit.json")
    wrong = [case for case in audit["cases"] if case["case"] == "wrong"]
    parts = ["The audit **passed**" if audit["ok"] else "The audit **failed**"]
    for grader, key in (("rewards accept", "rate"), ("evaluation by math-verify accepts", "evaluation")):
        if shares := [100 * case[key] for case in wrong if case[key] is not None]:
            shown = " to ".join(dict.fromkeys(f"{share:.0f}" for share in (min(shares), max(shares))))
            parts.append(f"{grader} {shown} % of near misses")
    return "; ".join(parts)


def step_ratio(directory: Path) -> float | None:
    """Returns the time of TROLL's step over that of clip's on a GPU; None if it was not measured."""
    goals = {goal["goal"]: goal["value"] for goal in read_json(directory / "gpu_check.json")["goals"]}
    return goals.get(_STEP)


def step_range(directory: Path) -> str:
    """Returns how far single steps differ, which a ratio of medians hides; empty if not measured."""
    rows = read_json(directory / "gpu_check.json").get("rows", [])
    steps = [row for row in rows if row["name"] in _STEPS and row["backend"] == "auto"]
    if not steps:
        return ""
    low, high = min(row["ms_low"] for row in steps), max(row["ms_high"] for row in steps)
    return f"; single steps of either take {low:.0f} to {high:.0f} ms"


def _step(directory: Path) -> str:
    value = step_ratio(directory)
    return "" if value is None else f"{significant(value)} times clip's, on one GPU{step_range(directory)}"


@dataclass(frozen=True)
class Other:
    """Released results that are not the runs of one experiment."""

    question: str  # what they answer
    file: str  # the one to begin with
    command: str  # makes them, in Markdown
    answer: Callable[[Path], str]  # the answer in Markdown, from the directory
    picture: str = ""  # what pages of the runs behind it begin with, where they have no figure of their own


OTHERS: Mapping[str, Other] = {
    "leaderboard": Other(
        "Which rule ends highest when all are tuned with the same budget?",
        "board.md",
        _BOARD,
        _leaders,
        "budget.png",
    ),
    "duel": Other(
        "Does TROLL end above clip or GSPO's clipping when all are tuned well?",
        "contrasts.md",
        _DUEL,
        _contrasts,
        "contrasts.png",
    ),
    "statistics": Other(
        "Which differences of the testbed are clear, and how reliable are the intervals?",
        "comparisons.md",
        "`troll release comparisons results/released/testbed* --out results/released/statistics`",
        _compared,
    ),
    "graders": Other("Which wrong answers do the graders accept?", "audit.md", "`make audit`", _audit),
    "gpu": Other(
        "How long does an optimiser step with TROLL take?",
        "README.md",
        "`python workflow/benchmarks/gpu_check.py --out DIR`",
        _step,
    ),
    "smollm2-pilot": Other(
        "Which learning rates and base models suit the pretrained model?",
        "pilot.csv",
        "`make results EXPERIMENT=workflow/config/smollm2-pilot.yaml`",
        lambda _: "Success by batch, of clip alone; no claim rests on it",
    ),
}
"""By the name of the directory."""


def behind(name: str, directory: Path, *, picture: bool = False) -> str:
    """Returns the answer that an experiment's runs are behind, as a link from its page; else empty.

    Args:
        name: of the experiment.
        directory: its results.
        picture: whether the answer's picture follows.
    """
    other = OTHERS.get(QUESTIONS[name].part_of) if name in QUESTIONS else None
    above = directory.parent / QUESTIONS[name].part_of if other else directory
    if other is None or not (above / other.file).exists():
        return ""
    link = f"These runs are behind the answer to [{other.question}](../{above.name}/{other.file})"
    if not (picture and other.picture and (above / other.picture).exists()):
        return link
    return f"{link}\n\n![{other.question}](../{above.name}/{other.picture})"
