"""Saved models: damaged ones are refused with one line, and never sampled or trained on."""

import json
import shutil

import pytest
from refusals import refused
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma3Config,
    GPT2Config,
    MambaConfig,
    Qwen3Config,
)

from troll.common.digests import facts_of
from troll.common.models import check_checkpoint, context_of, load_model, parameters_of
from troll.evaluation.engines.transformers import load_engine
from troll.operations.hub_context import _context_in


@pytest.fixture
def saved(tiny_base, tmp_path):
    """A run's directory: a checkpoint, and the manifest that tells what it held."""
    shutil.copytree(tiny_base, tmp_path / "checkpoint")
    manifest = {"run_id": "a", "checkpoint": facts_of(tmp_path / "checkpoint")}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    return tmp_path / "checkpoint"


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_flipped_byte_is_noticed_before_anything_is_sampled(saved, name):
    check_checkpoint(saved)
    flip(saved / name)
    with refused(saved.parent / "manifest.json", name):
        load_engine("transformers", saved, max_new_tokens=2, temperature=1.0)


@pytest.mark.parametrize("text", ["[]", "{", '{"checkpoint": {"a": 3}}', '{"checkpoint": {"a": {}}}'])
def test_a_broken_manifest_is_one_line(saved, text):
    (saved.parent / "manifest.json").write_text(text)
    with refused(saved.parent / "manifest.json"):
        check_checkpoint(saved)


def test_without_a_manifest_or_with_an_older_one_there_is_nothing_to_compare(saved, tiny_base):
    check_checkpoint(tiny_base)
    (saved.parent / "manifest.json").write_text('{"run_id": "a"}')
    flip(saved / "model.safetensors")
    check_checkpoint(saved)


def _without_a_tensor(path):
    weights = load_file(path)
    weights.pop(next(name for name in weights if "q_proj" in name))
    save_file(weights, path, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "facts"),
    [
        (lambda path: path.write_bytes(b""), ()),
        (lambda path: path.write_bytes(path.read_bytes()[:-5000]), ()),
        (lambda path: path.write_bytes(b"garbage" * 100), ()),
        (lambda path: path.unlink(), ()),
        (lambda path: path.with_name("config.json").write_text("["), ()),
        (lambda path: path.with_name("config.json").write_text("[" * 10**5), ()),
        (_without_a_tensor, ("model.layers.0.self_attn.q_proj.weight",)),
    ],
)
def test_broken_weights_are_one_line(tiny_base, tmp_path, damage, facts):
    shutil.copytree(tiny_base, tmp_path / "model")
    damage(tmp_path / "model" / "model.safetensors")
    with refused(tmp_path / "model", *facts):
        load_model(tmp_path / "model", dtype="auto")


def tiny_gemma3(context):
    """A model of text and images, whose language model has a configuration of its own."""
    text = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    text |= {"num_key_value_heads": 1, "head_dim": 16, "vocab_size": 64, "max_position_embeddings": context}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    return Gemma3Config(
        text_config=text,
        vision_config=vision | {"image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
        image_token_index=60,
        boi_token_index=61,
        eoi_token_index=62,
    )


@pytest.mark.parametrize(
    ("config", "context"),
    [
        (tiny_gemma3(77), 77),
        (Qwen3Config(max_position_embeddings=78), 78),
        (GPT2Config(n_positions=79), 79),
        (MambaConfig(), None),
    ],
    ids=["gemma3", "qwen3", "gpt2", "mamba"],
)
def test_the_context_is_that_of_the_language_model(config, context, tmp_path):
    assert context_of(config) == context
    config.save_pretrained(tmp_path)
    assert _context_in(tmp_path / "config.json") == context


def test_no_text_exceeds_the_context_of_a_language_model_with_eyes(tiny_base, tmp_path):
    model = AutoModelForCausalLM.from_config(tiny_gemma3(32))
    model.save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(tiny_base).save_pretrained(tmp_path / "model")
    engine = load_engine("transformers", tmp_path / "model", max_new_tokens=2, temperature=1.0, device="cpu")
    assert engine.context == 32


def test_parameters_are_counted_without_loading_them(tiny_base, tmp_path):
    counted = sum(values.numel() for values in load_file(tiny_base / "model.safetensors").values())
    assert parameters_of(tiny_base.iterdir()) == counted > 0
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    assert parameters_of(tmp_path.iterdir()) == 0
