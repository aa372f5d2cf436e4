"""The first table of the README: what was compared, at which rate, where both ended, and the difference."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from troll.analysis.claims.ledger import findings
from troll.analysis.claims.verdicts import ClaimVerdict
from troll.analysis.claims.wording import label, short, why
from troll.analysis.data.settings import settings_by
from troll.analysis.data.tidy import BASE
from troll.analysis.render.formats import bracketed, counted, listed, points, scientific, significant
from troll.analysis.report.outcomes import (
    OUTCOMES,
    best_at_edges,
    by_task,
    equal_up_to,
    other_contrasts,
    outcome,
    sequence_tests,
)
from troll.analysis.report.questions import Question, step_range, step_ratio

_TESTBED = (
    "`make results SEEDS=0,1,2,3,4`, and the same with `EXPERIMENT=workflow/config/testbed-estimators.yaml` "
    "and `testbed-ablations.yaml`"
)

QUESTIONS = (
    Question("Testbed, fresh rollouts (one pass over each batch)", _TESTBED, "testbed-gentle-not-worse"),
    Question("Testbed, stale rollouts (three passes, neither rule tuned)", _TESTBED, "testbed-stale-better"),
    Question(
        "A pretrained model of 135M parameters, stale rollouts",
        "`make results EXPERIMENT=workflow/config/smollm2.yaml REPEAT=1`; on a GPU "
        "[`gpu_runs.sh`](workflow/benchmarks/gpu_runs.sh) `workflow/config/smollm2-gpu.yaml`",
        "smollm2-stale-better",
    ),
)


def front(judged: Sequence[ClaimVerdict], results: Path, runs: pd.DataFrame) -> str:
    """Returns the table in Markdown, without rows that have no runs, and how many claims got which verdict.

    The testbed's claims are judged over all its experiments; the duel's contrasts and what a GPU measured
    come from ``results``, the directory of what is released; where runs ended from their tidy tables.
    """
    known = {item.claim.id: item for item in judged if item.verdict != "not run"}
    rows = [_claim(item, known[item.claim], runs) for item in QUESTIONS if item.claim in known]
    # The next questions after those of the testbed.
    rows[2:2] = [*_duel(results / "duel"), *_rates_sequence(results / "smollm2-rates", runs)]
    rows += _step(results / "gpu")
    header = [
        "| What was compared | Test pass@1 in % | TROLL minus clip | TROLL is | Command |",
        "| --- | --- | ---: | --- | --- |",
    ]
    tally = f"{findings(judged, 0)[-1]} [Each of them](docs/findings.md#verdicts)."
    return "\n".join([*header, *rows, "", tally]) + "\n"


def _claim(question: Question, verdict: ClaimVerdict, runs: pd.DataFrame) -> str:
    claim = verdict.claim
    answer = outcome(claim.direction, claim.margin, label(verdict), why(verdict))
    if claim.retired:
        answer = f"{_of_interval(verdict)}; the claim is [retired](docs/findings.md#verdicts)"
    settings = verdict.decision.settings
    tasks = len({setting.coordinates["task"] for setting in settings})
    of_tasks = f" of {counted(tasks, 'task')}" if 1 < len(settings) != tasks else ""
    compared = f"{question.text}{_rates(verdict, runs)}{_cut(verdict, runs)}"
    return _row(compared, _ends(verdict, runs), short(verdict) + of_tasks, answer, question.command)


def _of_interval(verdict: ClaimVerdict) -> str:
    """Returns where the average lies beside 0, for a claim that is no longer judged."""
    pooled = verdict.decision.pooled
    if pooled is None or pooled.low <= 0 <= pooled.high:
        return OUTCOMES["undecided"]
    return OUTCOMES["above" if pooled.low > 0 else "below"]


def _rows_of(
    verdict: ClaimVerdict, runs: pd.DataFrame, metric: str = "pass@1", source: str = "test"
) -> pd.DataFrame:
    """Returns a metric of the runs that a claim compares, and of their base models."""
    tested = runs[(runs["metric"] == metric) & (runs["source"] == source)]
    settings = [setting.coordinates for setting in verdict.decision.settings]
    places = {(place["model"], place["task"], place["estimator"], place["condition"]) for place in settings}
    columns = ("model", "task", "estimator", "condition")
    keys = list(zip(*(tested[name].astype(str) for name in columns), strict=True))
    compared = tested["trust_region"].isin([verdict.claim.trust_region, str(verdict.claim.baseline)])
    bases = {(model, task) for model, task, *_ in places}
    chosen = [
        (key in places and own) or (rule == BASE and key[:2] in bases)
        for key, own, rule in zip(keys, compared, tested["trust_region"], strict=True)
    ]
    return tested[chosen]


def _ends(verdict: ClaimVerdict, runs: pd.DataFrame) -> str:
    """Returns where base model, baseline and method ended by task: means over runs with their pair."""
    names = {BASE: "base", str(verdict.claim.baseline): "clip", verdict.claim.trust_region: "TROLL"}
    return by_task(_paired(_rows_of(verdict, runs)), names)


def _paired(ended: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of base models, and of runs with a run of the other rule beside them."""
    of_base = ended["trust_region"] == BASE
    run = ["experiment", "model", "task", "estimator", "condition", "seed"]
    rules = ended[~of_base].groupby(run, observed=True)["trust_region"].transform("nunique")
    return ended[of_base | (rules.reindex(ended.index) == 2)]


