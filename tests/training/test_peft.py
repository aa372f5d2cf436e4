"""Adapters of PEFT: the policy that learns is the adapted one, and the head stays the model's own."""

from pathlib import Path

import pytest
import torch
from datasets import Dataset
from peft import (
    AutoPeftModelForCausalLM,
    LoraConfig,
    PeftModel,
    PrefixTuningConfig,
    PromptTuningConfig,
    get_peft_model,
)
from refusals import refused
from trainer_cases import PROMPTS, both, configured, digits, moved
from transformers import AutoModelForCausalLM

from troll.common.errors import UserError
from troll.experiment.settings import Critic
from troll.training.tokenizer import load_tokenizer
from troll.training.trainer import TrustRegionTrainer
from troll.training.trl_options import check_model

pytestmark = pytest.mark.slow


def lora(**settings):
    return LoraConfig(r=4, task_type="CAUSAL_LM", **{"target_modules": "all-linear"} | settings)


def adapters(trainer):
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters() if p.requires_grad}


def test_an_adapter_learns_what_it_learns_with_trl(make):
    theirs, ours = both(make, steps=12, config={"learning_rate": 1e-2}, peft_config=lora())
    for name, value in adapters(theirs).items():
        assert "lora" in name
        torch.testing.assert_close(adapters(ours)[name], value, rtol=0, atol=1e-4)
    assert moved(theirs) > 1e-2


@pytest.mark.parametrize(
    "method",
    [
        {"trust_region": "troll"},
        {"trust_region": "troll", "tail": "constant"},
        {"trust_region": "troll", "estimator": "gae", "critic": Critic(learning_rate=1e-3)},
    ],
    ids=["pooled", "constant", "critic"],
)
def test_a_projected_adapter_is_saved_and_loaded(make, tmp_path, method):
    config = {"learning_rate": 1e-2, "num_iterations": 2, "save_strategy": "steps", "save_steps": 4}
    trainer = make(TrustRegionTrainer, steps=8, config=config, peft_config=lora(), **method)
    base = {name: p.detach().clone() for name, p in trainer.model.named_parameters() if not p.requires_grad}
    critic = getattr(trainer.critic, "model", None)
    start = {name: p.detach().clone() for name, p in critic.named_parameters()} if critic else {}
    trainer.train()
    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert max(row["kl_to_old"] for row in rows) > 1e-4
    assert trainer.constraint_check.summary()["worst_kl_violation"] <= 1e-5
    assert all(torch.equal(p, base[name]) for name, p in trainer.model.named_parameters() if name in base)

    learnt = (
        {name for name, p in critic.named_parameters() if not torch.equal(p, start[name])}
        if critic
        else set()
    )
    assert all("lora" in name or name.startswith("head.") for name in learnt) and bool(learnt) == bool(critic)

    trainer.save_model(tmp_path / "adapter")
    again = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter", dtype=torch.float32)
    ids = torch.arange(5, 25).view(2, 10)
    found, expected = (model.eval()(input_ids=ids).logits for model in (again, trainer.model))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)

    if critic:
        resumed = make(TrustRegionTrainer, steps=8, config=config, peft_config=lora(), **method)
        resumed.critic.load(Path(trainer.args.output_dir) / "checkpoint-8")
        for name, value in resumed.critic.model.named_parameters():
            torch.testing.assert_close(value, dict(critic.named_parameters())[name], rtol=0, atol=0)


def test_an_adapter_on_the_head_is_refused(make):
    settings = lora(target_modules=["q_proj", "lm_head"])
    # TRL's own words from 1.15 on; earlier releases train it.
    with pytest.raises((ValueError, UserError), match="lm_head"):
        make(TrustRegionTrainer, peft_config=settings, trust_region="troll")
    trainer = make(TrustRegionTrainer, trust_region="troll")
    adapted = get_peft_model(trainer.model, settings)
    with refused("lm_head", "modules_to_save=['lm_head']"):
        check_model(trainer.args, adapted, None)


