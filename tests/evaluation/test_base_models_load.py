"""From-scratch base models are models like any other: for transformers' auto classes and for lm-eval."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from troll.evaluation.lm_eval.builtin import TASKS
from troll.tasks.registry import write_problems


def test_auto_classes_load_model_and_tokenizer(tiny_base):
    tokenizer, model = (
        AutoTokenizer.from_pretrained(tiny_base),
        AutoModelForCausalLM.from_pretrained(tiny_base),
    )
    assert model.config.model_type == "qwen3"
    assert model.config.head_dim % 32 == 0, "vLLM refuses other widths"
    text = "Start with 3. Add 4. What is the last digit?\n\\boxed{7} def f(x):\n    return x ** 2  # ü Ω"
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids) == text
    assert len(tokenizer) == model.config.vocab_size
    assert {tokenizer.eos_token_id, tokenizer.pad_token_id} == {
        model.config.eos_token_id,
        model.config.pad_token_id,
    }
    assert tokenizer.eos_token_id != tokenizer.pad_token_id
    # A policy is sampled from whole: transformers' default of top_k = 50 must not come back.
    assert model.generation_config.top_k == 0
    with torch.no_grad():
        assert torch.isfinite(model(input_ids=torch.tensor([ids])).logits).all()


@pytest.mark.slow
def test_lm_eval_runs_the_packages_task_on_the_model_itself(guessing_base, tmp_path):
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    sizes = {"train": 8, "validation": 8, "test": 12, "settings": {"operations": [2]}}
    write_problems({"name": "chains", **sizes}, tmp_path)
    manager = TaskManager(
        include_path=str(TASKS),
        include_defaults=False,
        metadata={"data_file": str(tmp_path / "test.jsonl")},
    )
    results = simple_evaluate(
        model="hf",
        model_args={"pretrained": str(guessing_base), "dtype": "float32", "device": "cpu"},
        tasks=["chains"],
        task_manager=manager,
        batch_size=32,
        bootstrap_iters=0,
    )["results"]["chains"]
    # It has learnt to box a digit and guesses which: about one in ten at once, about half within eight.
    assert 0 < results["pass@1,all"] < 0.5
    assert results["pass@1,all"] < results["pass@8,all"] <= 1
