"""The paper's figures from made-up rows: its panels, axes and names, and published values in place."""

import matplotlib as mpl
import paper_rows
import pytest
from matplotlib.figure import Figure

from troll.analysis.figures import published
from troll.analysis.render.style import write_figure
from troll.experiment.published import read_published

SIZES = ["600M", "1.7B", "4B", "8B", "14B"]
ADDED = ["published", "ours after training"]


@pytest.fixture(scope="module")
def paper():
    return paper_rows.made_up()


@pytest.fixture(scope="module")
def none(paper):
    """Tables without any run."""
    return paper[0].iloc[:0], paper[1]


def titles(figure):
    return [axes.get_title() for axes in figure.axes]


def names(figure):
    legend = figure.legends[0] if isinstance(figure, Figure) else figure.get_legend()
    return [text.get_text() for text in legend.get_texts()]


def line(axes, label):
    (found,) = (each for each in axes.lines if each.get_label() == label)
    return found


def labels(axes, ending):
    """The lines with this ending, without it; an empty one stands for curves."""
    all_labels = [str(each.get_label()) for each in axes.lines if not str(each.get_label()).startswith("_")]
    if ending:
        return [text.removesuffix(ending) for text in all_labels if text.endswith(ending)]
    return [text for text in all_labels if not text.endswith((", published", ", after training"))]


def said(axes):
    return [text.get_text() for text in axes.texts]


def number(source, place, **fields):
    """The step, hours or value of a published number, read from the file itself."""
    (row,) = (
        row
        for row in read_published()
        if {"source": source, **fields}.items() <= row.items() and place in row
    )
    return float(row[place])


def cells(axes):
    (table,) = axes.tables
    rows: dict[int, list[str]] = {}
    for (row, _), cell in sorted(table.get_celld().items()):
        rows.setdefault(row, []).append(cell.get_text().get_text())
    return list(rows.values())


def test_sizes_have_the_papers_panels_axes_and_legend(paper):
    figure = published.sizes_figure(paper[0])
    assert titles(figure) == ["DAPO Train", "DAPO Eval", "MATH Eval"]
    assert names(figure) == [*SIZES, "Clip", "TROLL", *ADDED]
    pairs = [f"{size} {method}" for size in SIZES for method in ("Clip", "TROLL")]
    for axes, data in zip(figure.axes, ("DAPO_Train", "DAPO_Eval", "MATH_Eval"), strict=True):
        assert labels(axes, "") == pairs
        assert labels(axes, ", published") == labels(axes, ", after training") == pairs
        key = {"model": "Qwen3-4B", "dataset": data, "method": "TROLL"}
        step = number("fig_size", "step", **key)
        dash = line(axes, "4B TROLL, published")
        assert list(dash.get_xdata()) == [step], "at the step at which it was read"
        assert list(dash.get_ydata()) == [number("fig_size", "value", **key)]
        assert axes.get_xlim() == (0, pytest.approx(1.05 * step)), "the paper's axis, not that of 1,001 steps"
        assert axes.get_xlabel() == "Train Step (ours go on to 1,001)"
    assert figure.axes[0].get_ylabel() == "Success Rate"


def test_curves_are_against_training_steps(paper):
    figure = published.sizes_figure(paper[0])
    train, suites = line(figure.axes[0], "8B TROLL"), line(figure.axes[2], "8B TROLL")
    assert list(train.get_xdata()[:2]) == [1, 6] and train.get_xdata()[-1] == 1001
    # Before the first step, every ten steps, and after the last step.
    assert list(suites.get_xdata()[:3]) == [0, 10, 20] and suites.get_xdata()[-1] == 1001
    assert train.get_linestyle() == "-" and line(figure.axes[0], "8B Clip").get_linestyle() == "--"
    raw = paper[0][(paper[0]["model"] == "Qwen3-8B") & (paper[0]["metric"] == "validation_success/math-eval")]
    raw = raw[(raw["trust_region"] == "troll") & (raw["estimator"] == "grpo")].set_index("rollout_batch")
    smoothed = dict(zip(suites.get_xdata(), suites.get_ydata(), strict=True))
    assert smoothed[100] == pytest.approx(raw.loc[[90, 100, 110], "value"].mean())


def test_hollow_clip_and_filled_troll_both_show(paper):
    axes = published.sizes_figure(paper[0]).axes[2]
    clip, troll = (line(axes, f"8B {name}, published") for name in ("Clip", "TROLL"))
    assert clip.get_markerfacecolor() == "white" != troll.get_markerfacecolor()
    assert clip.get_markersize() > troll.get_markersize(), "the later one is shorter and so hides none"
    curve = line(axes, "8B TROLL")
    assert min(clip.get_zorder(), troll.get_zorder()) > curve.get_zorder()


