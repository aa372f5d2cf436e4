"""Builds trainers on the tiny model, and writes runs."""

import functools
import shutil

import pytest
import torch
from datasets import Dataset
from run_cases import write_run
from trainer_cases import PROMPTS, configured, digits
from transformers import AutoModelForCausalLM

from troll.tasks.registry import write_problems
from troll.training.tokenizer import load_tokenizer


@pytest.fixture(scope="session", autouse=True)
def forked_commands(forked):
    """Commands of `run_cases.command` are forked from a warm server where one can be started."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in forked.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def run_data(tmp_path_factory):
    """Problems of a small task; in suites/, those of its test split to validate on."""
    directory = tmp_path_factory.mktemp("data")
    config = {"name": "chains", "train": 32, "validation": 8, "test": 8, "settings": {"operations": [2]}}
    write_problems(config, directory)
    suite = directory / "suites/chains"
    suite.mkdir(parents=True)
    shutil.copy(directory / "test.jsonl", suite)
    return directory


@pytest.fixture
def configure(repository):
    """Writes run.yaml of a run of the reduced experiment, with changes; see `run_cases.write_run`."""
    return functools.partial(write_run, repository)


@pytest.fixture
def make(tiny_base, tmp_path):
    """Builds a trainer of either kind on a fresh copy of the tiny model."""

    def build(kind, *, steps=4, config=None, reward=digits, base=None, model=None, data=None, **ours):
        arguments = {
            "output_dir": str(tmp_path / kind.__name__),
            "per_device_train_batch_size": 4,
            "steps_per_generation": 4,
            "num_generations": 4,
            "max_completion_length": 10,
            "learning_rate": 1e-3,
            "lr_scheduler_type": "constant",
            "max_steps": steps,
            "gradient_checkpointing": False,
            "bf16": False,
            "use_cpu": True,
            "report_to": "none",
            "logging_steps": 1,
            "save_strategy": "no",
            "disable_tqdm": True,
            "seed": 11,
        }
        if "aggregation" not in ours and ours.get("estimator") != "dr-grpo":
            arguments["loss_type"] = "grpo"
        return configured(
            kind,
            model or AutoModelForCausalLM.from_pretrained(base or tiny_base, dtype=torch.float32),
            reward,
            arguments | (config or {}),
            ours,
            train_dataset=data or Dataset.from_dict({"prompt": PROMPTS * 4}),
            processing_class=ours.pop("tokenizer", None) or load_tokenizer(tiny_base),
        )

    return build
