"""The testbed for a GPU, as far as a CPU can tell: lengths, vocabulary, size of the model."""

import pytest

from troll.experiment.files import load_experiment
from troll.tasks.registry import check_settings, get_task
from troll.training.tokenizer import train_tokenizer

FILE = "workflow/config/testbed-gpu.yaml"


@pytest.fixture(scope="module")
def gpu(repository):
    return load_experiment(repository / FILE)


def test_the_matrix_is_rules_by_estimators_by_conditions_and_seeds(gpu):
    assert len(gpu.runs()) == 6 * 3 * 2 * 5
    assert {run.condition for run in gpu.groups()["stale"]} == {"stale"}


def test_the_model_has_twenty_to_fifty_million_parameters(gpu):
    import torch
    from transformers import Qwen3ForCausalLM

    from troll.training.base_model import new_model

    class Tokenizer:
        eos_token_id = pad_token_id = 0

    with torch.device("meta"):
        model = new_model(gpu.models["small"], Tokenizer(), seed=0)
    assert isinstance(model, Qwen3ForCausalLM)
    assert 20e6 < model.num_parameters() < 50e6


@pytest.mark.slow
def test_the_vocabulary_is_used_and_answers_have_the_length_they_should(gpu):
    task, model = get_task("chains"), gpu.models["small"]
    settings = check_settings(task, gpu.tasks["chains"].settings)
    texts = [
        item.prompt + item.completion
        for item in task.demonstrate(model.supervised.demonstrations_for_tokenizer, 0, settings)
    ]
    tokenizer = train_tokenizer(texts, model.vocabulary)
    problems = task.generate("test", 64, 0, settings)
    answers = [len(tokenizer(p.record["solution"]).input_ids) + 1 for p in problems]
    prompts = [len(tokenizer(p.prompt).input_ids) for p in problems]
    assert min(answers) >= 100 and max(answers) <= gpu.training.max_response_tokens <= 310
    assert max(prompts) + gpu.training.max_response_tokens <= model.context
    train = task.generate("train", 2000, 0, settings)
    used = {token for p in train for token in tokenizer(p.prompt + p.record["solution"]).input_ids}
    assert len(used) > 1000, "a vocabulary that problems do not use would be for show"


def test_names_change_the_wording_and_nothing_else():
    task = get_task("chains")
    named = check_settings(task, {"operations": [2], "names": 3})
    problems = task.generate("train", 30, 0, named)
    assert len({p.prompt.split(":")[0] for p in problems}) == 3
    for problem in problems:
        name = problem.prompt.split(":")[0]
        lines = problem.record["solution"].splitlines()
        assert all(line.startswith(f"{name} ") for line in lines[:-1])
        assert lines[-2].endswith(f"={problem.answer}")
