"""Options of TRL's trainer: with rule clip, ours ends in the same parameters as TRL's."""

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from trainer_cases import CLIP, PROMPTS, both, digits, logged, parameters, trained
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from troll.experiment.settings import Regulariser
from troll.training.outputs import save_model
from troll.training.tokenizer import load_tokenizer
from troll.training.trainer import TrustRegionTrainer

NEVER = 0.01  # nats, below any entropy here
SEQUENCES = {"importance_sampling_level": "sequence"}
# TRL divides by the tokens of the generation batch, we by those of the step.
ONE_MINI_BATCH = {"steps_per_generation": 1, "num_iterations": 4}
ADAPTIVE = {"use_adaptive_entropy": True, "entropy_coef": 0.1, "entropy_coef_delta": 0.05}


@pytest.fixture(scope="module")
def untouched():
    """Parameters that a rule ends in without any option; trained once for all that are compared with them."""
    kept = {}

    def end(make, rule, steps):
        if (rule, steps) not in kept:
            trainer = trained(make, config={"num_iterations": 2}, steps=steps, trust_region=rule)
            kept[rule, steps] = parameters(trainer)
        return kept[rule, steps]

    return end


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"entropy_coef": 0.2}, CLIP),
        (ADAPTIVE | {"entropy_target": 100.0, "entropy_coef_max": 0.2}, CLIP),
        (ADAPTIVE | {"entropy_target": NEVER, "entropy_coef_min": 0.03}, CLIP),
        ({"top_entropy_quantile": 0.3}, CLIP),
        ({"top_entropy_quantile": 0.3, "entropy_coef": 0.2}, CLIP),
        ({"off_policy_mask_threshold": 0.001}, CLIP),
        ({"epsilon": 0.05, "epsilon_high": 0.1, "delta": 1.2}, CLIP),
        ({"loss_type": "dr_grpo", "scale_rewards": "none"}, CLIP),
        (SEQUENCES, {"trust_region": "gspo-clip"}),
        ({"loss_type": "luspo"}, CLIP),
        ({"loss_type": "cispo", "epsilon_high": 1.05} | ONE_MINI_BATCH, {"trust_region": "cispo"}),
        ({"loss_type": "sapo", "sapo_temperature_pos": 2.0}, {"trust_region": "sapo"}),
        # Without a trust region the loss is the one that TRL's options name, with TRL's bounds.
        ({"loss_type": "cispo"} | ONE_MINI_BATCH, {}),
        ({"loss_type": "vespo"} | ONE_MINI_BATCH, {}),
        ({"loss_type": "sapo"}, {}),
        ({"loss_type": "luspo", "epsilon": 0.01} | SEQUENCES, {}),
        ({"loss_type": "luspo", "epsilon": 0.01, "entropy_coef": 0.2} | SEQUENCES, CLIP),
        ({"epsilon": 0.01} | SEQUENCES, CLIP),
        ({"loss_type": "dapo", "epsilon": 0.01} | SEQUENCES | ONE_MINI_BATCH, CLIP),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_an_option_ends_in_the_parameters_of_trl(make, untouched, options, rule):
    config = {"num_iterations": 2} | options
    theirs, ours = both(make, rule, config=config, steps=16)
    torch.testing.assert_close(parameters(ours), parameters(theirs), rtol=0, atol=2e-5)
    for name in ("entropy_coef", "policy_loss"):
        assert logged(ours, name) == pytest.approx(logged(theirs, name), abs=1e-4)
    if options.get("entropy_target") == NEVER:
        return  # the coefficient moves, but never acts
    plain = untouched(make, "clip", 16)
    assert (plain - parameters(ours)).abs().max() > 1e-4, "the option does nothing"


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["troll", "gspo-clip", "kl-penalty"])
@pytest.mark.parametrize(
    "options", [{"entropy_coef": 0.5}, {"top_entropy_quantile": 0.2}, {"off_policy_mask_threshold": 1e-6}]
)
def test_an_option_acts_on_every_rule(make, untouched, rule, options):
    trainer = trained(make, trust_region=rule, steps=8, config={"num_iterations": 2} | options)
    assert (untouched(make, rule, 8) - parameters(trainer)).abs().max() > 1e-5


# Optimiser steps that span generation batches, divide or straddle them, and end an epoch half full.
CUTTINGS = [(1, 1), (2, 1), (4, 1), (2, 2), (2, 4), (4, 2), (3, 1), (3, 2), (2, 3)]


