"""Builds trainers on the tiny model."""

import pytest
import torch
from datasets import Dataset
from trainer_cases import PROMPTS, digits
from transformers import AutoModelForCausalLM
from trl import GRPOConfig

from troll.training.tokenizer import load_tokenizer


@pytest.fixture
def make(tiny_base, tmp_path):
    """Builds a trainer of either kind on a fresh copy of the tiny model."""

    def build(kind, *, steps=4, config=None, reward=digits, **ours):
        arguments = {
            "output_dir": str(tmp_path / kind.__name__),
            "per_device_train_batch_size": 4,
            "steps_per_generation": 4,
            "num_generations": 4,
            "max_completion_length": 10,
            "learning_rate": 1e-3,
            "lr_scheduler_type": "constant",
            "max_steps": steps,
            "loss_type": "grpo",
            "beta": 0.0,
            "gradient_checkpointing": False,
            "bf16": False,
            "use_cpu": True,
            "report_to": "none",
            "logging_steps": 1,
            "save_strategy": "no",
            "disable_tqdm": True,
            "seed": 11,
        } | (config or {})
        return kind(
            AutoModelForCausalLM.from_pretrained(tiny_base, dtype=torch.float32),
            reward,
            args=GRPOConfig(**arguments),
            train_dataset=Dataset.from_dict({"prompt": PROMPTS * 4}),
            processing_class=load_tokenizer(tiny_base),
            **ours,
        )

    return build