def _rates(verdict: ClaimVerdict, runs: pd.DataFrame) -> str:
    """Returns the learning rates of the compared runs."""
    trained = _rows_of(verdict, runs)
    trained = trained[trained["trust_region"] != BASE]
    recorded = [settings for _, settings in settings_by(trained, ["experiment", "run_id"])]
    name = "training/learning_rate"
    rates = sorted({float(settings[name]) for settings in recorded if name in settings})
    return f", learning rate {listed([scientific(rate) for rate in rates])}" if rates else ""


def _cut(verdict: ClaimVerdict, runs: pd.DataFrame) -> str:
    """Returns the share of tokens that clipping cuts: where it is small, no trust region acts."""
    rows = _rows_of(verdict, runs, "summary/mean/clip_fraction", "summary")
    shares = rows.loc[rows["trust_region"] == str(verdict.claim.baseline), "value"]
    return f"; clip cuts {100 * shares.mean():.1f} % of tokens" if len(shares) else ""


def _rates_sequence(directory: Path, runs: pd.DataFrame) -> Iterator[str]:
    """Yields the first two tests of a fixed sequence: mean height of the curve, at either learning rate."""
    if not directory.exists():
        return
    own = runs[runs["experiment"] == directory.name]
    for test, difference, answer in sequence_tests(directory, own):
        at_rate = own[own["condition"].isin([test["condition"], ""])]
        share = at_rate[
            (at_rate["metric"] == "summary/mean/clip_fraction") & (at_rate["trust_region"] == "clip")
        ]
        tested = at_rate[(at_rate["metric"] == "pass@1") & (at_rate["source"] == "test")]
        rate = test["condition"].replace("rate-", "learning rate ")
        yield _row(
            f"A pretrained model of 135M parameters, three passes, {rate}; clip cuts"
            f" {100 * share['value'].mean():.1f} % of tokens "
            "([every test](results/released/smollm2-rates/sequence.md))",
            by_task(_paired(tested), {BASE: "base", "clip": "clip", "troll": "TROLL"}),
            difference,
            answer,
            "`troll run workflow/config/smollm2-rates.yaml --repeat`",
        )


def _duel(directory: Path) -> Iterator[str]:
    """Yields the duel's primary contrast with that of the third rule, which it must not hide."""
    path = directory / "contrasts.csv"
    if not path.exists():
        return
    first = pd.read_csv(path).iloc[0]
    answer = f"{OUTCOMES[str(first['reading'])]} ({equal_up_to(path.parent)})"
    yield _row(
        f"Both tuned alike, {int(first['seeds'])} new seeds ([the duel](docs/leaderboard.md#the-duel), "
        "[every contrast](results/released/duel/contrasts.md))",
        _ends_of_board(directory / "board.csv"),
        f"{points(first['difference'])} {bracketed(first, 'difference')} points",
        "; ".join(filter(None, (answer, other_contrasts(directory), best_at_edges(directory)))),
        "`troll rank workflow/config/duel.yaml --repeat`",
    )


def _ends_of_board(path: Path) -> str:
    """Returns where each rule of a board ended, by task."""
    if not path.exists():
        return ""
    parts = []
    for task, rows in pd.read_csv(path).groupby("task", sort=True):
        ends = rows.set_index("trust_region")["pass@1"].sort_index()
        parts.append(f"{task}: {', '.join(f'{rule} {100 * end:.0f}' for rule, end in ends.items())}")
    return "; ".join(parts)


def _step(directory: Path) -> Iterator[str]:
    """What a whole step of TROLL takes on a GPU."""
    if (directory / "gpu_check.json").exists() and (value := step_ratio(directory)) is not None:
        yield _row(
            "Time of an optimiser step (random weights of 0.6B parameters, 10 % of the tokens projected, "
            "[one GPU](results/released/gpu/README.md))",
            "",
            f"{significant(value)} times clip's",
            f"**{'slower' if value > 1 else 'faster'}** by {100 * abs(value - 1):.1f} %"
            f"{step_range(directory)}",
            "`python workflow/benchmarks/gpu_check.py --out DIR`",
        )


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
