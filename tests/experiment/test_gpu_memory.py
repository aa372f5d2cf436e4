"""The estimate of GPU memory: against sums by hand, against measurements, and in what can never happen."""

import itertools
import json

import pandas as pd
import pytest
import torch
from pydantic import ValidationError
from refusals import check_facts
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from troll.experiment.files import load_experiment
from troll.experiment.gpu_memory import (
    CARDS,
    GIB,
    fits,
    head_bytes,
    helpful_keys,
    least_card,
    memory_of,
    micro_batch_tokens,
    never_fits,
    saved_bytes,
    states_of,
    usable,
)
from troll.experiment.model_settings import Hub, Wheel
from troll.experiment.model_shapes import shape_of, shape_of_config, typical_shape
from troll.experiment.published import read_published
from troll.experiment.settings import Regulariser, Training

# Parameters as public sources state them: keras-hub's presets of Qwen3; "1.35B parameters" in verl's log.
PARAMETERS = {
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-14B": 14_768_307_200,
    "deepseek-ai/deepseek-coder-1.3b-base": 1.35e9,
}


def shape(model_id):
    found = shape_of(Hub(id=model_id))
    assert found is not None
    return found


def paper(**settings):
    """The paper's training settings on four GPUs, for prompts of 2,048 and responses of 4,096 tokens."""
    usual = {"gpus": 4, "vllm": {"memory": 0.5}, "max_prompt_tokens": 2048, "micro_batch_tokens": 12000}
    return Training(**usual | settings)


@pytest.mark.parametrize("model_id", PARAMETERS)
def test_public_sizes_give_the_public_number_of_parameters(model_id):
    assert shape(model_id).parameters == pytest.approx(PARAMETERS[model_id], rel=4e-3)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("model", "config"), [(Qwen3ForCausalLM, Qwen3Config), (LlamaForCausalLM, LlamaConfig)]
)
def test_a_configuration_gives_the_parameters_of_its_model(model, config, tied):
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    made = config(vocab_size=96, num_hidden_layers=3, intermediate_size=80, tie_word_embeddings=tied, **sizes)
    expected = model(made).num_parameters()
    assert shape_of_config(json.loads(made.to_json_string())).parameters == pytest.approx(expected, rel=2e-3)


def test_a_mixture_of_experts_counts_all_its_experts():
    # Qwen3-30B-A3B (litgpt, config.py): 48 layers, 128 experts of 768, 30.5 * 10^9 parameters.
    found = shape_of_config(
        {
            "model_type": "qwen3_moe",
            "hidden_size": 2048,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "vocab_size": 151_936,
            "tie_word_embeddings": False,
        }
    )
    assert found.parameters == pytest.approx(30.5e9, rel=0.01)
    assert saved_bytes(found, "bfloat16") < 200_000, "of a token, only the experts that it uses count"


