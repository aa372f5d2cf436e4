"""Rollouts from another engine: its log-probs differ from the trainer's, and TRL's correction applies.

vLLM itself needs an environment of its own; here transformers samples and log-probs are reported as by vLLM.
"""

import importlib.util
import shutil
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from refusals import refused
from transformers import AutoModelForCausalLM

from troll.algorithms.distributions import SparseLogProbs
from troll.common.files import read_json, write_json
from troll.experiment.settings import Vllm
from troll.training.config import TrustRegionConfig
from troll.training.policies import OldPolicy
from troll.training.run import vllm_options
from troll.training.tokenizer import load_tokenizer
from troll.training.trainer import TrustRegionTrainer


class OtherEngine(TrustRegionTrainer):
    """Samples with transformers and reports log-probs that are off by a constant."""

    shift = 0.0
    seen: tuple[dict, ...] = ()

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, **rest):
        self.use_vllm = False
        ids, _ = super()._generate_single_turn(prompt_ids, images, multimodal_fields, num_generations, **rest)
        self.use_vllm = True
        log_probs = []
        for prompt, answer in zip(prompt_ids, ids, strict=True):
            with torch.no_grad():
                logits = self.model(input_ids=torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
            own = logits.log_softmax(-1).gather(-1, torch.tensor(answer).unsqueeze(-1)).squeeze(-1)
            log_probs.append((own + self.shift).tolist())
        return ids, log_probs

    def _compute_loss(self, model, inputs):
        self.seen = (*self.seen, inputs)
        return super()._compute_loss(model, inputs)


def run(base, out, *, shift, correct=True):
    arguments = TrustRegionConfig(
        output_dir=str(out),
        per_device_train_batch_size=4,
        steps_per_generation=2,
        num_generations=4,
        max_completion_length=8,
        max_steps=4,
        learning_rate=1e-3,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        vllm_importance_sampling_correction=correct,
        vllm_importance_sampling_mode="token_truncate",
        seed=4,
        trust_region="troll",
    )
    trainer = OtherEngine(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
        lambda completions, **_: [float(len(text) % 3) for text in completions],
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["Start with 3.", "Take the number 8."] * 4}),
        processing_class=load_tokenizer(base),
    )
    trainer.shift, trainer.use_vllm = shift, True
    trainer.train()
    return trainer


@pytest.mark.slow
def test_an_engine_that_agrees_changes_nothing_and_one_that_does_not_is_corrected(tiny_base, tmp_path):
    agreeing = run(tiny_base, tmp_path / "a", shift=0.0)
    shifted = run(tiny_base, tmp_path / "b", shift=0.5)
    for trainer, ratio in ((agreeing, 1.0), (shifted, torch.exp(torch.tensor(-0.5)).item())):
        for inputs in trainer.seen:
            found = inputs["importance_sampling_ratio"][inputs["completion_mask"].bool()]
            torch.testing.assert_close(found, torch.full_like(found, ratio), rtol=0, atol=1e-4)
            assert "old_token_ids" in inputs, "the old distribution did not travel"
    differences = [
        row for row in shifted.state.log_history if "sampling/sampling_logp_difference/mean" in row
    ]
    assert differences[0]["sampling/sampling_logp_difference/mean"] == pytest.approx(0.5, abs=1e-4)
    first, corrected = (trainer.state.log_history[0]["grad_norm"] for trainer in (agreeing, shifted))
    assert corrected == pytest.approx(first * torch.exp(torch.tensor(-0.5)).item(), rel=1e-3)


@pytest.mark.slow
def test_without_correction_the_mismatch_is_told_from_the_first_step_and_changes_nothing(tiny_base, tmp_path):
    agreeing = run(tiny_base, tmp_path / "a", shift=0.0, correct=False)
    shifted = run(tiny_base, tmp_path / "b", shift=0.5, correct=False)
    for trainer, expected in ((agreeing, 0.0), (shifted, 0.5)):
        assert all("importance_sampling_ratio" not in inputs for inputs in trainer.seen)
        for name in ("mean", "max"):
            found = [
                row.get(f"sampling/sampling_logp_difference/{name}") for row in trainer.state.log_history
            ]
            assert found[0] == pytest.approx(expected, abs=1e-4), name
    losses = [[row["grad_norm"] for row in t.state.log_history if "loss" in row] for t in (agreeing, shifted)]
    assert losses[0] == losses[1] and losses[0][0] > 0


