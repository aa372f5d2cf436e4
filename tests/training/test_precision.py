"""bfloat16 on a CPU: for large models where it is measured to be faster, and then for everything."""

import json
import shutil

import pytest
import torch

from troll.common.models import PRECISION, in_bfloat16, precision_beside
from troll.evaluation.engines.transformers import load_engine
from troll.training import precision


@pytest.fixture
def files(tiny_base, monkeypatch, tmp_path):
    monkeypatch.setenv("TROLL_BASE_MODELS", str(tmp_path / "place"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return {path.name: path for path in tiny_base.iterdir()}


def clock(monkeypatch, float32_s, bfloat16_s):
    taken = []
    monkeypatch.setattr(
        precision, "_seconds", lambda _, low: taken.append(low) or (float32_s, bfloat16_s)[low]
    )
    return taken


@pytest.mark.parametrize(("bfloat16_s", "chosen"), [(1.0, True), (1.01, False), (2.0, False)])
def test_it_is_used_where_it_is_half_as_fast_again(files, monkeypatch, bfloat16_s, chosen):
    monkeypatch.setattr(precision, "LARGE", 1)
    monkeypatch.setattr(precision, "first_processor", lambda: {"flags": "avx2 amx_bf16"})
    taken = clock(monkeypatch, 1.5, bfloat16_s)
    said = {"bfloat16": chosen, "float32_s": 1.5, "bfloat16_s": bfloat16_s}
    assert precision.precision_of(files) == {PRECISION: said}
    clock(monkeypatch, 1.0, 100.0)
    assert precision.precision_of(files) == {PRECISION: said}, "decided once for model and machine"
    assert taken == [False, True]


def test_small_models_and_other_processors_are_not_measured(files, monkeypatch):
    taken = clock(monkeypatch, 9.0, 1.0)
    assert precision.precision_of(files) == {}
    monkeypatch.setattr(precision, "LARGE", 1)
    monkeypatch.setattr(precision, "first_processor", lambda: {"flags": "avx2 avx512f"})
    assert precision.precision_of(files) == {PRECISION: {"bfloat16": False}}
    assert not taken


def test_measuring_changes_no_random_numbers(files):
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    assert set(precision.measure(files["config.json"])) == {"bfloat16", "float32_s", "bfloat16_s"}
    assert torch.equal(torch.rand(2), expected)


def test_samples_are_drawn_as_the_manifest_says(files, tiny_base, tmp_path):
    shutil.copytree(tiny_base, tmp_path / "checkpoint")
    for bfloat16, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        (tmp_path / "manifest.json").write_text(json.dumps({PRECISION: {"bfloat16": bfloat16}}))
        assert in_bfloat16(precision_beside(tmp_path / "checkpoint")) == bfloat16
        engine = load_engine(
            "transformers", tmp_path / "checkpoint", max_new_tokens=2, temperature=1.0, device="cpu"
        )
        assert engine._model.dtype == dtype
