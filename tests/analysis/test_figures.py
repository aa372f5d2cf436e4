import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import synthetic
from matplotlib.colors import to_rgb

from troll.analysis.data.runs import read_directories
from troll.analysis.data.summaries import condition_order
from troll.analysis.figures.base_models import base_models_figure
from troll.analysis.figures.frontier import frontier_figure
from troll.analysis.figures.heat_map import heat_map_figure
from troll.analysis.figures.results import (
    ablation_figure,
    final_figure,
    main_figure,
    projection_figure,
    task_figure,
)
from troll.analysis.figures.sensitivity import sensitivity_figure
from troll.analysis.render.panels import by_processor
from troll.analysis.render.style import FORMATS, MethodStyles, write_figure


def thick(axes):
    return [line for line in axes.lines if line.get_linewidth() > 1.5]


def texts(figure):
    return {text.get_text() for axes in figure.axes for text in axes.texts}


def test_main_figure_shows_the_means_of_every_setting(runs):
    figure = main_figure(runs)
    assert len(figure.axes) == 8
    titles = [axes.get_title() for axes in figure.axes[:4]]
    assert titles == ["gentle · grpo", "gentle · dr-grpo", "stale · grpo", "stale · dr-grpo"]
    panel = figure.axes[2]
    clip, troll = thick(panel)
    rows = runs[
        (runs["task"] == "chains")
        & (runs["condition"] == "stale")
        & (runs["estimator"] == "grpo")
        & (runs["metric"] == "success")
    ]
    for line, name in ((clip, "clip"), (troll, "troll")):
        mean = rows[rows["trust_region"] == name].groupby("step")["value"].mean()
        np.testing.assert_allclose(np.asarray(line.get_ydata())[:-1], mean)
        np.testing.assert_allclose(np.asarray(line.get_xdata())[:-1], mean.index)
        assert np.asarray(line.get_ydata())[-1] == pytest.approx(mean.iloc[-1]), "the last batch is held"
        updates = 5 * synthetic.MINI_BATCHES["stale"]
        assert np.asarray(line.get_xdata())[-1] == updates > mean.index[-1], "until the last update"
    assert clip.get_zorder() > troll.get_zorder(), "dashes lie on the solid line, which would hide them"
    assert not [line for line in panel.lines if line.get_linestyle() == ":"], "no test number"
    assert clip.get_linestyle() == "--" and troll.get_linestyle() == "-", "clip dashed, troll solid"
    assert len([line for line in panel.lines if line.get_linewidth() == 0.5]) == 6, "a thin line per seed"
    assert panel.get_ylim()[0] == 0


def test_detailed_figures_have_a_row_per_setting(runs):
    figure = task_figure(runs, "chains")
    assert len(figure.axes) == 4 * 4, "two validations are no curve"
    kl = figure.axes[1]
    assert kl.get_yscale() == "log"
    lows = {axes.get_ylim() for axes in figure.axes[1::4]}
    assert len(lows) == 1, "a column shares its axis"
    tops = [max(line.get_ydata().max() for line in axes.lines) for axes in figure.axes[0::4]]
    assert figure.axes[0].get_ylim()[1] >= max(tops), "nothing is cut off"


def test_projection_figure_draws_the_bound_and_leaves_clip_out(runs):
    figure = projection_figure(runs, "chains")
    after = figure.axes[2]
    assert len(thick(after)) == 1
    assert any(np.allclose(line.get_ydata(), synthetic.KL_BOUND) for line in after.lines)
    assert figure.axes[1].get_ylim() == after.get_ylim(), "before and after on one scale"


def test_missing_runs_are_said(runs):
    hole = (runs["condition"] == "stale") & (runs["task"] == "chains") & (runs["source"] != "test")
    figure = main_figure(runs[~hole])
    assert texts(figure) == {"no values"}
    figure.canvas.draw()
    assert [label.get_text() for label in figure.axes[4].get_xticklabels()], (
        "panels that share axes keep ticks"
    )


def test_narrow_logarithmic_panels_span_a_decade_and_have_labels(runs):
    figure = projection_figure(runs, "chains")
    left_out = figure.axes[4]
    low, high = left_out.get_ylim()
    assert high / low >= 9.99
    inside = [tick for tick in left_out.get_yticks() if low <= tick <= high]
    assert len(inside) >= 3


