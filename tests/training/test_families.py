"""Every model family of the paper, as a tiny random model: trained, saved, loaded, sampled and graded."""

import copy

import pytest
import torch
from refusals import refused
from trainer_cases import CLIP, SeededGRPOTrainer, completion_text, moved, parameters, trained
from transformers import (
    ApertusConfig,
    AutoModelForCausalLM,
    BloomConfig,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    GPT2Config,
    GPTBigCodeConfig,
    GPTNeoConfig,
    LlamaConfig,
    ModernBertDecoderConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    RecurrentGemmaConfig,
    SmolLM3Config,
)
from two_processes import trainer

from troll.common.files import read_json, read_jsonl, write_jsonl
from troll.evaluation.grading import grade
from troll.evaluation.sampling import sample
from troll.experiment.settings import Critic
from troll.tasks.prompts import encode
from troll.tasks.registry import get_task
from troll.training.head import add_position_ids
from troll.training.outputs import save_model
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
    change = {}
    for rule in ("clip", "troll"):
        built = trainer(TrustRegionTrainer, family, tmp_path / rule, config, lengths, trust_region=rule)
        before = parameters(built).clone()
        built.train()
        rows = [row for row in built.state.log_history if "loss" in row]
        # The first step's policy is the old one: what the sparse head says of it is exact.
        assert rows[0]["kl_to_old"] == pytest.approx(0, abs=1e-6) and rows[0]["kept_mass"] > 0.1
        assert rows[0]["grad_norm"] > 0 and rows[1]["kl_to_old"] > 1e-7
        if rule == "troll":
            assert built.constraint_check.summary()["worst_kl_violation"] <= 1e-5
        change[rule] = parameters(built) - before

        tokenizer = load_tokenizer(family)
        save_model(built.model, tokenizer, tmp_path / rule / "checkpoint")
        again = AutoModelForCausalLM.from_pretrained(tmp_path / rule / "checkpoint", dtype=torch.float32)
        assert type(again) is type(built.model)
        ids = torch.arange(5, 25).view(2, 10)
        torch.testing.assert_close(log_probs(again, ids), log_probs(built.model, ids), rtol=0, atol=0)
        check_samples_and_grades(
            built.model, tmp_path / rule / "checkpoint", tokenizer, run_data, tmp_path / rule / "graded"
        )
    assert all(found.norm() > 0 for found in change.values())


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
            support_size=16,
            dropped_mass=0.0,
            sparse_lm_head=True,
        )
    whole = log_probs(built.model, ids)[:, 11:19]
    expected = whole.gather(-1, ids[:, 12:].unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(found.log_probs, expected, rtol=0, atol=1e-5)
    kept = found.token_ids >= 0
    support = whole.gather(-1, found.token_ids.clamp(min=0))
    torch.testing.assert_close(found.support_log_probs[kept], support[kept], rtol=0, atol=1e-5)


GPT = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 80}
GPT |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
NEO = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "max_position_embeddings": 80}
NEO |= {"attention_types": [[["global", "local"], 1]], "window_size": 8}
ABSOLUTE = {
    "gpt2": GPT2Config(vocab_size=400, **GPT),
    "gpt-neo": GPTNeoConfig(vocab_size=400, **NEO),
    "gpt-bigcode": GPTBigCodeConfig(vocab_size=400, **GPT),
}
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
RELATIVE = {
    "rotary": LlamaConfig(**SIZES),
    "alibi": BloomConfig(vocab_size=400, hidden_size=32, n_layer=2, n_head=2),
}
OTHER_HEADS = {
    "recurrent-gemma": RecurrentGemmaConfig(**SIZES | {"num_hidden_layers": 3}, lru_width=32),
    "modernbert-decoder": ModernBertDecoderConfig(**SIZES),
}


