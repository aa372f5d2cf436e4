"""Methods at equal divergence."""

from pathlib import Path

import numpy as np
import pytest
import synthetic

from troll.analysis.data.runs import Collected, read_directories
from troll.analysis.tables.matched import matched_table

KL = {"clip": 0.040, "clip-eps0.1": 0.0105, "troll": 0.010, "troll-kl0.25": 0.020}
SOLVED = {"clip": 20, "clip-eps0.1": 24, "troll": 30, "troll-kl0.25": 33}


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    root = tmp_path_factory.mktemp("results") / "kl"
    dirs = [
        synthetic.write_run(
            root,
            "chains",
            method,
            "grpo",
            "stale",
            seed,
            batches=3,
            table=synthetic.solved(count + seed),
        )
        for method, count in SOLVED.items()
        for seed in range(3)
    ]
    found = read_directories(dirs, [synthetic.write_base(root, "chains", problems=60)])
    late = found.runs["metric"] == "kl_to_old"
    found.runs.loc[late, "value"] = found.runs.loc[late, "trust_region"].map(KL).astype(float)
    return found


def test_each_method_meets_the_clip_that_drifts_as_far(known: Collected) -> None:
    table = matched_table(known.runs, known.items).set_index("trust_region")
    assert list(table.index) == ["troll", "troll-kl0.25"], "variants of the baseline are no methods"
    row = table.loc["troll"]
    assert row["against"] == "clip-eps0.1" and row["ratio"] == pytest.approx(0.010 / 0.0105)
    assert row["difference"] == pytest.approx(0.1) and row["seeds"] == 3
    assert row["difference_low"] == pytest.approx(0.1) == row["difference_high"]


def test_unequal_divergence_is_shown_and_not_compared(known: Collected) -> None:
    row = matched_table(known.runs, known.items).set_index("trust_region").loc["troll-kl0.25"]
    assert row["against"] == "clip-eps0.1" and row["ratio"] == pytest.approx(0.02 / 0.0105)
    assert np.isnan(row["difference"]) and row["seeds"] == 0


def test_without_a_baseline_there_are_no_rows(known: Collected) -> None:
    alone = known.runs[known.runs["trust_region"].str.startswith("troll")]
    assert matched_table(alone, known.items).empty


def test_the_table_can_be_written(known: Collected, tmp_path: Path) -> None:
    from troll.analysis.render.formats import write_table

    write_table(matched_table(known.runs, known.items), tmp_path / "matched")
    text = (tmp_path / "matched.md").read_text()
    assert "+10.0" in text and "agree within 20 %" in text