@pytest.mark.parametrize(
    "setting",
    [
        {"min_p": 0.1},
        {"typical_p": 0.9},
        {"epsilon_cutoff": 0.01},
        {"no_repeat_ngram_size": 2},
        {"suppress_tokens": [7]},
        {"bad_words_ids": [[7]]},
        {"min_new_tokens": 3},
        {"guidance_scale": 2.0},
    ],
    ids=str,
)
def test_what_the_models_own_file_cuts_away_is_refused(make, tiny_base, tmp_path, setting):
    base = shutil.copytree(tiny_base, tmp_path / "base")
    path = base / "generation_config.json"
    write_json(path, read_json(path) | setting)
    ((name, value),) = setting.items()
    with refused("generation_config", name, value):
        make(TrustRegionTrainer, base=base, trust_region="clip")


def test_what_training_sets_itself_may_stand_in_the_models_own_file(make, tiny_base, tmp_path):
    base = shutil.copytree(tiny_base, tmp_path / "base")
    path = base / "generation_config.json"
    chat = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "do_sample": True, "repetition_penalty": 1.05}
    write_json(path, read_json(path) | chat)
    trainer = make(TrustRegionTrainer, base=base, trust_region="clip")
    used, _ = trainer.model._prepare_generation_config(trainer.generation_config)
    assert (used.temperature, used.top_p, used.top_k, used.repetition_penalty) == (1.0, 1.0, 0, 1.0)


def test_the_settings_of_vllm_reach_trl(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    options = vllm_options(Vllm(correction="token-truncate", memory=0.4), 6144)
    assert (options["vllm_gpu_memory_utilization"], options["vllm_max_model_length"]) == (0.4, 6144)
    assert options["use_vllm"] and options["vllm_enable_sleep_mode"]
    assert options["vllm_importance_sampling_mode"] == "token_truncate"
    options = vllm_options(Vllm(mode="server", server="http://host:8000"))
    assert not options["vllm_enable_sleep_mode"] and not options["vllm_importance_sampling_correction"]
    with pytest.raises(ValueError, match="server"):
        Vllm(mode="server")


def test_without_vllm_its_settings_are_one_line(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with refused("training.vllm", "vllm"):
        vllm_options(Vllm())


@pytest.mark.parametrize("setting", [{}, {"mode": "server", "server": "http://host:8000"}], ids=str)
def test_without_a_gpu_vllm_is_refused_before_anything_is_loaded(monkeypatch, setting):
    """Its layers keep packed weights there, and TRL's first push ends in an AttributeError."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with refused("training.vllm", "GPU"):
        vllm_options(Vllm(**setting))


def test_of_all_scorings_while_sampling_the_first_is_the_old_policys(monkeypatch):
    old = OldPolicy(SimpleNamespace(keep=2, dropped_mass=0.1), vocabulary=8, accelerator=None)
    kept = SparseLogProbs(torch.tensor([[1, 2]]), torch.tensor([[-1.0, -2.0]]), torch.tensor([-0.7]))
    monkeypatch.setattr(old, "score", lambda *batch: (torch.tensor([batch]), kept))
    with old.recording(True) as recorded:
        assert old.records and not recorded
        assert old.record(3.0).tolist() == [[3.0]]
        assert not old.records  # what TRL scores next is the reference
    assert recorded["old_token_ids"].tolist() == [[1, 2]]
    with old.recording(False) as recorded:
        assert not old.records
    assert recorded == {}
    with pytest.raises(RuntimeError), old.recording(True):
        raise RuntimeError
    assert not old.records
