"""The whole plan of paper.yaml with made-up numbers: only panels with runs, and images that still open."""

from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from troll.analysis.figures.results import final_figure, main_figure, projection_figure, task_figure
from troll.analysis.render.style import MOST_PIXELS, write_figure
from troll.experiment.files import load_experiment

PAPER = Path(__file__).parents[2] / "workflow/config/paper.yaml"
METRICS = (
    "success",
    "kl_to_old",
    "entropy",
    "response_length",
    "clip_fraction",
    "kl_to_old_max",
    "kept_mass",
)


@pytest.fixture(scope="module")
def planned():
    experiment = load_experiment(PAPER)
    runs, items = [], []
    for run in experiment.runs():
        rule = experiment.trust_regions[run.trust_region].rule
        place = vars(run) | {"experiment": "paper", "run_id": run.run_id, "rule": rule}
        runs += [
            place
            | {"step": step, "rollout_batch": step, "wall_s": 60.0 * step, "source": "train"}
            | {"metric": metric, "value": 0.1 * step}
            for step in (1, 2, 3)
            for metric in METRICS
        ]
        runs.append(place | {"step": 3, "source": "summary", "metric": "summary/train_s", "value": 180.0})
        items += [place | {"task_id": str(index), "n": 4, "c": index} for index in range(5)]
    names = ["task", "model", "estimator", "condition", "trust_region", "metric", "source", "run_id"]
    return pd.DataFrame(runs).assign(settings="").astype(dict.fromkeys(names, "category")), pd.DataFrame(
        items
    )


def shown(figure):
    """Panels that are not blank."""
    return sum(axes.axison for axes in figure.axes)


def test_only_settings_with_runs_have_a_panel(planned):
    runs, _ = planned
    settings = runs[["model", "task", "condition", "estimator"]].drop_duplicates()
    figure = main_figure(runs)
    assert shown(figure) == len(settings) == 68
    assert not [text for axes in figure.axes for text in axes.texts], "none says that it is empty"
    of_task = settings[settings["task"] == "dapo"]
    figure = task_figure(runs, "dapo")
    columns = len({axes.get_title() for axes in figure.axes} - {""})
    assert shown(figure) == columns * len(of_task)


@pytest.mark.parametrize(("conditions", "wide", "blocks"), [(20, 4, 2), (7, 3, 1), (6, 6, 1)])
def test_many_conditions_are_cut_into_rows(planned, conditions, wide, blocks):
    runs, _ = planned
    one = runs[(runs["task"] == "dapo") & (runs["trust_region"].isin(["clip", "troll"]))]
    one = one[one["run_id"].isin(one.groupby("trust_region", observed=True)["run_id"].first())]
    names = [f"passes1-lr{number}e-5" for number in range(1, conditions + 1)]
    ids = one["run_id"].astype(str)
    tasks = [
        one.assign(task=task, condition=name, run_id=f"{task}/{name}/" + ids)
        for task in ("locks", "programs")
        for name in names
    ]
    figure = main_figure(pd.concat(tasks, ignore_index=True))

    def place(axes):
        spec = axes.get_subplotspec()
        assert spec is not None
        return spec.colspan.start // wide, spec.rowspan.start, spec.colspan.start

    there = sorted((axes for axes in figure.axes if axes.axison), key=place)
    titles = [axes.get_title().partition(" · ")[0] for axes in there]
    assert titles == (names * 2 if conditions > 6 else names + [""] * 6), "in order, task by task"
    assert {place(axes)[2] for axes in there} == set(range(blocks * wide))
    width, height = figure.get_size_inches()
    assert max(width, height) < 4 * min(width, height), "no ribbon"
    assert len({axes.get_ylim() for axes in there}) == 1 and all(axes.lines for axes in there)


@pytest.mark.slow
@pytest.mark.parametrize(
    "draw",
    [
        lambda runs, items: main_figure(runs),
        lambda runs, items: projection_figure(runs, "gsm8k"),
        lambda runs, items: final_figure(runs, items),
    ],
    ids=["main", "projection", "final"],
)
def test_images_stay_within_the_limit(planned, tmp_path, draw):
    write_figure(draw(*planned), tmp_path / "figure")
    with Image.open(tmp_path / "figure.png") as image:
        assert 1500 < max(image.size) <= MOST_PIXELS
        assert image.width <= 1800 and image.width * image.height < 3.1e6


def test_tracked_figures_are_light_and_in_no_other_format(repository, tracked):
    released = [repository / name for name in tracked if name.startswith("results/released/")]
    images = [path for path in released if path.suffix == ".png"]
    assert images and not [path for path in images if path.stat().st_size > 300_000]
    assert not [path for path in released if path.suffix in (".pdf", ".svg", ".tex")]
