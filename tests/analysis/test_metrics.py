"""One place knows each metric: what runs log is described there, and what is shown is derived from there."""

import json
from pathlib import Path

import numpy as np
import pytest

from troll.analysis.data.reduction import Curve, summary_of
from troll.analysis.metrics import DIAGNOSTICS, METRICS, SHARE, SUMMARIES, markdown
from troll.analysis.render.formats import STYLES


def test_what_runs_log_is_described_but_for_names_of_a_rule_alone():
    golden = Path(__file__).parents[1] / "golden"
    recorded = [json.loads((golden / name).read_text()) for name in ("intel.json", "amd.json")]
    logged = {metric for record in recorded for run in record["runs"].values() for metric in run["metrics"]}
    assert {"kl_to_old", "kl_projected"} < logged
    assert logged - METRICS.keys() == {"ratio_low_bound", "ratio_high_bound"}  # of bapo


def test_summaries_are_computed_from_the_metric_that_they_name():
    steps = np.arange(1.0, 31.0)
    values = np.concatenate([np.linspace(0, 1, 15), np.linspace(1, 0.5, 15)])
    curves = {
        name: Curve(steps, np.floor(steps / 3), steps, values)
        for name in {summary.of for summary in SUMMARIES.values() if summary.of}
    }
    found = summary_of(curves)
    assert found["kl"] == pytest.approx(values[-10:].mean())
    assert found["entropy"] == found["final"] == pytest.approx(values[-3:].mean())
    assert found["entropy_start"] == pytest.approx(values[:2].mean())
    assert found["kl_max"] == found["peak"] == 1.0 and found["drop"] == pytest.approx(0.5)
    assert found["area"] == pytest.approx(np.trapezoid(values, steps) / 29)
    assert {summary.stored or name for name, summary in SUMMARIES.items() if summary.of} <= found.keys()


def test_what_is_shown_has_a_heading_and_a_unit():
    assert all(METRICS[name].over_run and STYLES[name].heading for name in DIAGNOSTICS)
    for name, entry in [*METRICS.items(), *SUMMARIES.items()]:
        assert entry.name == name and entry.meaning
        if entry.scale == "share":
            assert entry.unit == SHARE and entry.label.endswith(("(%)", "(points)"))


def test_the_table_of_the_documentation_has_a_row_for_each():
    rows = markdown(METRICS.values()).splitlines()
    assert len(rows) == len(METRICS) + 2
    assert (
        "| `kl_to_old` | nats per token | KL(new \\|\\| old) on kept tokens and tail, mean over tokens |"
        in rows
    )
