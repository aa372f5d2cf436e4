"""The estimate of time on GPUs: against the paper's time axes and this project's runs."""

import itertools

import pandas as pd
import pytest

from troll.experiment.budget import Hours, hours_of
from troll.experiment.files import load_experiment
from troll.experiment.gpu_time import batch_seconds, run_seconds, step_seconds
from troll.experiment.settings import Regulariser, Training


def paper(**settings):
    return Training(**{"gpus": 4, "vllm": {}, "max_prompt_tokens": 2048} | settings)


def test_the_published_steps_are_those_of_the_update():
    """The published seconds are Qwen3-4B's, with 4.02 * 10^9 parameters."""
    assert step_seconds() == {"clip": 85.133, "troll": 92.906}
    assert batch_seconds(paper(), 4.02, projected=False).update == pytest.approx(85.133)
    assert batch_seconds(paper(), 4.02, projected=True).update == pytest.approx(92.906)
    assert batch_seconds(paper(), 4.02, projected=False).scoring == pytest.approx(85.133 / 4)


@pytest.mark.parametrize(("billions", "axis"), [(1.72, 600), (8.19, 770), (14.77, 1070)])
def test_a_rollout_batch_takes_what_the_papers_time_axes_show(billions, axis):
    """By hand for 8.19: 85.133 x 8.19 / 4.02 = 173.4; a quarter, 43.4; 517 + 9.6 x 8.19 = 595.6; sum 812."""
    seconds = batch_seconds(paper(), billions, projected=False)
    assert seconds.batch == pytest.approx(axis, rel=0.06)
    if billions == 8.19:
        assert seconds.batch == pytest.approx(812.4, abs=0.1)


def test_qwen3_06b_sampled_by_transformers_takes_hours(repository):
    """By hand 2 to 7 hours for a run of 800 batches of 32 responses of up to 1,024 tokens on one GPU."""
    training = Training(
        gpus=1,
        rollout_batches=800,
        prompts_per_batch=4,
        mini_batches=4,
        max_response_tokens=1024,
        validate_every=100,
    )
    seconds = batch_seconds(training, 0.6, projected=False, layers=28, validation=64)
    hours = run_seconds(training, seconds) / 3600
    assert 2 / 2 <= hours <= 7 * 2


def test_runs_of_smollm2_took_half_to_twice_the_estimate(repository):
    """The released runs on one H100, by their own clocks."""
    experiment = load_experiment(repository / "workflow/config/smollm2-gpu.yaml")
    tidy = repository / "results/released/smollm2-gpu/tidy"
    clocks = pd.read_parquet(tidy, columns=["run_id", "wall_s"]).dropna().groupby("run_id")["wall_s"].max()
    known = {run.run_id: run for run in experiment.runs()}
    ratios = []
    for run_id, seconds in clocks.items():
        hours = hours_of(experiment, known[run_id]) if run_id in known else None
        if hours is not None:
            ratios.append((known[run_id].group_id, seconds / 3600 / hours.likely))
    means = pd.DataFrame(ratios, columns=["setting", "ratio"]).groupby("setting")["ratio"].mean()
    assert len(means) == 12
    assert means.between(0.5, 2).all(), means


@pytest.mark.parametrize("vllm", [None, {}])
def test_more_work_takes_longer(vllm):
    def batch(**settings):
        return batch_seconds(paper(vllm=vllm, **settings), 8, projected=False, validation=64).batch

    for name, values in (
        ("max_response_tokens", (256, 1024, 4096)),
        ("prompts_per_batch", (64, 256)),
        ("num_iterations", (1, 4)),
    ):
        found = [batch(**{name: value}) for value in values]
        assert found == sorted(found) and found[0] < found[-1], name
    assert batch(regulariser=Regulariser()) > batch()
    assert batch_seconds(paper(vllm=vllm), 14, projected=False).batch > batch()
    assert batch_seconds(paper(vllm=vllm), 8, projected=False, critic=True).batch > batch()
    assert batch(gpus=8) < batch(gpus=4)


def test_without_vllm_sampling_takes_much_longer():
    settings = {"billions": 8, "projected": False, "validation": 1024}
    assert batch_seconds(paper(vllm=None), **settings).sampling == pytest.approx(
        4096 * (32 * 2.1e-3 + 16e9 / 1e11)
    )
    # Validation goes through the same batches: 1,024 responses in one of 2,048, first, every ten, and last.
    seconds = batch_seconds(paper(vllm=None), **settings)
    assert seconds.validation == pytest.approx(seconds.sampling * 102 / 1001)
    assert batch_seconds(paper(vllm=None, validate_every=0), **settings).validation == 0


@pytest.mark.parametrize(
    ("hours", "text"),
    [
        (Hours(520, 300, 880), "300 to 880"),
        (Hours(12_345, 7_262, 20_987), "7,300 to 21,000"),
        (Hours(0.02, 0.0101, 0.0404), "0.01 to 0.04"),
        (Hours(3, 3, 3), "3.0"),
        (Hours(), "0"),
    ],
)
def test_hours_are_shown_as_a_range_with_two_digits(hours, text):
    assert str(hours) == text


def test_ranges_add_up_end_to_end():
    total = Hours(2, 1, 4) + Hours(20, 10, 40)
    assert (total.likely, total.low, total.high) == (22, 11, 44)
    assert all(a < b for a, b in itertools.pairwise((total.low, total.likely, total.high)))