def test_final_figure_is_ordered_and_has_intervals(runs, items):
    figure = final_figure(runs, items)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["gentle · grpo", "gentle · dr-grpo", "stale · grpo", "stale · dr-grpo"]
    bars = [line for line in figure.axes[0].lines if line.get_linewidth() == 1.8]
    assert len(bars) == 8 and all(0 <= line.get_xdata()[0] < line.get_xdata()[1] <= 1 for line in bars)


def test_ablation_figure_keeps_to_the_settings_with_variants(tmp_path):
    root = tmp_path / "testbed"
    dirs, _ = synthetic.write_experiment(root, tasks=["chains"], seeds=1, batches=2, problems=4)
    assert texts(ablation_figure(read_directories(dirs).runs)) == {"no runs"}
    dirs.append(synthetic.write_run(root, "chains", "troll-kl0.01", "grpo", "stale", 0, batches=2))
    figure = ablation_figure(read_directories(dirs).runs)
    assert len(figure.axes) == 4, "one validation is no curve"
    assert len(thick(figure.axes[0])) == 2, "the default and its variant, not clip"
    dirs.append(synthetic.write_run(root, "chains", "clip-eps0.1", "grpo", "stale", 0, batches=2))
    figure = ablation_figure(read_directories(dirs).runs)
    assert [len(thick(axes)) for axes in figure.axes] == [2] * 8, "a row for each rule"
    more = ("troll-kl0.25", "troll-k4", "troll-k16", "troll-k256")
    dirs += [synthetic.write_run(root, "chains", name, "grpo", "stale", 0, batches=2) for name in more]
    figure = ablation_figure(read_directories(dirs).runs)
    shown = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in figure.axes[3::4]]
    assert shown == [
        ["clip", "clip-eps0.1"],
        ["troll", "troll-k4", "troll-k16", "troll-k256"],
        ["troll", "troll-kl0.01", "troll-kl0.25"],
    ], "a row for each setting, doses by size"
    colours = {line.get_color() for axes in figure.axes[::4] for line in thick(axes)}
    assert len(colours) == 8, "no colour stands for two methods"
    assert all(line.get_linewidth() > 1 for line in figure.axes[0].lines), "means alone"


def test_bands_and_thin_lines_are_in_the_legend(runs):
    for figure in (main_figure(runs), task_figure(runs, "chains")):
        labels = [text.get_text() for text in figure.legends[0].get_texts()]
        assert labels[-2:] == ["one seed", "all seeds, least to largest"] and "base model" not in labels


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (frontier_figure, "no variants were run"),
        (sensitivity_figure, "no setting was varied"),
        (heat_map_figure, "learning rate and staleness were not varied together"),
        (base_models_figure, "no base models that differ by their seed alone"),
    ],
)
def test_a_figure_says_why_it_is_empty(tmp_path, figure, text):
    run = synthetic.write_run(tmp_path / "testbed", "chains", "troll", "grpo", "stale", 0, batches=2)
    collected = read_directories([run])
    assert texts(figure(collected.runs, collected.items)) == {text}


def test_doses_are_sorted_by_their_size():
    names = ["steps48", "stale", "lr1e-3", "steps8", "lr1e-4"]
    assert sorted(names, key=condition_order) == ["lr1e-4", "lr1e-3", "stale", "steps8", "steps48"]


