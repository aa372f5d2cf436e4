"""A value per rollout batch, and what only all steps tell, against computations by other means."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from troll.analysis.data.reduction import by_batch, curves_of, digest_of_log, summary_of

Rows = list[dict[str, Any]]
NAMES = (
    "loss",
    "entropy",
    "kl_to_old",
    "kl_to_old_max",
    "kept_mass_min",
    "response_length",
    "time/cpu_s",
    "time/update_s",
)
unhurried = settings(deadline=None)
numbers = st.floats(-1e3, 1e3) | st.just(math.nan)


@st.composite
def logs(draw):
    """Rows as `read_run_files` gives them: batches of any length, metrics that come and go, gaps."""
    rows: Rows = []
    step = draw(st.integers(0, 3))
    for batch in range(draw(st.integers(1, 5))):
        for first in [True] + [False] * draw(st.integers(0, 4)):
            number = None if draw(st.integers(0, 9)) == 0 else batch
            common = {"step": step, "rollout_batch": number, "wall_s": draw(st.floats(0, 1e5))}
            train = common | {"source": "train"}
            values = {name: draw(numbers) for name in draw(st.sets(st.sampled_from(NAMES)))}
            if first:
                values["success"] = draw(st.floats(0, 1))
            rows += [train | {"metric": name, "value": value} for name, value in values.items()]
            if draw(st.booleans()):
                validation = common | {"source": "validation", "metric": "validation_success"}
                rows.append(validation | {"value": draw(st.floats(0, 1))})
            step += draw(st.integers(1, 2))
    return rows


def same(one, other):
    return math.isclose(one, other, rel_tol=1e-12, abs_tol=1e-9) or (math.isnan(one) and math.isnan(other))


def mean(values):
    present = [value for value in values if value == value]
    return math.fsum(present) / len(present) if present else math.nan


def how(metric):
    if metric == "time/cpu_s":
        return lambda values: values.dropna().iloc[0] if values.notna().any() else math.nan
    return "max" if metric.endswith("max") else "min" if metric.endswith("min") else mean


@unhurried
@given(logs())
def test_values_of_a_batch_are_those_that_pandas_gives(rows):
    reduced = [row for row in by_batch(rows) if row["source"] == "train"]
    found = {(row["metric"], row["rollout_batch"], row["step"]): row for row in reduced}
    assert len(found) == len(reduced)
    frame = pd.DataFrame([row for row in rows if row["source"] == "train"])
    known = frame[frame["rollout_batch"].notna()]
    expected = 0
    for (metric, batch), own in known.groupby(["metric", "rollout_batch"]):
        row = found[metric, int(batch), own["step"].iloc[0]]
        assert row["step"] == own["step"].min() and row["wall_s"] == own["wall_s"].iloc[0]
        assert same(row["value"], own["value"].agg(how(str(metric)))), (metric, batch)
        expected += 1
    for one in frame[frame["rollout_batch"].isna()].itertuples():
        row = found[one.metric, None, one.step]
        assert same(row["value"], one.value) and row["wall_s"] == one.wall_s
        expected += 1
    assert expected == len(reduced)
    validation = [row for row in rows if row["source"] == "validation"]
    assert [row for row in by_batch(rows) if row["source"] == "validation"] == validation


@unhurried
@given(logs())
def test_summaries_are_what_their_names_say(rows):
    summary = {
        row["metric"].removeprefix("summary/"): row["value"]
        for row in by_batch(rows)
        if row["source"] == "summary"
    }
    train = pd.DataFrame([row for row in rows if row["source"] == "train"])
    of = dict(list(train.groupby("metric")))
    first, last = train["step"].min(), train["step"].max()
    expected = {
        "steps": float(last),
        "batches": float(train["rollout_batch"].nunique()),
        "train_s": train["wall_s"].max(),
        **{f"mean/{metric}": mean(own["value"]) for metric, own in of.items()},
    }
    for metric, name, share in (
        ("kl_to_old", "kl", 1 / 3),
        ("entropy", "entropy", 0.1),
        ("response_length", "response_length", 0.1),
        ("success", "final", 0.1),
    ):
        if metric in of:
            late = of[metric][of[metric]["step"] > last - share * (last - first + 1)]
            expected[name] = mean((late if len(late) else of[metric].tail(1))["value"])
    if "entropy" in of:
        batches = of["entropy"]["rollout_batch"]
        start = of["entropy"][batches == batches.min()]
        expected["entropy_start"] = mean((start if len(start) else of["entropy"].head(1))["value"])
    if "kl_to_old_max" in of:
        expected["kl_max"] = of["kl_to_old_max"]["value"].max()
    if "time/cpu_s" in of:
        expected["cpu_s"] = of["time/cpu_s"]["value"].max()
    success = of["success"]["value"].tolist()
    expected["peak"] = max(success)
    expected["drop"] = max(
        before - after for index, after in enumerate(success) for before in success[: index + 1]
    )
    steps, pairs = of["success"]["step"].tolist(), range(len(success) - 1)
    area = math.fsum((success[i] + success[i + 1]) / 2 * (steps[i + 1] - steps[i]) for i in pairs)
    expected["area"] = area / (steps[-1] - steps[0]) if len(success) > 1 else success[0]
    assert summary.keys() == expected.keys()
    assert {name for name, value in expected.items() if not same(value, summary[name])} == set()


@unhurried
@given(logs(), st.data())
def test_a_run_that_stopped_early_has_the_batches_that_it_finished(rows, data):
    cut = data.draw(st.integers(1, len(rows)))
    last = rows[cut - 1]["step"]
    short = [row for row in rows if row["step"] <= last]
    following = [row["rollout_batch"] for row in rows if row["step"] > last]
    values = [
        {
            (row["metric"], row["rollout_batch"], row["step"]): row["value"].hex()
            for row in by_batch(part)
            if row["source"] == "train"
        }
        for part in (short, rows)
    ]
    for (metric, batch, step), value in values[0].items():
        if batch is None or batch not in following:
            assert values[1][metric, batch, step] == value
    if train := [row for row in short if row["source"] == "train"]:
        assert summary_of(curves_of(train))["steps"] == max(row["step"] for row in train)


def test_nothing_logged_has_no_summary():
    assert by_batch([]) == [] and summary_of({}) == {}
    validation = {"step": 3, "rollout_batch": 0, "wall_s": 1.0, "metric": "validation_success", "value": 0.5}
    assert by_batch([validation | {"source": "validation"}]) == [validation | {"source": "validation"}]


def test_times_that_were_not_logged_are_missing():
    common = {"rollout_batch": 0, "wall_s": math.nan, "source": "train", "metric": "loss"}
    reduced = by_batch([common | {"step": step, "value": float(step)} for step in (1, 2)])
    (loss,) = (row for row in reduced if row["source"] == "train")
    assert loss["value"] == 1.5 and math.isnan(loss["wall_s"])
    (seconds,) = (row["value"] for row in reduced if row["metric"] == "summary/train_s")
    assert math.isnan(seconds)


@unhurried
@given(logs(), st.data())
def test_the_digest_of_a_log_has_the_last_bit_of_every_number(rows, data):
    digest = digest_of_log(rows)
    place = data.draw(st.integers(0, len(rows) - 1))
    row, toward = rows[place], data.draw(st.sampled_from([-math.inf, math.inf]))
    value = 0.0 if math.isnan(row["value"]) else float(np.nextafter(row["value"], toward))
    changed = [*rows[:place], row | {"value": value}, *rows[place + 1 :]]
    assert (digest_of_log(changed) == digest) == row["metric"].startswith("time/")
    assert digest_of_log([one | {"wall_s": 7.0} for one in rows]) == digest, "times are no numbers of a run"
    assert digest_of_log(data.draw(st.permutations(rows))) == digest, "nor is the order of a line's keys"
    shorter = [*rows[:place], *rows[place + 1 :]]
    assert (digest_of_log(shorter) == digest) == row["metric"].startswith("time/")
    if not row["metric"].startswith("time/"):
        moved = [*rows[:place], row | {"step": row["step"] + 1000}, *rows[place + 1 :]]
        named = [*rows[:place], row | {"metric": "another"}, *rows[place + 1 :]]
        assert digest not in (digest_of_log(moved), digest_of_log(named))


@pytest.mark.parametrize(("value", "other"), [(0.0, -0.0), (1, 1.0), (math.nan, math.nan)])
def test_equal_numbers_have_equal_digests_and_signs_of_zero_are_no_equals(value, other):
    row = {"step": 1, "rollout_batch": 0, "wall_s": 0.0, "metric": "loss", "source": "train"}
    digests = {digest_of_log([row | {"value": one}]) for one in (value, other)}
    assert len(digests) == (2 if math.copysign(1, value) != math.copysign(1, other) else 1)
