"""Differences over base models of one kind."""

import numpy as np
import pandas as pd
import pytest
import synthetic

from troll.analysis.claims.verdicts import judge
from troll.analysis.data.runs import read_directories
from troll.analysis.data.tidy import Tidy
from troll.analysis.figures.base_models import base_models_figure
from troll.analysis.render.formats import to_markdown
from troll.analysis.tables.base_models import base_models_table

GAPS = {"small": (3, 6, 9), "large": (0, -3, 12)}
"""Problems (of 60) that TROLL solves more than clip does, by kind and base model; programs: two more."""
WIDTHS = {"small": 64, "large": 192}


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    parts = []
    for kind, gaps in GAPS.items():
        for base, gap in enumerate(gaps):
            root = tmp_path_factory.mktemp(f"{kind}{base}") / "sizes"
            dirs = [
                synthetic.write_run(
                    root,
                    task,
                    method,
                    "grpo",
                    "stale",
                    seed,
                    batches=2,
                    table=synthetic.solved(30 + more + (seed if method == "troll" else 0)),
                )
                for task, extra in (("chains", 0), ("functions", 2))
                for method, more in (("clip", 0), ("troll", gap + extra))
                for seed in range(3)
            ]
            bases = [
                synthetic.write_base(root, task, table=synthetic.solved(12))
                for task in ("chains", "functions")
            ]
            parts.append(_renamed(read_directories(dirs, bases), kind, base))
    runs, items = (pd.concat(frames, ignore_index=True) for frames in zip(*parts, strict=True))
    return Tidy(runs, items)


def _renamed(found, kind, base):
    """Tables of the model ``tiny`` as those of a base model, with its settings recorded as runs do."""
    name = f"{kind}-base{base}"
    settings = {"model.base_seed": base, "model.layers": 2, "model.width": WIDTHS[kind]}
    runs = synthetic.record(found.runs, found.runs["seed"].notna(), **settings)
    ids = runs["run_id"].astype(str).str.replace("tiny/", f"{name}/")
    return runs.assign(model=name, run_id=ids), found.items.assign(model=name)


def table(known):
    return base_models_table(known.runs, known.items).set_index(["model", "task"])


def test_rows_are_kinds_from_small_to_large_each_task_and_all(known):
    found = table(known)
    tasks = ("chains", "functions", "all")
    assert list(found.index) == [(kind, task) for kind in ("small", "large", "all") for task in tasks]
    assert set(found["trust_region"]) == {"troll"} and set(found["seeds"]) == {3}
    assert list(found["base_models"]) == [3] * 6 + [6] * 3
    assert list(found["settings"]) == [3, 3, 6, 3, 3, 6, 6, 6, 12]


def test_a_row_is_the_average_over_its_base_models(known):
    row = table(known).loc[("small", "chains")]
    effects = (np.array(GAPS["small"]) + 1) / 60  # seeds 0 to 2 solve one more on average
    assert row["difference"] == pytest.approx(effects.mean()), "equal variances weigh equally"
    assert (row["lowest"], row["highest"]) == (pytest.approx(effects.min()), pytest.approx(effects.max()))
    assert row["base"] == pytest.approx(0.2) and row["baseline"] == pytest.approx(0.5)
    assert row["method"] == pytest.approx(0.5 + effects.mean())
    # By hand: the variance of the effects is tau squared plus that of a mean over seeds (1/60 each).
    error = effects.std(ddof=1) / np.sqrt(3)
    half = 4.302652729911275 * error  # Student's 0.975 quantile with two degrees of freedom
    assert row["difference_high"] - row["difference"] == pytest.approx(half, rel=1e-6)
    between = effects.var(ddof=1) - (1 / 60) ** 2 / 3
    further = 12.706204736432095 * np.sqrt(between + error**2)  # with one
    assert row["further_high"] - row["difference"] == pytest.approx(further, rel=1e-6)


