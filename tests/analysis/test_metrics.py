"""One place knows each metric: what runs log is described there, and what is shown is derived from there."""

import json
from pathlib import Path

from troll.analysis.metrics import DIAGNOSTICS, METRICS, SHARE, SUMMARIES, markdown
from troll.analysis.render.formats import STYLES


def test_what_runs_log_is_described_but_for_names_of_a_rule_alone():
    golden = Path(__file__).parents[1] / "golden"
    recorded = [json.loads((golden / name).read_text()) for name in ("intel.json", "amd.json")]
    logged = {metric for record in recorded for run in record["runs"].values() for metric in run["metrics"]}
    assert {"kl_to_old", "kl_projected"} < logged
    assert logged - METRICS.keys() == {"ratio_low_bound", "ratio_high_bound"}  # of bapo


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
