"""The fixed sequence of tests of smollm2-rates: TROLL minus clip at two learning rates, by seed.

    python workflow/benchmarks/rates_sequence.py results/smollm2-rates

Writes sequence.csv and sequence.md into the directory. The order and the endpoints were committed before the
first run, in workflow/config/smollm2-rates-claims.yaml; each test counts only if all before it succeeded.
Nothing is tested before all planned runs have ended, unless ``--incomplete`` says that no more will be made.
"""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer

from troll.analysis.data.provenance import machine_name
from troll.analysis.data.results import Results, read_results
from troll.analysis.data.summaries import per_run
from troll.analysis.data.tidy import BASE
from troll.analysis.render.formats import Style, points, probability, table, to_markdown, whole
from troll.analysis.statistics import LEVEL, holm, paired_p_value, seed_interval
from troll.cli.app import begin, main
from troll.common.errors import UserError
from troll.common.files import write_text

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

LOWER, HIGHER = "rate-1e-5", "rate-3e-5"
RULES = ("troll", "clip")
MARGINS = {"auc": 0.01, "pass@1": 0.03}
"""Differences that count as equal, by endpoint: mean height of the curve and final test pass@1."""
_STYLES = {
    "test": Style("Test", whole),
    "endpoint": Style("Endpoint"),
    "condition": Style("Rate"),
    "tasks": Style("Tasks"),
    "seeds": Style("Seeds", whole),
    "difference": Style("Δ (points)", points),
    "positive": Style("Seeds above 0"),
    "p": Style("p", probability),
    "within": Style("Within the margin"),
    "outcome": Style("Outcome"),
}
_ENDPOINTS = {"auc": "mean height of the curve", "pass@1": "test pass@1"}
CHOOSING = (range(8001, 8007), range(8007, 8013))
"""Each half of the seeds chooses the rates of the other half."""


def sequence(results: Results) -> pd.DataFrame:
    """The outcome of every test in its order.

    Returns:
        A row for each test over both tasks and for each of its tasks alone: ``test`` (1 to 4), ``endpoint``,
        ``condition``, ``tasks``, ``seeds`` (complete ones) of those ``planned``, ``difference`` (TROLL minus
        clip) with its 95 % interval, ``positive`` (seeds with a positive difference), ``p`` of Student's
        paired test, for test 4 corrected by Holm's method, ``within`` (the interval is inside the margin),
        and ``outcome``: succeeded, failed or exploratory; empty for single tasks.
    """
    planned_runs = results.expected or ()
    heights, ends = _by_seed(results, "auc"), _by_seed(results, "pass@1")
    tests = [
        [("auc", LOWER, _difference(heights, LOWER))],
        [("auc", HIGHER, _difference(heights, HIGHER))],
        [("auc", "each rule's better rate", _at_better_rates(heights))],
        [("pass@1", LOWER, _difference(ends, LOWER)), ("pass@1", HIGHER, _difference(ends, HIGHER))],
    ]
    rows, open_ = list[dict[str, Any]](), True
    for number, parts in enumerate(tests, 1):
        overall = [_row(number, *part[:2], "both", part[2].mean(axis=1)) for part in parts]
        for row, p_value in zip(overall, holm([row["p"] for row in overall]), strict=True):
            row["p"] = float(p_value)
        succeeded = all(row["p"] < 1 - LEVEL and row["difference"] > 0 for row in overall)
        for row, (endpoint, condition, values) in zip(overall, parts, strict=True):
            one = row["p"] < 1 - LEVEL and row["difference"] > 0
            rows.append(row | {"outcome": ("succeeded" if one else "failed") if open_ else "exploratory"})
            rows += [_row(number, endpoint, condition, str(task), values[task]) for task in values]
        open_ = open_ and succeeded
    table = pd.DataFrame(rows)
    table.insert([*table].index("seeds") + 1, "planned", len({run["seed"] for run in planned_runs}))
    return table


def by_machine(results: Results) -> pd.DataFrame:
    """The differences at each rate among the seeds of one kind of machine, which test nothing.

    Returns:
        A row for each endpoint, rate and ``machine``, with the columns of `sequence`; empty if all seeds come
        from one kind of machine.
    """
    runs = results.runs[results.runs["trust_region"] != BASE].drop_duplicates("seed")
    machines = dict(zip(runs["seed"], map(machine_name, runs["hardware"].astype(str)), strict=True))
    rows = []
    for endpoint in MARGINS if len(set(machines.values())) > 1 else ():
        values = _by_seed(results, endpoint)
        for condition in (LOWER, HIGHER):
            seeds = _difference(values, condition).mean(axis=1)
            for machine, own in seeds.groupby(seeds.index.map(machines)):
                rows.append(_row(0, endpoint, condition, "both", own) | {"machine": str(machine)})
    return pd.DataFrame(rows)


def _by_seed(results: Results, endpoint: str) -> pd.DataFrame:
    """An endpoint of every run: a row per seed, a column per condition, rule and task."""
    table = per_run(results.runs)
    table = table[table["trust_region"] != BASE]
    columns = ["condition", "trust_region", "task"]
    return table.pivot(index="seed", columns=columns, values=endpoint).astype(float).sort_index(axis=1)


def _difference(values: pd.DataFrame, condition: str) -> pd.DataFrame:
    """TROLL minus clip at a rate, by seed and task; seeds that lack a run are left out."""
    troll, clip = (values.xs((condition, rule), axis=1) for rule in RULES)
    return pd.DataFrame(troll - clip).dropna()