def test_without_validation_mathematics_has_our_values_after_training():
    runs, _ = paper_rows.made_up(validated=False)
    own, suites = published.sizes_figure(runs).axes[1:]
    assert said(suites) == ["ours: only after training"] and labels(suites, "") == []
    assert line(suites, "14B TROLL, after training").get_ydata()[0] == 0.613
    low, high = suites.get_ylim()
    assert low < 0.261 and high > 0.613
    assert line(own, "14B TROLL").get_ydata()[-1] == pytest.approx(0.757 - 0.05, abs=1e-3), (
        "its validation split"
    )


def test_estimators_are_against_hours(paper):
    figure = published.estimators_figure(paper[0])
    assert titles(figure) == ["DAPO Train", "DAPO Eval", "MATH Eval"]
    assert figure.axes[0].get_subplotspec().colspan == range(2), "training above both others"
    assert names(figure) == ["GRPO", "Dr.GRPO", "PPO", "GSPO", "Clip", "TROLL", *ADDED]
    hours = number(
        "fig_methods", "hours", dataset="DAPO_Train", estimator="GSPO", method="TROLL_seq", model="Qwen3-8B"
    )
    for axes in figure.axes:
        assert axes.get_xlabel() == "Wallclock Time (hours)"
        assert list(line(axes, "GSPO TROLL, published").get_xdata()) == [hours]
        assert line(axes, "GRPO TROLL").get_xdata()[-1] == pytest.approx(84)
        assert len(labels(axes, "")) == len(labels(axes, ", published")) == 8
    assert figure.axes[2].get_ylabel() == "Mean Success Rate"
    slow = paper[0].assign(wall_s=3 * paper[0]["wall_s"])
    assert published.estimators_figure(slow).axes[0].get_xlim()[1] > 3 * 84, "all of a slower machine's runs"


def test_families_have_the_table_and_both_panels(paper):
    figure = published.families_figure(*paper)
    assert titles(figure) == ["", "GSM8K", "DAPO Eval"]
    assert names(figure) == ["Apertus-8B Instr.", "Llama3.2-3B", "SmolLM-3B", "Clip", "TROLL", *ADDED]
    table, gsm8k, dapo = figure.axes
    assert labels(gsm8k, "") == [
        *("Apertus-8B Instr. Clip", "Apertus-8B Instr. TROLL"),
        *("Llama3.2-3B Clip", "Llama3.2-3B TROLL"),
    ]
    assert labels(dapo, "") == labels(dapo, ", published") == ["SmolLM-3B Clip", "SmolLM-3B TROLL"]
    steps = {
        data: number(
            "page_table", "step", model=model, dataset=data, method="Clip", metric="final_success_rate"
        )
        for model, data in (("Apertus-8B-Instruct", "GSM8K"), ("SmolLM3-3B", "DAPO"))
    }
    assert gsm8k.get_xlim()[1] == pytest.approx(1.05 * steps["GSM8K"])
    assert dapo.get_xlim()[1] == pytest.approx(1.05 * steps["DAPO"])
    rows = {(row[0], row[1]): row[2:] for row in cells(table)}
    assert len(rows) == 12 and rows["Model", "Dataset"] == ["Clip", "ours", "TROLL", "ours"]
    assert rows["Llama3.1-8B", "GSM8K"] == ["0.000", "0.000", "0.759", "0.759"]
    assert rows["FineMath-Llama-3B", "GSM8K"] == ["0.750", "not run", "0.746", "not run"]
    (drawn,) = table.tables
    lined = [row for row in range(1, 12) if drawn[row, 0].visible_edges]
    assert [cells(table)[row][0] for row in lined] == [
        *("Qwen3-8B", "SmolLM3-3B", "FineMath-Llama-3B", "Llama3.1-8B Instr.", "Apertus-8B Instr.")
    ], "below the last model of each family, as in the paper"
    assert gsm8k.get_xlabel() == "Train Step (ours go on to 580)"
    shaded = len([patch for patch in table.patches if patch.get_width() > 0])
    assert shaded == 11 + 4, "the better of each published pair, and of each of ours"


def test_families_without_values_at_the_step_show_those_after_training():
    table = published.families_figure(*paper_rows.made_up(validated=False)).axes[0]
    rows = {(row[0], row[1]): row[2:] for row in cells(table)}
    assert rows["SmolLM3-3B", "DAPO"] == ["0.580", "0.580*", "0.606", "0.606*"]


