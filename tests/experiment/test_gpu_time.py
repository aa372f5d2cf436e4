"""The estimate of time on GPUs: against the paper's time axes and this project's runs."""

import itertools
import json

import pandas as pd
import pytest
import torch
import yaml
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from troll.experiment.budget import Hours, hours_of
from troll.experiment.files import load_experiment, parse_experiment
from troll.experiment.gpu_time import START_S, batch_seconds, pass_seconds, step_seconds
from troll.experiment.model_settings import Hub
from troll.experiment.model_shapes import shape_of, shape_of_config
from troll.experiment.settings import Regulariser, Training
from troll.experiment.sizes import validation_responses


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
    """By hand for 8.19: 85.133 x 8.19 / 4.02 = 173.4; a quarter, 43.4; 517 + 9.6 x 8.19 = 595.6.

    The last includes validation, each as long as 0.15 + 0.85 x 1,348 / 512 = 2.388 batches. The axes have one
    in ten batches, so that sampling takes 595.6 / 1.2388 = 480.8. Here there are 102 in 1,001 batches:
    480.8 x 2.388 x 0.1019 = 117.0; sum 814.6.
    """
    seconds = batch_seconds(paper(), billions, projected=False, validation=5392)
    assert seconds.batch == pytest.approx(axis, rel=0.06)
    if billions == 8.19:
        assert seconds.batch == pytest.approx(814.6, abs=0.1)


def test_validation_is_in_the_budget_of_the_paper(repository):
    """On its held-out sets, every ten batches: a fifth of DAPO's sampling, and less on GSM8K."""
    contents = yaml.safe_load((repository / "workflow/config/paper.yaml").read_text())
    released = parse_experiment(contents, "paper")
    dapo, gsm8k = (released.run(f"Qwen3-8B/{task}/clip/grpo/stale1x/seed0") for task in ("dapo", "gsm8k"))
    assert validation_responses("dapo", released.tasks["dapo"]) == 5392, "as the axes are taken to include"
    contents["training"]["validate_every"] = 0
    without = parse_experiment(contents, "paper")
    shares = [1 - hours_of(without, run).likely / hours_of(released, run).likely for run in (dapo, gsm8k)]
    assert shares[0] == pytest.approx(117 / 814.6, abs=0.01) and 0 < shares[1] < shares[0]


@pytest.mark.parametrize(
    ("model_id", "tokens_per_s"),
    [("Qwen3-0.6B", 58.57), ("Qwen3-1.7B", 59.83), ("Qwen3-4B", 45.94), ("Qwen3-8B", 45.32)],
)
def test_transformers_samples_as_fast_as_qwen_publishes(model_id, tokens_per_s):
    """Qwen's speed benchmark: bfloat16, one sequence, 2,048 tokens after one, transformers 4.51, an H20."""
    seconds = pass_seconds(shape_of(Hub(id=f"Qwen/{model_id}")), "bfloat16")
    assert 1 / seconds == pytest.approx(tokens_per_s, rel=0.03)


def test_runs_on_gsm8k_take_as_long_as_by_hand(repository):
    """By hand 2 to 7 hours: 800 batches of 300 to 1,024 tokens, 28 layers of 1.1 ms each."""
    contents = yaml.safe_load((repository / "workflow/config/paper-one-gpu.yaml").read_text())
    contents["models"] = {"Qwen3-0.6B": {"hub": {"id": "Qwen/Qwen3-0.6B", "billions": 0.6}}}
    contents["tasks"]["gsm8k"] |= {"validation": 64, "validate_on": {}}
    contents["training"] |= {"rollout_batches": 800, "prompts_per_batch": 4, "mini_batches": 4}
    contents["training"] |= {"micro_batch_tokens": None, "tail": "pooled", "validate_every": 100}
    experiment = parse_experiment(contents, "small")
    for run in experiment.runs():
        hours = hours_of(experiment, run)
        assert 2 <= hours.likely <= 7
        assert hours.low == pytest.approx(hours.likely / 2) and hours.high == pytest.approx(2 * hours.likely)


def test_a_run_of_paper_one_gpu_takes_as_long_as_by_hand(repository):
    """By hand 0.7 to 2.1 hours: responses of 300 to 1,024 tokens, 200 batches of 256 of them.

    Sampling: 24 layers of 66 launches of 10.9 microseconds a token, 200 times, and for eleven validations in
    six parts each. Scoring and update: 10 operations for each of 0.5 billion weights and each token, with 150
    tokens of the prompt, 10^14 operations a second.
    """
    token_s = 24 * 66 * 10.9e-6
    by_hand = [
        ((200 + 11 * 6) * length * token_s + 200 * 256 * (150 + length) * 10 * 0.5e9 / 1e14) / 3600
        for length in (300, 1024)
    ]
    experiment = load_experiment(repository / "workflow/config/paper-one-gpu.yaml")
    for run in experiment.runs():
        assert by_hand[0] <= hours_of(experiment, run).likely <= by_hand[1]