def test_sizes_come_from_the_models_own_configuration_if_it_is_here(tmp_path, monkeypatch):
    directory = tmp_path / "Qwen/Qwen3-4B"
    directory.mkdir(parents=True)
    config = {"model_type": "qwen3", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    (directory / "config.json").write_text(json.dumps(config | {"intermediate_size": 8, "vocab_size": 16}))
    published = shape("Qwen/Qwen3-4B")
    monkeypatch.setenv("TROLL_MODEL_MIRROR", str(tmp_path))
    assert shape("Qwen/Qwen3-4B").width == 8 != published.width
    (directory / "config.json").write_text("{")
    assert shape("Qwen/Qwen3-4B") == published
    assert shape_of(Hub(id="nobody/nothing")) is None and shape_of(None) is None


def test_a_model_from_a_wheel_is_known_by_its_file():
    wheel = Wheel(name="a", version="1", sha256="0" * 64, file="a/SmolLM2-135M-Instruct.Q4_1.gguf")
    found = shape_of(wheel)
    assert found is not None and found.parameters == pytest.approx(134.5e6, rel=1e-3)


@pytest.mark.parametrize("billions", [0.135, 3, 70.6])
def test_typical_sizes_have_the_given_number_of_parameters(billions):
    assert typical_shape(billions).parameters == pytest.approx(1e9 * billions, rel=0.02)


# Three models by hand.


def test_qwen3_4b_by_hand():
    """GRPO on four GPUs: V = 151,936, D = 2,560, L = 36, queries 4,096, keys 1,024, MLP 9,728, tied."""
    memory = memory_of(shape("Qwen/Qwen3-4B"), paper(), 80)
    # 4,022,468,096 parameters, of which 36 x 256 in norms are left out: 12 bytes each, on 4 GPUs.
    assert memory.update["weights and AdamW"] * GIB == pytest.approx(12 * 4_022_468_096 / 4, rel=1e-4)
    assert memory.update["gradients"] * GIB == pytest.approx(4 * 4_022_468_096 / 4, rel=1e-4)
    # Inputs of 36 layers, and what one layer saves: 2 x 2,560 x 36 = 184,320, and
    # 16 x 2,560 + 8 x 9,728 + 10.2 x 5,120 = 40,960 + 77,824 + 52,224 = 171,008 bytes, of 12,000 tokens.
    assert memory.update["activations"] * GIB == pytest.approx((184_320 + 171_008) * 12_000)
    # Head: 388,956,160 weights, gathered, with gradient and its copy, in bfloat16: 2,333,736,960 bytes;
    # tiles 201,326,592; 6 x 2,560 x 12,000 = 184,320,000.
    head = 2_333_736_960 + 201_326_592 + 184_320_000
    assert memory.update["output layer"] * GIB == pytest.approx(head)
    # A layer: 2 x 2,560 x 5,120 + 3 x 2,560 x 9,728 + 5,120 = 100,930,560; four copies of two bytes.
    assert memory.update["gathered layers"] * GIB == pytest.approx(8 * 100_930_560)
    assert memory.rollouts["vLLM"] == pytest.approx(0.5 * 0.985 * 80)
    assert sum(memory.update.values()) == pytest.approx(25.2, abs=0.1)  # GiB
    assert memory.needed == pytest.approx(11.24 + 2.0 + 39.4, abs=0.1) and fits(memory, 80)


def test_llama_3_1_8b_by_hand():
    """An untied model: V = 128,256, D = 4,096, L = 32, queries 4,096, keys 1,024, MLP 14,336."""
    llama = shape("meta-llama/Llama-3.1-8B")
    # A layer: 2 x 4,096 x 5,120 + 3 x 4,096 x 14,336 + 8,192 = 41,943,040 + 176,160,768 + 8,192.
    assert llama.layer_parameters == 218_112_000
    assert llama.parameters == 32 * 218_112_000 + 4_096 + 2 * 525_336_576 == 8_030_261_248
    short = paper(max_prompt_tokens=512, max_response_tokens=2048)
    memory = memory_of(llama, short, 80)
    assert states_of(memory) == pytest.approx(16 * 8_030_261_248 / 4 / 2**30)  # 29.9 GiB
    assert sum(memory.update.values()) == pytest.approx(43.1, abs=0.1)
    # vLLM: 2 bytes a weight, 15.0 GiB; logits 3 x 4 x 512 x 128,256 = 0.73 GiB; 1 GiB; a sequence of 2,560
    # tokens with 2 x 2 x 32 x 1,024 = 131,072 bytes each, 0.31 GiB: 17.0 GiB in all.
    fifth = memory_of(
        llama, short.model_copy(update={"vllm": short.vllm.model_copy(update={"memory": 0.2})}), 80
    )
    assert fifth.problem == (
        "vLLM needs 17.0 GiB of each GPU (15.0 for weights) and gets 15.8 (vllm.memory 0.2)"
    )
    assert not fits(fifth, 80) and not memory.problem


def test_codellama_13b_with_a_critic_by_hand():
    """V = 32,016, D = 5,120, L = 40, MLP 13,824, untied; the critic has no output layer."""
    code = shape("codellama/CodeLlama-13b-hf")
    layer = 4 * 5_120**2 + 3 * 5_120 * 13_824 + 2 * 5_120
    assert code.parameters == 40 * layer + 5_120 + 2 * 32_016 * 5_120 == 13_016_028_160
    critic = code.parameters - 32_016 * 5_120
    memory = memory_of(code, paper(), 80, critic=True)
    assert states_of(memory) == pytest.approx(16 * (code.parameters + critic) / 4 / GIB)  # 96.3 GiB
    assert never_fits(memory, 80) and least_card(code, paper(), critic=True) > 80
    eight = paper(gpus=8, vllm={"tensor_parallel": 2})
    assert fits(memory_of(code, eight, 80, critic=True), 80)


def test_a_model_of_70_billion_on_8_gpus_of_80_gib_is_out_of_the_question():
    # 16 bytes for each of 70.6 * 10^9 parameters on 8 GPUs: 131.5 GiB.
    memory = memory_of(typical_shape(70.6), paper(gpus=8, vllm={"tensor_parallel": 8}), 80)
    assert states_of(memory) == pytest.approx(131.5, rel=0.01) and never_fits(memory, 80)


# Against measurements.


@pytest.fixture(scope="module")
def measured(repository):
    return {
        (row["name"], row["backend"]): row["peak_mib"]
        for row in json.loads((repository / "results/released/gpu/gpu_check.json").read_text())["rows"]
        if "peak_mib" in row
    }


@pytest.mark.parametrize(
    ("name", "tokens"), [("clip's head", 8192), ("clip: head and loss, 32768 tokens", 32768)]
)
def test_the_output_layers_memory_is_what_was_measured(measured, name, tokens):
    estimated = head_bytes(shape("Qwen/Qwen3-0.6B"), tokens, weight_bytes=2) / 2**20
    assert estimated == pytest.approx(measured[name, "auto"], rel=0.01)


def test_the_memory_of_a_step_is_what_was_measured(measured):
    """Qwen3-0.6B in bfloat16, no checkpointing: 8 sequences of 1,280 tokens, 8,192 of them in the head."""
    qwen = shape("Qwen/Qwen3-0.6B")
    saved = saved_bytes(qwen, "bfloat16") * qwen.layers * 8 * 1280
    estimated = (saved + head_bytes(qwen, 8192, weight_bytes=2)) / 2**20
    assert estimated == pytest.approx(measured["step, clip", "auto"], rel=0.01)


def _peaks(directory):
    tidy = pd.read_parquet(directory / "tidy", columns=["run_id", "seed", "metric", "value", "source"])
    rows = tidy[(tidy["metric"] == "peak_gib") & (tidy["source"] == "manifest")]
    return rows.dropna(subset=["seed"]).set_index("run_id")


def _of_tensors(experiment, peaks):
    """What is estimated for the update of each run, without CUDA and NCCL."""
    runs, estimates = {run.run_id: run for run in experiment.runs()}, {}
    for run_id in peaks.index:
        run = runs[run_id]
        shape = shape_of(experiment.models[run.model].pretrained)
        update = dict(memory_of(shape, experiment.training_of(run), 80).update)
        del update["CUDA, NCCL and the rest"]
        estimates[run_id] = sum(update.values())
    return pd.Series(estimates)


def test_the_error_against_known_runs_is_stated(repository):
    """Peaks of tensors in the released runs, without CUDA and NCCL, and the paper's peaks."""
    text = (repository / "docs/cluster.md").read_text()
    experiment = load_experiment(repository / "workflow/config/smollm2-gpu.yaml")
    peaks = _peaks(repository / "results/released/smollm2-gpu")["value"]
    estimates = _of_tensors(experiment, peaks)
    errors = estimates / peaks - 1
    assert f"{peaks.min():.2f} to {peaks.max():.2f} GiB at most" in text
    assert f"{estimates.min():.2f} to {estimates.max():.2f} GiB" in text
    assert f"{100 * errors.min():.0f} to {100 * errors.max():.0f} % more" in text
    assert errors.between(0, 0.3).all()

    experiment = load_experiment(repository / "workflow/config/smollm2-rates.yaml")
    kept = experiment.training.model_copy(update={"gradient_checkpointing": False})
    peaks = _peaks(repository / "results/released/smollm2-rates")
    peaks = peaks[peaks["seed"] > 8006]["value"]  # those made on a GPU
    estimates = _of_tensors(experiment.model_copy(update={"training": kept}), peaks)
    errors = estimates / peaks - 1
    assert len(peaks) == 48 and errors.min() > 0, "an estimate that is too low would let a run fail"
    assert f"{peaks.min():.2f} to {peaks.max():.2f} GiB at most" in text
    assert f"{estimates.max():.2f} GiB, {100 * errors.min():.0f} to {100 * errors.max():.0f} % more" in text

    published = {
        row["method"]: float(row["value"]) for row in read_published() if row["metric"] == "vram_gib"
    }
    update = sum(memory_of(shape("Qwen/Qwen3-4B"), paper(), 80).update.values())
    less = [100 * (1 - update / published[method]) for method in ("Clip", "TROLL")]
    assert f"{update:.1f} GiB for an update, {less[0]:.0f} and {less[1]:.0f} % less" in text


@pytest.mark.parametrize("precision", ["bfloat16", "autocast", "float32"])
@pytest.mark.parametrize(
    ("model", "config"), [(Qwen3ForCausalLM, Qwen3Config), (LlamaForCausalLM, LlamaConfig)]
)
def test_a_layer_saves_as_much_as_is_estimated(model, config, precision):
    """Counts the bytes that two more layers save for the backward pass."""
    sizes = {"hidden_size": 192, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 32}
    tokens, found = 512, []
    for layers in (1, 3):
        made = config(vocab_size=64, num_hidden_layers=layers, intermediate_size=320, **sizes)
        network = model(made).to(torch.bfloat16 if precision == "bfloat16" else torch.float32)
        own = {weight.untyped_storage().data_ptr() for weight in network.parameters()}
        kept, held = {}, []

        def keep(tensor, own=own, kept=kept, held=held):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage.nbytes()
                held.append(tensor)
            return tensor

        ids = torch.zeros(2, tokens // 2, dtype=torch.long)
        with (
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"),
        ):
            network.model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
        found.append(sum(kept.values()))
    of_config = shape_of_config(json.loads(made.to_json_string()))
    assert saved_bytes(of_config, precision) == pytest.approx((found[1] - found[0]) / 2 / tokens, rel=0.05)


# What can never happen.

MODELS = ["Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B", "swiss-ai/Apertus-8B-2509", "Qwen/Qwen2.5-7B-Instruct"]


@pytest.mark.parametrize("model_id", MODELS)
@pytest.mark.parametrize("critic", [False, True])
@pytest.mark.parametrize("vllm", [None, {}, {"sleep": False}])
def test_more_gpus_never_need_more_memory_of_each(model_id, critic, vllm):
    needs = []
    for gpus in (2, 4, 8):
        training = paper(gpus=gpus, vllm=vllm, regulariser=Regulariser())
        needs.append(memory_of(shape(model_id), training, 80, critic=critic).needed)
    assert needs == sorted(needs, reverse=True)


@pytest.mark.parametrize("model_id", MODELS)
@pytest.mark.parametrize("gpus", [1, 4])
@pytest.mark.parametrize("vllm", [None, {}])
@pytest.mark.parametrize("budget", [None, 6144])
def test_longer_responses_never_need_less(model_id, gpus, vllm, budget):
    needs = []
    for tokens in (512, 2048, 8192):
        training = paper(gpus=gpus, vllm=vllm, max_response_tokens=tokens, micro_batch_tokens=budget)
        memory = memory_of(shape(model_id), training, 80)
        needs.append((sum(memory.update.values()), sum(memory.rollouts.values())))
    assert all(
        a <= b for before, after in itertools.pairwise(needs) for a, b in zip(before, after, strict=True)
    )


def test_every_further_model_and_every_missing_saving_needs_more():
    qwen, training = shape("Qwen/Qwen3-1.7B"), paper()
    plain = memory_of(qwen, training, 80)
    for more in (
        memory_of(qwen, training, 80, critic=True),
        memory_of(qwen, paper(regulariser=Regulariser()), 80),
        memory_of(qwen, paper(vllm={"memory": 0.6}), 80),
    ):
        assert more.needed > plain.needed
    whole = memory_of(qwen, paper(gradient_checkpointing=False), 80)
    assert whole.largest == "activations" and whole.needed > plain.needed
    assert helpful_keys(whole, paper(gradient_checkpointing=False)).startswith(
        "micro_batch_tokens, gradient_ch"
    )


def test_a_long_response_forms_its_own_micro_batch():
    assert micro_batch_tokens(paper(micro_batch_tokens=100)) == 2048 + 4096
    # 2,048 responses in 8 mini-batches on 4 GPUs: 64 in a pass, unless split.
    assert micro_batch_tokens(paper(micro_batch_tokens=None)) == 64 * 6144
    assert micro_batch_tokens(paper(micro_batch_tokens=None, micro_batches=4)) == 16 * 6144


def test_the_smallest_card_is_the_first_that_fits():
    qwen, training = shape("Qwen/Qwen3-4B"), paper(vllm={"memory": 0.3})
    card = least_card(qwen, training)
    assert card == 40
    assert not any(fits(memory_of(qwen, training, gib), gib) for gib in CARDS if gib < card)
    assert usable(80) < 80


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"vllm": {"tensor_parallel": 3}}, ("tensor_parallel", 3, "gpus (4)")),
        ({"vllm": {"max_model_len": 6000}}, ("max_model_len", 6000, 6144)),
        ({"prompts_per_batch": 4096, "mini_batches": 128}, ("8192 responses",)),
    ],
)
def test_what_vllm_would_refuse_is_refused_before(settings, facts):
    with pytest.raises(ValidationError) as caught:
        paper(**settings)
    check_facts(caught.value.errors()[0]["msg"], *facts)


def test_vllm_reserves_its_cache_for_prompt_and_response():
    assert paper().longest_sequence == 6144
    assert paper(vllm={"max_model_len": 8192}).longest_sequence == 8192
    assert paper(max_prompt_tokens=None).longest_sequence is None
    # Left out by default, so that run.yaml of older runs stays the same.
    assert "max_model_len" not in paper().model_dump()["vllm"]