def test_mathematics_and_code_stand_side_by_side(paper):
    figure = published.code_figure(paper[0])
    assert titles(figure) == ["DAPO Eval", "Eurus Code"]
    mathematics, code = figure.axes
    assert (
        len(labels(mathematics, "")) == len(labels(code, "")) == len(labels(code, ", after training")) == 10
    )
    assert labels(code, ", published") == [], "none could be read"
    assert code.get_ylabel() == "Share of Tests Passed"
    ours = line(code, "4B TROLL"), line(code, "4B TROLL, after training")
    assert [each.get_ydata()[-1] for each in ours] == pytest.approx([0.9 * 0.676 + 0.05] * 2)
    split = published.code_figure(paper_rows.made_up(validated=False)[0]).axes[1]
    assert line(split, "4B TROLL").get_ydata()[-1] == pytest.approx(0.9 * 0.676), "its validation split"
    strict = published.code_figure(paper[0][~paper[0]["metric"].str.contains("reward")]).axes[1]
    assert strict.get_ylabel() == "Success Rate"
    assert line(strict, "4B TROLL, after training").get_ydata()[0] == pytest.approx(0.9 * 0.676)
    assert code.get_xlim()[1] == pytest.approx(1.05 * 1001) and code.get_xlabel() == "Train Step"


def test_analysis_has_two_panels_of_curves_and_the_cost(paper):
    ablations, cost, entropy = published.analysis_figure(*paper).axes
    assert ablations.get_title() == "Qwen3-1.7B - MATH Eval"
    variants = ["TROLL", "ε = 0.01", "ε = 0.25", "K = 256", "K = 16"]
    assert names(ablations) == labels(ablations, "") == labels(ablations, ", published") == variants
    values = {name: line(ablations, f"{name}, published").get_ydata()[0] for name in variants}
    assert values == dict(zip(variants, (0.448, 0.449, 0.426, 0.453, 0.424), strict=True))
    ours = line(ablations, "ε = 0.01")
    assert ours.get_ydata()[-1] == pytest.approx(paper_rows.VARIANTS["troll-kl0.01"], abs=1e-4)
    assert ours.get_xdata()[-1] == pytest.approx(47)
    assert cells(cost) == [
        ["Qwen3-4B", "Clip", "TROLL"],
        ["VRAM", "34.574 GiB", "36.157 GiB"],
        ["VRAM, ours", "35.500 GiB", "35.500 GiB"],
        ["Runtime", "85.133 s", "92.906 s"],
        ["Runtime, ours", f"{0.9 * 84 * 3600 / 1001:.3f} s", f"{84 * 3600 / 1001:.3f} s"],
    ]
    assert said(cost) == ["Runtime, ours: a whole rollout batch with its sampling"]
    assert labels(entropy, "") == ["Clip", "TROLL"] and names(entropy) == ["TROLL", "Clip"]
    assert entropy.get_legend().get_title().get_text() == "Qwen3-14B"
    assert line(entropy, "Clip, published").get_ydata()[0] == 0.04
    assert line(entropy, "Clip, published").get_xdata()[0] == 95
    assert {axes.get_xlabel() for axes in (ablations, entropy)} == {"Wallclock Time (hours)"}


def test_staleness_has_a_panel_for_each_size_and_one_after_training(paper):
    figure = published.staleness_figure(paper[0])
    *panels, after = figure.axes
    assert [axes.get_title() for axes in panels] == [f"DAPO Eval, batch x {size}" for size in (1, 4, 16)]
    assert names(figure) == ["Clip", "TROLL", "GSPO", "QUATRO", "ours after training"]
    assert [labels(axes, "") for axes in panels[1:]] == [["Clip", "TROLL"]] * 2
    assert line(panels[2], "TROLL").get_xdata()[-1] == 63, "as many batches as were made"
    assert list(line(after, "Clip").get_xdata()) == [1, 4, 16]
    assert list(line(after, "Clip").get_ydata()) == [0.615, 0.5, 0.5]
    assert labels(after, "") == ["Clip", "TROLL"], "the others were not run"


def test_without_runs_the_published_values_stand_alone(none, tmp_path):
    runs, items = none
    sizes, staleness = published.sizes_figure(runs), published.staleness_figure(runs)
    assert [said(axes) for axes in sizes.axes] == [["not run"]] * 3
    assert all(len(labels(axes, ", published")) == 10 for axes in sizes.axes)
    assert [said(axes) for axes in staleness.axes] == [["not run"]] * 4
    analysis = published.analysis_figure(runs, items)
    assert cells(analysis.axes[1])[2] == ["VRAM, ours", "not run", "not run"]
    for name, figure in (("sizes", sizes), ("analysis", analysis)):
        (path,) = write_figure(figure, tmp_path / name)
        assert mpl.image.imread(path).shape[1] > 1000


def test_one_lone_method_is_drawn(paper):
    runs = paper[0][paper[0]["trust_region"] == "clip"]
    figure = published.sizes_figure(runs)
    assert labels(figure.axes[0], "") == [f"{size} Clip" for size in SIZES]
