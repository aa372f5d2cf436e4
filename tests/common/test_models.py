"""Saved models: damaged ones are refused with one line, and never sampled or trained on."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

from troll.common.digests import facts_of
from troll.common.errors import UserError
from troll.common.models import check_checkpoint, load_model
from troll.evaluation.engines.transformers import load_engine


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
    with pytest.raises(UserError, match=rf"manifest\.json \(the contents of {name} have"):
        load_engine("transformers", saved, max_new_tokens=2, temperature=1.0)


@pytest.mark.parametrize("text", ["[]", "{", '{"checkpoint": {"a": 3}}', '{"checkpoint": {"a": {}}}'])
def test_a_broken_manifest_is_one_line(saved, text):
    (saved.parent / "manifest.json").write_text(text)
    with pytest.raises(UserError, match=r"manifest\.json: not (a manifest|JSON)") as caught:
        check_checkpoint(saved)
    assert "\n" not in str(caught.value)


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
    ("damage", "said"),
    [
        (lambda path: path.write_bytes(b""), "cannot be loaded as a model"),
        (lambda path: path.write_bytes(path.read_bytes()[:-5000]), "cannot be loaded as a model"),
        (lambda path: path.write_bytes(b"garbage" * 100), "cannot be loaded as a model"),
        (lambda path: path.unlink(), "cannot be loaded as a model"),
        (lambda path: path.with_name("config.json").write_text("["), "cannot be loaded as a model"),
        (
            lambda path: path.with_name("config.json").write_text("[" * 10**5),
            "cannot be loaded as a model",
        ),
        (_without_a_tensor, "has no weights for .*q_proj.*, which would be random"),
    ],
)
def test_broken_weights_are_one_line(tiny_base, tmp_path, damage, said):
    shutil.copytree(tiny_base, tmp_path / "model")
    damage(tmp_path / "model" / "model.safetensors")
    with pytest.raises(UserError, match=said) as caught:
        load_model(tmp_path / "model", dtype="auto")
    assert "\n" not in str(caught.value)
