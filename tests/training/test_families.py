"""Every model family of the paper, as a tiny random model: trained, saved, loaded, sampled and graded."""

import pytest
import torch
from transformers import (
    ApertusConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)
from two_processes import trainer

from troll.common.files import read_json, read_jsonl, write_jsonl
from troll.evaluation.grading import grade
from troll.evaluation.sampling import sample
from troll.tasks.prompts import encode
from troll.tasks.registry import get_task
from troll.training.outputs import save_model
from troll.training.prompts import completion_text
from troll.training.tokenizer import load_tokenizer
from troll.training.trainer import TrustRegionTrainer

pytestmark = pytest.mark.slow
SIZES = {
    "vocab_size": 400,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
FAMILIES = {
    "qwen3": (Qwen3Config, {}, None),
    "qwen2": (Qwen2Config, {"tie_word_embeddings": True}, None),
    "llama": (LlamaConfig, {}, None),
    "llama-chat": (LlamaConfig, {"tie_word_embeddings": True}, TEMPLATE),
    "smollm3": (SmolLM3Config, {"no_rope_layers": [1, 0]}, TEMPLATE),
    "apertus": (ApertusConfig, {}, TEMPLATE),
    "qwen3-moe": (Qwen3MoeConfig, EXPERTS, None),
}


@pytest.fixture(params=list(FAMILIES))
def family(request, tiny_base, tmp_path):
    """A saved random model of a family, and whether it reads chats."""
    kind, settings, template = FAMILIES[request.param]
    tokenizer = load_tokenizer(tiny_base)
    tokenizer.chat_template = template
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(0)
    config = kind(**SIZES | settings, **ids, bos_token_id=None)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    save_model(model, tokenizer, tmp_path / "base")
    return tmp_path / "base"


def lengths(completions, **_):
    """A reward that differs between random texts."""
    return [float(len(completion_text(completion)) % 7) for completion in completions]


def log_probs(model, ids):
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits.log_softmax(-1)


def check_samples_and_grades(model, checkpoint, tokenizer, data, out):
    """Our sampler, which reads the checkpoint and pads, gives the trained model's own greedy texts."""
    problems = get_task("chains").load(data / "test.jsonl")
    out.mkdir()
    sample(
        checkpoint,
        problems,
        samples_per_problem=1,
        max_new_tokens=6,
        temperature=0,
        batch_size=3,
        out=out / "s",
    )
    rows = list(read_jsonl(out / "s"))
    for problem, row in zip(problems, rows, strict=True):
        ids = torch.tensor(encode(tokenizer, [problem.prompt]))
        whole = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=6)
        text = tokenizer.decode(whole[0, ids.shape[1] :], skip_special_tokens=True)
        assert (row["task_id"], row["completion"]) == (problem.task_id, text)
    # A random model knows no answer: one is told.
    rows[2]["completion"] = f"\\boxed{{{problems[2].answer}}}"
    write_jsonl(out / "s", rows)
    grade("chains", out / "s", data / "test.jsonl", out / "grades.json")
    grades = read_json(out / "grades.json")
    right = [
        problem.task_id for problem in problems if grades["problems"][problem.task_id]["passed"] == [True]
    ]
    assert right == [problems[2].task_id]
    assert grades["metrics"]["pass@1"] == pytest.approx(1 / len(problems))


def test_a_family_trains_and_is_the_same_when_it_is_loaded_again(family, run_data, tmp_path):
    config = {
        "per_device_train_batch_size": 8,
        "steps_per_generation": 1,
        "num_iterations": 2,
        "max_steps": 2,
        "save_strategy": "no",
    }
    moved = {}
    for rule in ("clip", "troll"):
        trained = trainer(TrustRegionTrainer, family, tmp_path / rule, config, lengths, trust_region=rule)
        before = torch.cat([p.detach().flatten() for p in trained.model.parameters()])
        trained.train()
        rows = [row for row in trained.state.log_history if "loss" in row]
        # The first step's policy is the old one: what the sparse head says of it is exact.
        assert rows[0]["kl_to_old"] == pytest.approx(0, abs=1e-6) and rows[0]["kept_mass"] > 0.1
        assert rows[0]["grad_norm"] > 0 and rows[1]["kl_to_old"] > 1e-7
        if rule == "troll":
            assert trained.constraint_check.summary()["worst_kl_violation"] <= 1e-5
        moved[rule] = torch.cat([p.detach().flatten() for p in trained.model.parameters()]) - before

        tokenizer = load_tokenizer(family)
        save_model(trained.model, tokenizer, tmp_path / rule / "checkpoint")
        again = AutoModelForCausalLM.from_pretrained(tmp_path / rule / "checkpoint", dtype=torch.float32)
        assert type(again) is type(trained.model)
        ids = torch.arange(5, 25).view(2, 10)
        torch.testing.assert_close(log_probs(again, ids), log_probs(trained.model, ids), rtol=0, atol=0)
        check_samples_and_grades(
            trained.model, tmp_path / rule / "checkpoint", tokenizer, run_data, tmp_path / rule / "graded"
        )
    assert all(change.norm() > 0 for change in moved.values())


def test_the_sparse_head_gives_what_the_model_gives(family, tmp_path):
    config = {"per_device_train_batch_size": 4, "steps_per_generation": 1, "save_strategy": "no"}
    built = trainer(TrustRegionTrainer, family, tmp_path / "out", config, trust_region="troll")
    ids = torch.arange(5, 45).view(2, 20)
    mask = torch.ones(2, 8)
    with torch.no_grad():
        found = built.model.eval()(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            mask=mask,
            keep=16,
            dropped_mass=0.0,
            sparse_lm_head=True,
        )
    whole = log_probs(built.model, ids)[:, 11:19]
    expected = whole.gather(-1, ids[:, 12:].unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(found.log_probs, expected, rtol=0, atol=1e-5)
    kept = found.token_ids >= 0
    support = whole.gather(-1, found.token_ids.clamp(min=0))
    torch.testing.assert_close(found.support_log_probs[kept], support[kept], rtol=0, atol=1e-5)