def random_model(config):
    """Weights so large that log-probs differ by nats where the text does."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.25)
    return model


def saved(config, tiny_base, directory):
    tokenizer = load_tokenizer(tiny_base)
    config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    config.bos_token_id = tokenizer.eos_token_id
    save_model(random_model(config), tokenizer, directory)
    return directory


def padded(pad):
    """Prompts padded on the left and responses on the right."""
    ids = torch.arange(5, 65).view(3, 20)
    attention = torch.ones_like(ids)
    attention[1, :9], attention[2, :5], attention[2, -3:] = 0, 0, 0
    return ids.masked_fill(attention == 0, pad), attention


@pytest.mark.parametrize("name", list(ABSOLUTE))
def test_padding_moves_no_token_of_a_model_with_absolute_positions(name, tiny_base, tmp_path):
    base = saved(ABSOLUTE[name], tiny_base, tmp_path / "base")
    config = {"beta": 0.1, "save_strategy": "no"}
    method = {"trust_region": "clip", "estimator": "gae", "critic": Critic()}
    built = trainer(TrustRegionTrainer, base, tmp_path / "out", config, **method)
    torch.nn.init.ones_(built.critic.model.head.weight)
    built.model.eval()
    ids, attention = padded(built.processing_class.pad_token_id)
    with torch.no_grad():
        old, _ = built.old_policy.score(built.model, ids, attention, 8, None)
        reference, _, _ = built._get_per_token_logps_and_entropies(built.ref_model, ids, attention, 8)
        values = built.critic.model(ids, attention, 8)
    for row in range(3):
        text, on = ids[row][attention[row].bool()].unsqueeze(0), attention[row, -8:].bool()
        tokens = int(on.sum())
        own = log_probs(built.model, text)[0, -tokens - 1 : -1]
        expected = own.gather(-1, text[0, -tokens:].unsqueeze(-1)).squeeze(-1)
        torch.testing.assert_close(old[row][on], expected, rtol=0, atol=1e-4)
        torch.testing.assert_close(reference[row][on], expected, rtol=0, atol=1e-4)
        with torch.no_grad():
            alone = built.critic.model(text, torch.ones_like(text), tokens)[0]
        torch.testing.assert_close(values[row][on], alone, rtol=0, atol=1e-4)


def test_on_policy_ratios_are_one_however_a_batch_is_cut(tiny_base, tmp_path):
    base = saved(ABSOLUTE["gpt2"], tiny_base, tmp_path / "base")
    config = {"num_iterations": 2, "max_steps": 1, "save_strategy": "no"}
    cut = trainer(
        TrustRegionTrainer, base, tmp_path, config, lengths, trust_region="clip", micro_batch_tokens=60
    )
    cut.train()
    row = cut.state.log_history[0]
    assert row["ratio_max"] == pytest.approx(1, abs=1e-3) and row["grad_norm"] > 0


@pytest.mark.parametrize("name", list(RELATIVE))
def test_what_sees_distances_alone_is_left_as_it_is(name):
    model = random_model(RELATIVE[name])
    ids, attention = padded(0)
    with torch.no_grad():
        before = model(input_ids=ids, attention_mask=attention).logits
        add_position_ids(model)
        after = model(input_ids=ids, attention_mask=attention).logits
    assert torch.equal(after, before)


def test_rotary_embeddings_that_scale_with_the_batch_do_not_count_its_padding():
    sizes = SIZES | {"original_max_position_embeddings": 16, "pad_token_id": 0, "bos_token_id": None}
    model = random_model(Phi3Config(**sizes, eos_token_id=1, rope_parameters=LONG))
    add_position_ids(model)
    ids = torch.arange(5, 19).unsqueeze(0)
    wide = torch.cat([torch.zeros(1, 6, dtype=torch.long), ids], dim=1)
    attention = torch.cat([torch.zeros(1, 6, dtype=torch.long), torch.ones_like(ids)], dim=1)
    with torch.no_grad():
        found = model(input_ids=wide, attention_mask=attention).logits[:, 6:]
        torch.testing.assert_close(found, model(input_ids=ids).logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", list(OTHER_HEADS))
def test_a_model_whose_head_is_another_is_refused_at_the_first_batch(name, tiny_base, tmp_path):
    base = saved(OTHER_HEADS[name], tiny_base, tmp_path / "base")
    built = trainer(TrustRegionTrainer, base, tmp_path, {"max_steps": 1}, lengths, trust_region="troll")
    with refused("model_type", "nats"):
        built.train()


TEXT = SIZES | {"max_position_embeddings": 128}
SIGHT = {"hidden_size": 16, "intermediate_size": 16}
WITH_EYES = {
    "gemma3": lambda: Gemma3ForConditionalGeneration(
        Gemma3Config(
            text_config=TEXT,
            vision_config=SIGHT
            | {"num_hidden_layers": 1, "num_attention_heads": 1, "image_size": 28, "patch_size": 14},
            mm_tokens_per_image=4,
            image_token_index=390,
            boi_token_index=391,
            eoi_token_index=392,
        )
    ),
    "qwen3-vl": lambda: Qwen3VLForConditionalGeneration(
        Qwen3VLConfig(
            text_config=TEXT
            | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}},
            vision_config=SIGHT
            | {"depth": 1, "num_heads": 1, "out_hidden_size": 32, "deepstack_visual_indexes": [0]},
            image_token_id=390,
            video_token_id=391,
            vision_start_token_id=392,
            vision_end_token_id=393,
        )
    ),
}


@pytest.mark.parametrize("name", WITH_EYES)
def test_a_model_of_text_and_images_learns_from_text_what_it_learns_with_trl(name, make):
    config = {"optim": "sgd", "learning_rate": 1e-1, "num_iterations": 2}
    torch.manual_seed(0)
    model = WITH_EYES[name]().float()
    theirs = trained(make, SeededGRPOTrainer, model=copy.deepcopy(model), config=config)
    ours = trained(make, model=model, config=config, **CLIP)
    assert min(moved(theirs), moved(ours)) > 1e-3
    torch.testing.assert_close(parameters(ours), parameters(theirs), rtol=0, atol=1e-5)
