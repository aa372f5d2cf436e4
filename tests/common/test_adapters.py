"""Adapters merged into weights: PEFT's own sum, to the last bit the same whatever the order of the files."""

import json
from fractions import Fraction

import pytest
import torch
from refusals import refused
from safetensors.torch import load_file, save_file

from troll.common.adapters import CONFIG, WEIGHTS, digest_of_tensors, merge, merge_adapter

NAME = "model.layers.0.q_proj.weight"


def write_adapter(directory, up, down, **changes):
    directory.mkdir()
    config = {"peft_type": "LORA", "r": len(down), "lora_alpha": 2 * len(down), "bias": "none"} | changes
    (directory / CONFIG).write_text(json.dumps(config))
    stem = f"base_model.model.{NAME.removesuffix('.weight')}"
    save_file({f"{stem}.lora_A.weight": down, f"{stem}.lora_B.weight": up}, directory / WEIGHTS)
    return directory


def some(seed=0):
    torch.manual_seed(seed)
    up, down = torch.randn(6, 3).bfloat16(), torch.randn(3, 5).bfloat16()
    return torch.randn(6, 5), up, down


def test_the_sum_is_exact_and_rounded_once():
    weight, up, down = some()
    merged = merge(weight, down, up, 2.0, "x")
    for row in range(6):
        for column in range(5):
            terms = (Fraction(up[row, k].item()) * Fraction(down[k, column].item()) for k in range(3))
            exact = Fraction(weight[row, column].item()) + 2 * sum(terms)
            nearest = torch.tensor(float(exact), dtype=torch.float64).float()
            assert merged[row, column] == nearest


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_adapted_weights_change_and_types_stay(tmp_path, dtype):
    weight, up, down = some()
    other = torch.randn(4).to(dtype)
    save_file({NAME: weight.to(dtype), "norm": other}, tmp_path / "model.safetensors", {"format": "pt"})
    adapter = write_adapter(tmp_path / "adapter", up, down)
    out = tmp_path / "out"
    out.mkdir()
    merge_adapter(adapter, {"model.safetensors": tmp_path / "model.safetensors"}, out)
    merged = load_file(out / "model.safetensors")
    assert torch.equal(merged["norm"], other) and merged[NAME].dtype == dtype
    assert torch.equal(merged[NAME], merge(weight.to(dtype), down, up, 2.0, "x"))


def test_peft_merges_to_the_same_weights(tmp_path, tiny_base):
    from peft import LoraConfig, PeftModel, get_peft_model

    from troll.common.models import load_model

    torch.manual_seed(0)
    settings = LoraConfig(r=2, lora_alpha=4, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(load_model(tiny_base), settings)
    for name, values in model.named_parameters():
        if "lora_B" in name:
            values.data = torch.randn_like(values)
    model.save_pretrained(tmp_path / "adapter")
    (tmp_path / "out").mkdir()
    files = {path.name: path for path in tiny_base.iterdir()}
    merge_adapter(tmp_path / "adapter", files, tmp_path / "out")
    theirs = PeftModel.from_pretrained(load_model(tiny_base), tmp_path / "adapter").merge_and_unload()
    theirs, before = theirs.state_dict(), load_file(tiny_base / "model.safetensors")
    ours = load_file(tmp_path / "out/model.safetensors")
    assert set(ours) == set(before) and not torch.equal(ours[CHANGED], before[CHANGED])
    for name, values in ours.items():
        torch.testing.assert_close(values, theirs[name])


CHANGED = "model.layers.0.self_attn.q_proj.weight"


def test_the_digest_is_that_of_the_tensors_not_of_the_file(tmp_path):
    weight, up, _ = some()
    save_file({"a": weight, "b": up}, tmp_path / "1.safetensors")
    save_file({"a": weight, "b": up}, tmp_path / "2.safetensors", {"format": "pt"})
    save_file({"a": weight}, tmp_path / "part-1.safetensors")
    save_file({"b": up}, tmp_path / "part-2.safetensors")
    save_file({"a": weight, "b": -up}, tmp_path / "3.safetensors")
    save_file({"a": weight, "c": up}, tmp_path / "4.safetensors")
    first = digest_of_tensors([tmp_path / "1.safetensors"])
    assert first == digest_of_tensors([tmp_path / "2.safetensors"])
    assert first == digest_of_tensors(tmp_path.glob("part-*"))
    assert len({first, *(digest_of_tensors([tmp_path / f"{n}.safetensors"]) for n in (3, 4))}) == 3


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"use_dora": True}, ("use_dora", "True", "False")),
        ({"peft_type": "LOHA"}, ("peft_type", "LOHA", "LORA")),
        ({"rank_pattern": {"q_proj": 8}}, ("rank_pattern", "q_proj")),
    ],
)
def test_what_is_not_plain_lora_is_refused(tmp_path, changes, facts):
    weight, up, down = some()
    save_file({NAME: weight}, tmp_path / "model.safetensors")
    adapter = write_adapter(tmp_path / "adapter", up, down, **changes)
    with refused(adapter / CONFIG, *facts):
        merge_adapter(adapter, {"model.safetensors": tmp_path / "model.safetensors"}, tmp_path)


def test_an_adapter_of_another_model_is_refused(tmp_path):
    weight, up, down = some()
    save_file({"other": weight}, tmp_path / "a.safetensors")
    save_file({NAME: weight.T.contiguous()}, tmp_path / "b.safetensors")
    adapter = write_adapter(tmp_path / "adapter", up, down)
    for name, shapes in (("a", ()), ("b", map(list, (weight.T.shape, up.shape, down.shape)))):
        with refused(NAME, *shapes):
            merge_adapter(adapter, {"m.safetensors": tmp_path / f"{name}.safetensors"}, tmp_path)


def test_a_missing_file_is_named(tmp_path):
    with refused(tmp_path, CONFIG, "troll job adapter"):
        merge_adapter(tmp_path, {}, tmp_path)
