"""Models with dropout: which policies are equal before the first update, and what is said if they are not."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from trainer_cases import CLIP, both, logged, moved, parameters, response_logits, trained
from transformers import AutoModelForCausalLM, GPT2Config, Qwen3Config

from troll.training.dropout import sources_of_noise
from troll.training.outputs import save_model
from troll.training.tokenizer import load_tokenizer
from troll.training.trainer import TrustRegionTrainer

ON_POLICY = {"per_device_train_batch_size": 8, "steps_per_generation": 1, "learning_rate": 0.0}


@pytest.fixture(scope="module")
def gpt2(tiny_base, tmp_path_factory):
    """A GPT-2 with the dropout of GPT-2."""
    tokenizer = load_tokenizer(tiny_base)
    torch.manual_seed(0)
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 64, "initializer_range": 0.2}
    ends = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": tokenizer.eos_token_id}
    model = AutoModelForCausalLM.from_config(GPT2Config(vocab_size=400, **sizes, **ends), dtype=torch.float32)
    out = tmp_path_factory.mktemp("gpt2")
    save_model(model, tokenizer, out)
    return out


@pytest.fixture(scope="module")
def grown_adapter(tiny_base):
    """A model whose adapter has dropout and has been trained."""
    model = AutoModelForCausalLM.from_pretrained(tiny_base, dtype=torch.float32)
    settings = LoraConfig(r=4, lora_alpha=64, lora_dropout=0.1, target_modules="all-linear")
    torch.manual_seed(0)
    model = get_peft_model(model, settings)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def constant(completions, **_):
    return [1.0] * len(completions)


def check_equal(trainer):
    assert max(logged(trainer, "log_ratio_abs")) < 1e-5
    assert max(logged(trainer, "kl_to_old_max")) < 1e-6
    assert max(logged(trainer, "clip_fraction")) == 0
    assert max(logged(trainer, "grad_norm")) == 0


@pytest.mark.parametrize("tail", ["pooled", "constant"])
@pytest.mark.parametrize("cut", [{}, {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}])
def test_without_updates_nothing_is_projected_and_equal_rewards_teach_nothing(make, gpt2, tail, cut, capsys):
    config = ON_POLICY | cut | {"steps_per_generation": cut.get("gradient_accumulation_steps", 1)}
    check_equal(trained(make, config=config, base=gpt2, reward=constant, tail=tail))
    assert "warning: before the first update" not in capsys.readouterr().err


@pytest.mark.parametrize("rule", ["m2po", "troll"])
def test_neither_do_noisy_embeddings(make, rule):
    config = ON_POLICY | {"neftune_noise_alpha": 5.0}
    check_equal(trained(make, config=config, reward=constant, trust_region=rule))


def test_neither_does_a_grown_adapter_with_a_kl_to_the_reference_in_the_reward(make, grown_adapter):
    method = {"estimator": "grpo", "regulariser": {"coefficient": 1e-3}}
    trainer = trained(make, config=ON_POLICY, reward=constant, model=grown_adapter, **method)
    assert max(logged(trainer, "log_ratio_abs")) < 1e-5
    assert max(logged(trainer, "clip_fraction")) == 0
    # TRL's reference is then the adapter at the start: without updates both policies are the same.
    assert logged(trainer, "kl_to_reference") == pytest.approx([0.0] * 4, abs=1e-9)
    assert trainer.noise == "dropout of 0.1"


@pytest.mark.slow
def test_on_policy_updates_with_dropout_are_trls(make):
    # An adapter, because TRL counts the positions of GPT-2 from the left padding.
    config = ON_POLICY | {"learning_rate": 1e-2}
    adapter = LoraConfig(r=4, lora_dropout=0.2, target_modules="all-linear", task_type="CAUSAL_LM")
    theirs, ours = both(make, config=config, steps=8, peft_config=adapter)
    assert moved(theirs) > 1e-3
    torch.testing.assert_close(parameters(ours), parameters(theirs), rtol=0, atol=1e-4)


def test_stale_batches_are_scored_without_dropout_and_the_difference_is_said(make, gpt2, capsys):
    config = {"learning_rate": 0.0, "steps_per_generation": 2, "per_device_train_batch_size": 8}
    batches = []

    class Watched(TrustRegionTrainer):
        def _compute_loss(self, model, inputs):
            batches.append(inputs)
            return super()._compute_loss(model, inputs)

    trained(make, Watched, config=config, base=gpt2, steps=4)
    model = AutoModelForCausalLM.from_pretrained(gpt2, dtype=torch.float32)
    log_probs = response_logits(model, batches[0]).log_softmax(-1)
    expected = log_probs.gather(-1, batches[0]["completion_ids"].unsqueeze(-1)).squeeze(-1)
    on = batches[0]["completion_mask"].bool()
    torch.testing.assert_close(batches[0]["old_per_token_logps"][on], expected[on], rtol=0, atol=1e-5)

    lines = [line for line in capsys.readouterr().err.splitlines() if "before the first update" in line]
    (line,) = lines
    assert "differs from the old policy by" in line and "the model has dropout of 0.1" in line
    off = trained(make, config=config | {"disable_dropout": True}, base=gpt2, steps=2)
    assert "before the first update" not in capsys.readouterr().err
    assert logged(off, "log_ratio_abs")[0] < 1e-5


@pytest.mark.parametrize("how", [{"config": {"beta": 0.1}}, {"regulariser": {"coefficient": 0.1}}])
def test_the_reference_is_the_model_that_is_given_and_not_the_one_of_its_name(make, tiny_base, how, capsys):
    model = AutoModelForCausalLM.from_pretrained(tiny_base, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    config = {"learning_rate": 0.0} | how.get("config", {})
    trainer = trained(make, **how | {"config": config}, model=model, steps=2, **CLIP)
    kl = logged(trainer, "kl") or logged(trainer, "kl_to_reference")
    assert kl[0] == pytest.approx(0.0, abs=1e-6)
    assert "differs from the KL reference" not in capsys.readouterr().err


def test_another_reference_is_said(make, capsys):
    trainer = make(TrustRegionTrainer, config={"beta": 0.1}, steps=1, **CLIP)
    with torch.no_grad():
        next(trainer.ref_model.parameters()).mul_(1.5)
    trainer.train()
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "before the first update" in line]
    assert "differs from the KL reference by" in line and "began with other weights" in line


def test_what_makes_passes_random_is_named(gpt2, tiny_base):
    model = AutoModelForCausalLM.from_pretrained(tiny_base)
    assert sources_of_noise(model, None) == "" and sources_of_noise(model, 5.0) == "NEFTune of 5.0"
    assert sources_of_noise(AutoModelForCausalLM.from_pretrained(gpt2), None) == "dropout of 0.1"
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 16}
    config = Qwen3Config(vocab_size=40, num_attention_heads=2, attention_dropout=0.25, **sizes)
    assert sources_of_noise(AutoModelForCausalLM.from_config(config), None) == "attention_dropout of 0.25"