@pytest.mark.slow
@pytest.mark.parametrize(("accumulated", "per_generation"), CUTTINGS)
@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo"])
def test_the_gradient_is_trls_however_steps_are_cut(make, loss_type, accumulated, per_generation):
    if loss_type == "dapo" and per_generation != accumulated:
        pytest.skip("TRL divides by the average of the generation batch there, on purpose we do not")
    config = {
        "gradient_accumulation_steps": accumulated,
        "steps_per_generation": per_generation,
        "optim": "sgd",
        "learning_rate": 0.5,
        "loss_type": loss_type,
    }
    theirs, ours = both(make, config=config, steps=7)
    torch.testing.assert_close(parameters(ours), parameters(theirs), rtol=0, atol=2e-5)
    expected = logged(theirs, "grad_norm")
    assert logged(ours, "grad_norm") == pytest.approx(expected, rel=2e-3, abs=1e-5) and max(expected) > 0


@pytest.mark.slow
def test_the_auxiliary_loss_of_experts_is_trls(make, tiny_base, tmp_path):
    tokenizer = load_tokenizer(tiny_base)
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=400,
        hidden_size=32,
        intermediate_size=64,
        moe_intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    save_model(AutoModelForCausalLM.from_config(config, dtype=torch.float32), tokenizer, tmp_path / "base")
    options = {"router_aux_loss_coef": 0.5, "gradient_accumulation_steps": 2, "steps_per_generation": 2}
    options |= {"optim": "sgd", "learning_rate": 0.5}
    theirs, ours = both(make, config=options, base=tmp_path / "base", steps=6)
    torch.testing.assert_close(parameters(ours), parameters(theirs), rtol=0, atol=2e-5)
    assert logged(ours, "aux_loss") == pytest.approx(logged(theirs, "aux_loss"), rel=1e-5)
    options["router_aux_loss_coef"] = 0.0
    without = trained(make, config=options, base=tmp_path / "base", **CLIP)
    assert not logged(without, "aux_loss")


@pytest.mark.slow
def test_a_kl_to_the_reference_of_an_adapter_is_trls(make):
    config = {"beta": 0.3, "learning_rate": 1e-2}
    adapter = LoraConfig(r=4, task_type="CAUSAL_LM", target_modules="all-linear")
    theirs, ours = both(make, config=config, steps=8, peft_config=adapter)
    torch.testing.assert_close(parameters(ours), parameters(theirs), rtol=0, atol=1e-4)
    assert logged(ours, "kl") == pytest.approx(logged(theirs, "kl"), abs=1e-4)
    assert max(logged(ours, "kl")) > 1e-6


@pytest.mark.slow
def test_an_adaptive_coefficient_goes_on_where_it_was(make, tmp_path):
    config = ADAPTIVE | {"entropy_target": 100.0, "save_strategy": "steps", "save_steps": 4}
    whole = trained(make, steps=8, config=config, **CLIP)
    resumed = make(TrustRegionTrainer, steps=8, config=config, **CLIP)
    resumed.train(resume_from_checkpoint=str(tmp_path / "TrustRegionTrainer/checkpoint-4"))
    assert resumed.entropy_coef == pytest.approx(whole.entropy_coef) == pytest.approx(0.5)
    torch.testing.assert_close(parameters(resumed), parameters(whole), rtol=0, atol=0)


def test_a_model_can_be_validated_before_its_first_rollout(make):
    trainer = make(
        TrustRegionTrainer,
        regulariser=Regulariser(coefficient=0.1),
        reward=digits,
        eval_dataset=Dataset.from_dict({"prompt": PROMPTS}),
        **CLIP,
    )
    assert trainer.evaluate()["eval_loss"] == pytest.approx(0.0, abs=1e-4)


def test_validation_without_the_loss_gives_the_same_rewards(make):
    found = []
    for wanted in (True, False):
        data = Dataset.from_dict({"prompt": PROMPTS})
        trainer = make(TrustRegionTrainer, eval_dataset=data, eval_loss=wanted, **CLIP)
        passes = []
        trainer.old_policy.score = _counted(trainer.old_policy.score, passes)
        result = trainer.evaluate()
        found.append((result["eval_reward"], "eval_loss" in result, bool(passes)))
    assert found == [(found[0][0], True, True), (found[0][0], False, False)]


def _counted(function, calls):
    return lambda *arguments: calls.append(1) or function(*arguments)
