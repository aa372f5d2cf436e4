"""The fixed sequence of tests of smollm2-rates, on made-up runs whose outcomes are known."""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import synthetic
from refusals import refused
from scipy import stats

import rates_sequence
from troll.analysis.data.results import Results

LOW, HIGH = "rate-1e-5", "rate-3e-5"
SEEDS = range(8001, 8013)


def results(value, seeds=SEEDS):
    """Results in which `value(endpoint, condition, rule, task, seed)` says what each run reached."""
    rows, expected = [], []
    for condition, rule, task, seed in itertools.product(
        (LOW, HIGH), ("clip", "troll"), ("chains", "functions"), seeds
    ):
        coordinates = {
            "model": "m",
            "task": task,
            "trust_region": rule,
            "estimator": "grpo",
            "condition": condition,
            "seed": seed,
        }
        expected.append(coordinates)
        run_id = f"m/{task}/{rule}/grpo/{condition}/seed{seed}"
        for source, metric, endpoint in (("summary", "summary/area", "auc"), ("test", "pass@1", "pass@1")):
            number = value(endpoint, condition, rule, task, seed)
            row = {"run_id": run_id, "source": source, "metric": metric, "value": number, "mixed": False}
            rows.append(coordinates | row)
    return Results(pd.DataFrame(rows), pd.DataFrame(), expected)


def outcomes(table):
    both = table[table["tasks"] == "both"]
    return list(zip(both["test"], both["condition"], both["outcome"], strict=True))


def test_the_unit_is_a_seed_over_both_tasks():
    def value(endpoint, condition, rule, task, seed):
        return (seed % 7) / 100 * (rule == "troll") * (2 if task == "chains" else 1) + (seed % 5) / 10

    table = rates_sequence.sequence(results(value))
    first = table.iloc[0]
    differences = np.array([1.5 * (seed % 7) / 100 for seed in SEEDS])
    known = stats.ttest_1samp(differences, 0)
    low, high = known.confidence_interval(0.95)
    assert first["difference"] == pytest.approx(differences.mean())
    assert (first["difference_low"], first["difference_high"]) == pytest.approx((low, high))
    assert first["p"] == pytest.approx(known.pvalue) and first["seeds"] == 12
    assert first["positive"] == sum(seed % 7 > 0 for seed in SEEDS)
    alone = table[(table["test"] == 1) & (table["tasks"] == "chains")].iloc[0]
    assert alone["difference"] == pytest.approx(2 * differences.mean() / 1.5) and alone["outcome"] == ""


def test_after_a_test_that_fails_everything_is_exploratory():
    def value(endpoint, condition, rule, task, seed):
        better = rule == "troll" and (endpoint == "pass@1" or condition == LOW)
        return 0.5 + 0.2 * better + 0.01 * (seed % 3) * (rule == "troll") * (1 if seed % 2 else -1)

    assert [outcome for *_, outcome in outcomes(rates_sequence.sequence(results(value)))] == [
        "succeeded",
        "failed",
        "exploratory",
        "exploratory",
        "exploratory",
    ]


def test_a_clear_difference_downwards_is_no_success():
    def value(endpoint, condition, rule, task, seed):
        return 0.5 - 0.2 * (rule == "troll") + 0.001 * (seed % 3) * (rule == "clip")

    assert outcomes(rates_sequence.sequence(results(value)))[0] == (1, LOW, "failed")


def test_holm_corrects_the_last_two():
    def value(endpoint, condition, rule, task, seed):
        if endpoint == "auc":
            return 0.3 + 0.1 * (rule == "troll") + 0.001 * (seed % 3) * (rule == "troll")
        return 0.5 + (0.05 if seed % 2 else -0.03) * (rule == "troll")

    table = rates_sequence.sequence(results(value))
    last = table[(table["test"] == 4) & (table["tasks"] == "both")]
    differences = np.array([0.05 if seed % 2 else -0.03 for seed in SEEDS])
    raw = stats.ttest_1samp(differences, 0).pvalue
    assert list(last["p"]) == pytest.approx([min(1, 2 * raw)] * 2)


