"""Saved models are as readable as any other file, progress ends once, and tied weights are not missed."""

import json
import os
import stat
from types import SimpleNamespace

import pytest
import torch
from transformers import Trainer

from troll.training.callbacks import ProgressCallback
from troll.training.checkpoints import expect_tied_weights


@pytest.fixture(scope="module")
def tied(tiny_base):
    from troll.common.models import load_model

    return load_model(tiny_base, dtype=torch.float32)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_permissions_of_a_saved_model_follow_the_umask(tied, tiny_base, tmp_path, mask, mode):
    from troll.training.outputs import save_model
    from troll.training.tokenizer import load_tokenizer

    before = os.umask(mask)
    try:
        save_model(tied, load_tokenizer(tiny_base), tmp_path / "checkpoint")
    finally:
        os.umask(before)
    found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "checkpoint").iterdir()}
    assert found["model.safetensors"] == mode and set(found.values()) == {mode}
    assert stat.S_IMODE((tmp_path / "checkpoint").stat().st_mode) == 0o777 & ~mask


def test_a_tokenizer_has_the_same_files_whether_the_hub_may_be_asked_or_not(tiny_base, tmp_path, monkeypatch):
    """A base model's digest goes into the manifests of its runs; it has to be that of the released ones."""
    from transformers import tokenization_utils_base

    from troll.training.prompts import load_policy_tokenizer
    from troll.training.tokenizer import load_tokenizer

    found = {}
    for offline in (False, True):
        monkeypatch.setattr(tokenization_utils_base, "is_offline_mode", lambda: offline)  # noqa: B023
        for load in (load_tokenizer, load_policy_tokenizer):
            out = tmp_path / f"{load.__name__}-{offline}"
            load(tiny_base.parent / "tokenizer").save_pretrained(out)
            load(out).save_pretrained(out)
            found[out.name] = {path.name: path.read_bytes() for path in out.iterdir()}
    first = found.pop("load_tokenizer-False")
    assert json.loads(first["tokenizer_config.json"])["local_files_only"] is False, "as in the release"
    assert [name for name, files in found.items() if files != first] == []


def test_the_last_line_of_progress_is_said_once(capsys):
    progress = ProgressCallback("run", measure="reward", label="success", seconds=0)
    state = SimpleNamespace(global_step=1, max_steps=2, is_world_process_zero=True)
    progress.on_train_begin(None, state, None)
    progress.on_log(None, state, None, {"reward": 0.5})
    state.global_step = 2
    progress.on_log(None, state, None, {"reward": 0.7})
    progress.on_log(None, state, None, {"eval_reward": 0.6})  # the validation after the last step
    progress.on_log(None, state, None, {"train_runtime": 1.0})
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == ["[train] run: step 1/2", "[train] run: step 2/2"]


def test_a_tied_head_that_a_checkpoint_lacks_is_no_warning(tied, monkeypatch):
    import transformers.trainer

    said = []
    monkeypatch.setattr(transformers.trainer.logger, "warning", said.append)
    state = {name: value for name, value in tied.state_dict().items() if name != "lm_head.weight"}
    asked = SimpleNamespace(model=tied)
    Trainer._issue_warnings_after_load(asked, tied.load_state_dict(state, strict=False))
    assert said, "without it transformers warns"
    said.clear()
    expect_tied_weights(tied)
    Trainer._issue_warnings_after_load(asked, tied.load_state_dict(state, strict=False))
    assert not said
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    state.pop("model.norm.weight")
    Trainer._issue_warnings_after_load(asked, tied.load_state_dict(state, strict=False))
    assert said, "a weight that is missing is still missed"