def _at_better_rates(heights: pd.DataFrame) -> pd.DataFrame:
    """TROLL minus clip, each at the rate that the other half of the seeds prefers; if equal, the lower."""
    complete, halves = heights.dropna(), list[pd.DataFrame]()
    for choosing, tested in (CHOOSING, CHOOSING[::-1]):
        seeds = complete.index.intersection(pd.Index(choosing))
        rows = complete.loc[complete.index.intersection(pd.Index(tested))]
        if not len(seeds) or not len(rows):
            return pd.DataFrame()
        means = complete.loc[seeds].mean()
        best = {
            rule: HIGHER if means[HIGHER][rule].mean() > means[LOWER][rule].mean() else LOWER
            for rule in RULES
        }
        halves.append(rows[best["troll"]]["troll"] - rows[best["clip"]]["clip"])
    return pd.concat(halves).sort_index()


def _row(number: int, endpoint: str, condition: str, tasks: str, seeds: pd.Series) -> dict[str, Any]:
    values = np.asarray(seeds, dtype=np.float64)
    row: dict[str, Any] = {"test": number, "endpoint": endpoint, "condition": condition, "tasks": tasks}
    interval = seed_interval(values).columns("difference") if values.size > 1 else {}
    margin = MARGINS[endpoint]
    return (
        row
        | {"seeds": values.size, **dict.fromkeys(("difference", "difference_low", "difference_high"), np.nan)}
        | interval
        | {
            "positive": int((values > 0).sum()),
            "p": paired_p_value(values),
            "within": bool(interval)
            and -margin <= interval["difference_low"]
            and interval["difference_high"] <= margin,
            "outcome": "",
        }
    )


def to_page(tests: pd.DataFrame, ended: int, planned: int) -> str:
    """Returns the tests as a Markdown table that says how many of the planned runs they rest on."""
    shown_rows = tests.assign(
        endpoint=tests["endpoint"].replace(_ENDPOINTS),
        positive=[f"{row.positive} of {row.seeds}" for row in tests.itertuples()],
        within=["yes" if within else "no" for within in tests["within"]],
        outcome=tests["outcome"].replace({"": "–"}),
    )
    margins = f"{100 * MARGINS['auc']:g} point of height, {100 * MARGINS['pass@1']:g} of pass@1"
    return to_markdown(
        table(
            [dict(row) for _, row in shown_rows.iterrows()],
            _STYLES,
            f"TROLL minus clip by seed, in percentage points with 95 % intervals; {ended} of {planned} "
            "planned runs have ended.",
            "The order was fixed before the first run (workflow/config/smollm2-rates-claims.yaml): a test "
            "counts only if all before it succeeded, which means an interval above zero; what follows the "
            "first that failed is exploratory. Rows of single tasks decide nothing. The p-values of test 4 "
            f"are corrected by Holm's method. Margin: {margins}.",
            columns=[*_STYLES, "difference_low", "difference_high"],
        )
    )


def machines_page(rows: pd.DataFrame) -> str:
    """Returns the differences by machine as a Markdown table; empty if there is one kind."""
    if rows.empty:
        return ""
    shown_rows = rows.assign(
        endpoint=rows["endpoint"].replace(_ENDPOINTS),
        positive=[f"{row.positive} of {row.seeds}" for row in rows.itertuples()],
    )
    names = ("endpoint", "condition", "machine", "seeds", "difference", "positive")
    return "\n" + to_markdown(
        table(
            [dict(row) for _, row in shown_rows.iterrows()],
            {name: Style("Machine") if name == "machine" else _STYLES[name] for name in names},
            "The same differences for the seeds of each kind of machine. This table was added after the "
            "tests and is not one of them.",
            columns=[*names, "difference_low", "difference_high"],
        )
    )


def lacking(results: Results) -> int:
    """How many of the planned runs have not ended."""
    ended = set(per_run(results.runs)["run_id"]) if len(results.runs) else set()
    names = ("model", "task", "trust_region", "estimator", "condition")
    planned = [
        "/".join([*(str(run[name]) for name in names), f"seed{run['seed']}"])
        for run in results.expected or ()
    ]
    return sum(name not in ended for name in planned)


def refuse_early(results: Results, directory: Path) -> None:
    """Raises a UserError if planned runs have not ended."""
    if count := lacking(results):
        raise UserError(
            f"{directory}: {count} of {len(results.expected or ())} planned runs have not ended, and nothing "
            "is tested before; if no more will be made: --incomplete"
        )


@app.command()
def test(
    directory: Annotated[Path, typer.Argument(help="results of smollm2-rates", file_okay=False, exists=True)],
    incomplete: Annotated[
        bool, typer.Option("--incomplete", help="no more runs will be made: test the seeds that are complete")
    ] = False,
) -> None:
    """Test the claims of smollm2-rates in their order, into sequence.csv and sequence.md."""
    begin(None)
    results = read_results(directory)
    if results.expected is None:
        raise UserError(
            f"{directory}: has no plan.json, which says how many runs are planned; "
            "`troll status FILE --page` writes one to results/smollm2-rates/finished"
        )
    if not incomplete:
        refuse_early(results, directory)
    tests, planned = sequence(results), len(results.expected or ())
    write_text(directory / "sequence.csv", tests.to_csv(index=False))
    page = to_page(tests, planned - lacking(results), planned) + machines_page(by_machine(results))
    write_text(directory / "sequence.md", page)
    print(tests.to_string(index=False))


if __name__ == "__main__":
    main(app)