def test_each_half_of_the_seeds_chooses_the_rates_of_the_other():
    # The first half prefers the high rate for TROLL, the second the low one; clip is the same at both.
    def value(endpoint, condition, rule, task, seed):
        first = seed <= 8006
        if rule == "clip":
            return 0.4
        if condition == HIGH:
            return (0.8 if first else 0.1) + 0.001 * (seed % 4)
        return (0.5 if first else 0.6) + 0.001 * (seed % 4)

    table = rates_sequence.sequence(results(value))
    chosen = table[(table["test"] == 3) & (table["tasks"] == "both")].iloc[0]
    # The first half is tested at the low rate, which the second prefers; the second at the high one.
    known = [(0.5 if seed <= 8006 else 0.1) + 0.001 * (seed % 4) - 0.4 for seed in SEEDS]
    assert chosen["difference"] == pytest.approx(np.mean(known)) and chosen["seeds"] == 12
    equal = rates_sequence.sequence(
        results(
            lambda endpoint, condition, rule, task, seed: (
                0.4 + 0.1 * (condition == HIGH and endpoint == "pass@1")
            )
        )
    )
    assert equal[(equal["test"] == 3) & (equal["tasks"] == "both")].iloc[0]["difference"] == 0


def test_a_seed_without_a_run_is_left_out_of_the_tests_that_need_it():
    whole = results(lambda endpoint, condition, rule, task, seed: 0.4 + 0.1 * (rule == "troll") + seed / 1e6)
    gone = whole.runs["run_id"] == f"m/chains/clip/grpo/{HIGH}/seed8003"
    table = rates_sequence.sequence(Results(whole.runs[~gone], whole.items, whole.expected))
    both = table[table["tasks"] == "both"]
    assert list(both["seeds"]) == [12, 11, 11, 12, 11] and set(both["planned"]) == {12}


def test_planned_runs_that_have_not_ended_are_counted():
    whole = results(lambda *_: 0.5)
    gone = whole.runs["run_id"].str.endswith(("seed8011", "seed8012"))
    assert rates_sequence.lacking(whole) == 0
    assert rates_sequence.lacking(Results(whole.runs[~gone], whole.items, whole.expected)) == 16
    with refused("here", "16 of 96"):
        rates_sequence.refuse_early(Results(whole.runs[~gone], whole.items, whole.expected), Path("here"))


def test_the_page_says_which_tests_count_and_on_how_many_runs_they_rest():
    def value(endpoint, condition, rule, task, seed):
        return 0.5 + (0.1 + 0.01 * (seed % 3)) * (rule == "troll" and condition == LOW)

    page = rates_sequence.to_page(rates_sequence.sequence(results(value)), 88, 96)
    lines = page.splitlines()
    (first,) = (line for line in lines if line.startswith(f"| 1 | mean height of the curve | {LOW} | both |"))
    assert "| 12 of 12 | <0.001 | no | succeeded |" in first and "| 12 | +11.0 [+10.5, +11.5] |" in first
    (second,) = (
        line for line in lines if line.startswith(f"| 2 | mean height of the curve | {HIGH} | both |")
    )
    assert "0.0 [0.0, 0.0]" in second and second.endswith("| 0 of 12 | 1.000 | yes | failed |")
    assert any(line.endswith("| exploratory |") for line in lines) and "88 of 96 planned runs" in page


def test_without_a_plan_nothing_is_tested(tmp_path):
    runs, bases = synthetic.write_experiment(
        tmp_path / "made", tasks=["chains"], conditions=["stale"], estimators=["grpo"], seeds=2, batches=2
    )
    synthetic.collect(runs, tmp_path, bases)
    with refused("has no plan.json", "troll status FILE --page"):
        rates_sequence.test(tmp_path, incomplete=True)
    assert not (tmp_path / "sequence.csv").exists()


def test_the_differences_stand_by_machine_where_there_are_two():
    def value(endpoint, condition, rule, task, seed):
        gain = (0.2 if seed > 8006 else 0.1) + (seed % 2) / 100
        return 0.5 + gain * (rule == "troll") * (2 if endpoint == "auc" else 1)

    made = results(value)
    made.runs["hardware"] = made.runs["seed"].map(
        lambda seed: '{"gpus": ["A card"]}' if seed > 8006 else '{"processor": "Zen"}'
    )
    rows = rates_sequence.by_machine(made)
    gains = rows.set_index(["endpoint", "condition", "machine"])["difference"]
    assert len(rows) == 8 and set(rows["seeds"]) == set(rows["positive"]) == {6}
    assert gains["auc", LOW, "Zen"] == pytest.approx(0.21) and gains["auc", LOW, "A card"] == pytest.approx(
        0.41
    )
    assert gains["pass@1", HIGH, "A card"] == pytest.approx(0.205)
    assert "| A card | 6 | +41.0" in rates_sequence.machines_page(rows)
    made.runs["hardware"] = '{"processor": "Zen"}'
    assert rates_sequence.machines_page(rates_sequence.by_machine(made)) == ""