def test_files_are_the_same_every_time_and_leave_settings_alone(tmp_path, runs):
    few = runs[(runs["estimator"] != "dr-grpo") & (runs["task"] == "chains")]
    with mpl.rc_context({"axes.grid": False, "font.size": 30, "lines.linewidth": 9}):
        first = write_figure(main_figure(few), tmp_path / "a/main", list(FORMATS))
        assert mpl.rcParams["font.size"] == 30
    second = write_figure(main_figure(few), tmp_path / "b/main", list(FORMATS))
    assert [path.name for path in first] == ["main.png", "main.svg", "main.pdf"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert b"CreationDate" not in first[2].read_bytes()
    assert b"<dc:date>" not in first[1].read_bytes()


def test_models_have_panels_of_their_own(runs):
    few = runs[(runs["task"] == "chains") & (runs["estimator"] == "grpo")]
    large = few.assign(model="large", run_id="large/" + few["run_id"].astype(str))
    figure = main_figure(pd.concat([few, large]))
    assert [axes.get_ylabel().partition("\n")[0] for axes in figure.axes[::2]] == [
        "large · chains",
        "tiny · chains",
    ]
    assert all(len(thick(axes)) == 2 for axes in figure.axes)


def test_methods_differ_in_colour_and_dashes_and_clip_and_troll_in_grey():
    names = ["clip", "troll", "troll-kl0.01", "troll-k16", "gspo-clip", "quatro", "dppo"]
    styles = MethodStyles(names)
    assert len({styles.colour(name) for name in names}) == len(names)
    drawn = {(styles.colour(name), str(styles.line(name)["linestyle"])) for name in names}
    assert len(drawn) == len(names)

    def grey(name):
        return float(np.dot(to_rgb(styles.colour(name)), (0.2126, 0.7152, 0.0722)))

    assert abs(grey("clip") - grey("troll")) > 0.15
    assert MethodStyles(names[::-1]).colour("quatro") == styles.colour("quatro"), (
        "whatever order the names come in"
    )


def test_few_seeds_look_like_few(runs, items):
    few = items[(items["condition"] == "gentle") & (items["trust_region"] == "troll") & (items["seed"] == 0)]
    rest = items[items["trust_region"] == "clip"]
    axes = final_figure(runs, pd.concat([few, rest])).axes[0]
    hollow = [line for line in axes.lines if line.get_markerfacecolor() == "white"]
    assert len(hollow) == 2 and {line.get_marker() for line in hollow} == {"s"}
    assert len([line for line in axes.lines if line.get_linewidth() == 0.8]) == 2


def test_time_is_the_processors_only_where_all_runs_recorded_it_and_none_had_a_gpu(runs):
    plain = runs.astype({"metric": str, "source": str, "run_id": str})
    assert by_processor(plain) is None, "no run recorded it"
    train = plain[(plain["source"] == "train") & (plain["metric"] == "success")]
    clock = train.assign(metric="time/cpu_s", value=7.0 * train["step"])
    first = train.groupby("run_id", as_index=False).first()[train.columns]
    spent = first.assign(metric="summary/cpu_s", source="summary", value=300.0)
    # Base models are made on the same machine, and have no clock.
    base = first.head(1).assign(run_id="base", trust_region="base")
    without = pd.concat([first, base]).assign(metric="gpus", source="manifest", value=0.0)
    timed = by_processor(pd.concat([plain, clock, spent, without], ignore_index=True))
    assert timed is not None
    assert (timed.loc[timed["metric"] == "summary/train_s", "value"] == 300.0).all(), "where curves end"
    rows = timed[(timed["source"] == "train") & (timed["metric"] == "success")]
    assert (rows["wall_s"] == 7.0 * rows["step"]).all()
    with_gpu = without.assign(value=[1.0, *[0.0] * (len(without) - 1)])
    assert by_processor(pd.concat([plain, clock, with_gpu], ignore_index=True)) is None
    assert by_processor(pd.concat([plain, clock[1:], without], ignore_index=True)) is not None
    one_missing = clock[clock["run_id"] != clock["run_id"].iloc[0]]
    assert by_processor(pd.concat([plain, one_missing, without], ignore_index=True)) is None


def test_many_estimators_get_a_row_for_each_condition(runs):
    plain = runs.astype({"estimator": str, "run_id": str})
    more = [
        plain[plain["estimator"] == "grpo"].assign(estimator=name, run_id=plain["run_id"] + name)
        for name in ("rloo", "gae")
    ]
    wide = main_figure(plain)
    assert [axes.get_title() for axes in wide.axes[:4]] == [
        f"{condition} · {name}" for condition in ("gentle", "stale") for name in ("grpo", "dr-grpo")
    ]
    figure = main_figure(pd.concat([plain, *more]))
    titles = [axes.get_title() for axes in figure.axes[:16]]
    expected = [
        f"{condition} · {name}"
        for condition in ("gentle", "stale")
        for name in ("grpo", "dr-grpo", "gae", "rloo")
    ]
    assert titles == expected * 2, "two tasks"