def test_runs_of_smollm2_took_as_much_of_the_card_as_is_estimated(repository):
    """The released runs by their own clocks, of which each has a twelfth of an H100."""
    experiment = load_experiment(repository / "workflow/config/smollm2-gpu.yaml")
    tidy = repository / "results/released/smollm2-gpu/tidy"
    told = pd.read_parquet(tidy, columns=["run_id", "metric", "value", "source"])
    clocks = told[(told["metric"] == "wall_s") & (told["source"] == "manifest")].set_index("run_id")["value"]
    known = {run.run_id: run for run in experiment.runs()}
    rows = [
        # Their clocks start when the model is loaded.
        (known[run_id].group_id, seconds, 3600 * hours_of(experiment, known[run_id]).likely - START_S)
        for run_id, seconds in clocks.items()
        if run_id in known
    ]
    means = pd.DataFrame(rows, columns=["setting", "wall", "estimate"]).groupby("setting").mean()
    assert len(means) == 12
    wall, card, estimate = means["wall"], means["wall"] / 12, means["estimate"]
    errors = 100 * (estimate / card - 1)
    assert errors.between(-20, 25).all(), errors
    text = (repository / "docs/cluster.md").read_text()
    assert f"{wall.min():.0f} to {wall.max():.0f} s a run" in text
    assert f"{card.min():.1f} to {card.max():.1f} s of the card" in text
    assert f"{estimate.min():.1f} to {estimate.max():.1f} s: {-errors.min():.0f} % less to" in text
    assert f"to {errors.max():.0f} % more" in text


def test_many_runs_that_share_a_card_take_less_of_it_than_is_estimated(repository):
    """Those of smollm2-rates on a GPU, by their own clocks: 16 at a time on chains, 24 on functions."""
    experiment = load_experiment(repository / "workflow/config/smollm2-rates.yaml")
    kept = experiment.training.model_copy(update={"gradient_checkpointing": False})
    experiment = experiment.model_copy(update={"training": kept})
    tidy = repository / "results/released/smollm2-rates/tidy"
    told = pd.read_parquet(tidy, columns=["run_id", "seed", "metric", "value", "source"])
    told = told[(told["metric"] == "wall_s") & (told["source"] == "manifest") & (told["seed"] > 8006)]
    clocks = told.set_index("run_id")["value"]
    rows = [
        (run.group_id, run.task, clocks[run.run_id], 3600 * hours_of(experiment, run).likely - START_S)
        for run in experiment.runs()
        if run.run_id in clocks
    ]
    table = pd.DataFrame(rows, columns=["setting", "task", "wall", "estimate"])
    means = table.groupby(["setting", "task"]).mean().reset_index("task")
    assert len(table) == 48 and len(means) == 8
    card = means["wall"] / means["task"].map({"chains": 16, "functions": 24})
    wall, estimate, times = means["wall"], means["estimate"], means["estimate"] / card
    text = (repository / "docs/cluster.md").read_text()
    assert f"{wall.min():.0f} to {wall.max():.0f} s a run of `smollm2-rates`" in text
    assert f"{card.min():.1f} to {card.max():.1f} s of the card" in text
    assert f"{estimate.max():.1f} s, {times.min():.1f} to {times.max():.1f} times as much" in text
    assert estimate.min() == pytest.approx(estimate.max())


class Launches(TorchDispatchMode):
    """Counts the operations that compute something; others make views."""

    def __init__(self):
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **kwargs or {})
        first = result[0] if isinstance(result, tuple) else result
        given = {item.untyped_storage().data_ptr() for item in args if isinstance(item, torch.Tensor)}
        if isinstance(first, torch.Tensor) and first.untyped_storage().data_ptr() not in given:
            self.number += 1
        return result


@pytest.mark.parametrize("precision", ["bfloat16", "autocast", "float32"])
@pytest.mark.parametrize(
    ("model", "config"), [(Qwen3ForCausalLM, Qwen3Config), (LlamaForCausalLM, LlamaConfig)]
)
def test_a_layer_launches_as_much_for_a_token_as_is_estimated(model, config, precision):
    """Counts what two more layers launch for one more token."""
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    found = []
    for layers in (1, 3):
        made = config(vocab_size=64, num_hidden_layers=layers, intermediate_size=96, **sizes)
        network = model(made).to(torch.bfloat16 if precision == "bfloat16" else torch.float32)
        ids = torch.zeros(2, 4, dtype=torch.long)
        with torch.no_grad():
            cache = network(ids, use_cache=True).past_key_values
            # Accelerate enters it for each token, so that weights are cast again.
            casts = torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast")
            with casts, Launches() as launches:
                network(ids[:, :1], past_key_values=cache, use_cache=True)
        found.append(launches.number)
    made.num_hidden_layers = 1
    one = pass_seconds(shape_of_config(json.loads(made.to_json_string())), precision)
    assert (found[1] - found[0]) / 2 * 10.9e-6 == pytest.approx(one, rel=0.05)


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
    # With 8 * 10^9 parameters there are usually 34 layers: 40 launches of 10.9 microseconds in each, 14.8 ms,
    # take less time than to read 32 GB of weights, 21.3 ms.
    assert batch_seconds(paper(vllm=None), **settings).sampling == pytest.approx(
        4096 * (32e9 / 1.5e12 + 16e9 / 1e11)
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