HEADS = {
    "head": {"modules_to_save": ["lm_head"]},
    "embeddings and head": {"modules_to_save": ["embed_tokens", "lm_head"]},
    "tied embeddings": {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
}


@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("saved", HEADS)
def test_a_copy_of_the_head_learns_what_it_learns_with_trl(make, saved, beta):
    config = {"learning_rate": 1e-2, "beta": beta, "optim": "sgd"}
    peft = lora(target_modules=["q_proj"], **HEADS[saved])
    theirs, ours = both(make, steps=6, config=config, peft_config=peft)
    for name, value in adapters(theirs).items():
        torch.testing.assert_close(adapters(ours)[name], value, rtol=0, atol=1e-5)
        assert "modules_to_save" not in name or not torch.equal(value, theirs.start[name])
    assert any("modules_to_save" in name for name in adapters(theirs))


VIRTUAL = {
    "prefix": lambda: PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    "prompt": lambda: PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
}


@pytest.mark.parametrize("kind", VIRTUAL)
def test_virtual_tokens_learn_what_they_learn_with_trl(make, kind):
    config = {"learning_rate": 5.0, "optim": "sgd"}
    # Without padding, which TRL counts among the positions.
    data = Dataset.from_dict({"prompt": PROMPTS[:1] * 4})
    theirs, ours = both(make, steps=6, config=config, peft_config=VIRTUAL[kind](), data=data)
    ((name, found),) = adapters(ours).items()
    assert name == "prompt_encoder.default.embedding.weight" and moved(ours) > 1e-2
    torch.testing.assert_close(found, adapters(theirs)[name], rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", VIRTUAL)
@pytest.mark.parametrize("tail", ["pooled", "constant"])
def test_padding_does_not_move_virtual_tokens(make, kind, tail):
    """Scores are those of the unpadded text, as the sampler reads it."""
    torch.manual_seed(0)
    trainer = make(TrustRegionTrainer, peft_config=VIRTUAL[kind](), trust_region="troll", tail=tail)
    ids = torch.randint(5, 200, (2, 12))
    attention = torch.ones_like(ids)
    attention[1, :4] = 0
    model = trainer.model.eval()
    with torch.no_grad():
        found, _ = trainer.old_policy.score(model, ids, attention, 5, None)
        for row, start in ((0, 0), (1, 4)):
            alone = model(input_ids=ids[row : row + 1, start:]).logits[0, -6:-1].log_softmax(-1)
            expected = alone.gather(-1, ids[row, -5:, None]).squeeze(-1)
            torch.testing.assert_close(found[row], expected, rtol=0, atol=1e-5)
    trainer.train()
    assert trainer.state.log_history


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("frozen", ["adapter", "adapter to be", "model"])
def test_a_model_that_cannot_learn_is_refused(tiny_base, tmp_path, frozen, beta):
    model, rest = AutoModelForCausalLM.from_pretrained(tiny_base, dtype=torch.float32), {}
    if frozen == "adapter":
        get_peft_model(model, lora()).save_pretrained(tmp_path / "adapter")
        model = AutoModelForCausalLM.from_pretrained(tiny_base, dtype=torch.float32)
        model = PeftModel.from_pretrained(model, tmp_path / "adapter", is_trainable=False)
    elif frozen == "adapter to be":
        rest = {"peft_config": lora(inference_mode=True)}
    else:
        model.requires_grad_(False)
    arguments = {"output_dir": str(tmp_path), "beta": beta, "bf16": False, "use_cpu": True}
    rest |= {"train_dataset": Dataset.from_dict({"prompt": PROMPTS * 4})}
    rest |= {"processing_class": load_tokenizer(tiny_base)}
    with refused("trainable", "is_trainable=True"):
        configured(TrustRegionTrainer, model, digits, arguments, {"trust_region": "clip"}, **rest)