def test_all_rows_together_are_what_the_verdict_rests_on(known):
    claim = synthetic.claim()
    pooled = judge([claim], known.runs, known.items)[0].decision.pooled
    row = table(known).loc[("all", "all")]
    assert pooled is not None and pooled.settings == row["settings"] == 12
    ends = [row[name] for name in ("difference", "difference_low", "difference_high")]
    assert ends == pytest.approx([pooled.estimate, pooled.low, pooled.high])
    assert [row["further_low"], row["further_high"]] == pytest.approx(
        [pooled.predicted_low, pooled.predicted_high]
    )


def test_two_settings_or_one_seed_have_no_interval(known):
    two = ~known.runs["model"].isin(["small-base2", "large-base0", "large-base1", "large-base2"])
    few = base_models_table(known.runs[two], known.items[known.items["model"].isin(known.runs[two]["model"])])
    few = few.set_index(["model", "task"])
    assert few.loc[("small", "chains"), "settings"] == 2
    assert few.loc["small", "difference_low"].isna().tolist() == [True, True, False]
    assert few.loc["small", "difference"].notna().all()
    alone = [frame[frame["seed"].fillna(0) == 0] for frame in (known.runs, known.items)]
    single = base_models_table(*alone)
    assert set(single["seeds"]) == {1} and single["difference_low"].isna().all()
    assert single["difference"].notna().all()


def test_models_of_which_there_is_one_are_left_out(known):
    one = known.runs["model"].isin(["small-base0", "large-base0", "large-base1"])
    found = base_models_table(known.runs[one], known.items)
    assert set(found["model"]) == {"large"} and set(found["task"]) == {"chains", "functions", "all"}
    none = base_models_table(known.runs[known.runs["model"] == "small-base0"], known.items)
    assert none.empty and "No base models that differ by their seed alone" in to_markdown(none)


def test_the_table_shows_a_row_in_percent_and_points(known):
    text = to_markdown(base_models_table(known.runs, known.items))
    assert "| small | chains | 3 | 3 | 3 | 20.0 | 50.0 | 61.7 | +11.7 [" in text


def test_every_base_model_is_a_mark_and_every_mean_a_line(known):
    panels = base_models_figure(known.runs, known.items).axes
    assert [axes.get_title() for axes in panels] == ["chains · stale", "functions · stale"]
    for axes, more in zip(panels, (1, 3), strict=True):
        marks = [float(line.get_ydata()[0]) for line in axes.lines if len(line.get_ydata()) == 1]
        effects = [(gap + more) / 60 for kind in ("small", "large") for gap in GAPS[kind]]
        assert marks == pytest.approx(effects)
        means = [line.get_ydata()[0] for line in axes.lines if line.get_linewidth() == 2.4]
        assert means == pytest.approx([np.mean(effects[:3]), np.mean(effects[3:])])
        assert [label.get_text() for label in axes.get_xticklabels()] == ["small", "large"]


def test_it_is_made_where_base_models_differ_by_their_seed():
    def names(models):
        table, figure = (synthetic.entries_planned(kind, models=models) for kind in ("table", "figure"))
        assert ("base_models" in table) == ("base_models" in figure)
        return table

    assert "base_models" in names({"small": {"base_seeds": [0, 1]}, "other": {}})
    assert "base_models" not in names({"small": {"base_seeds": [0]}, "other": {"base_seeds": [1]}})
    assert "base_models" not in names({"small": {}, "other": {}})


def test_official_figures_are_means_over_settings_before_ours(known):
    ours = known.runs[(known.runs["source"] == "test") & (known.runs["metric"] == "pass@1")]
    official = ours.assign(metric="official/pass@1", value=ours["value"] / 2)
    table = base_models_table(pd.concat([known.runs, official], ignore_index=True), known.items)
    names = list(table)
    assert names.index("official_base") < names.index("official_method") < names.index("base")
    for name in ("base", "baseline", "method"):
        assert table[f"official_{name}"].tolist() == pytest.approx((table[name] / 2).tolist())
    assert "official_base" not in base_models_table(known.runs, known.items)
