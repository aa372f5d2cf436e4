"""docs/trainer.md says what the trainer does: each option that it lists is tried."""

import re
from dataclasses import fields

import pytest
from refusals import refused
from trainer_cases import CONDITIONAL
from transformers import GenerationConfig

from troll import TrustRegionConfig
from troll.common.errors import UserError
from troll.training.trl_options import RULE_SETTINGS, SAMPLES, check_model


@pytest.fixture(scope="module")
def page(repository):
    return (repository / "docs/trainer.md").read_text()


def configuration(**options):
    return TrustRegionConfig("out", bf16=False, use_cpu=True, report_to="none", **options)


def examples_of(page):
    """The examples in the table of options that are refused."""
    table = page.split("| refused | when |\n")[1].split("\n\n")[0]
    cells = [row.split(" | ")[0] for row in table.splitlines()[1:]]
    return [example for cell in cells for example in re.findall(r"`([^`]+)`", cell)]


def test_what_the_page_calls_refused_is_refused(page):
    examples = examples_of(page)
    assert len(examples) > 15
    for example in examples:
        options = eval(f"dict({example})")
        with pytest.raises((UserError, ValueError)) as caught:
            configuration(**options).resolve()
        assert any(name in str(caught.value) for name in options), example


def test_the_page_names_every_option_that_is_not_always_accepted(page):
    named = set(re.findall(r"`?(\w+)=", " ".join(examples_of(page))))
    assert set(CONDITIONAL) | set(RULE_SETTINGS) <= named
    assert named <= {field.name for field in fields(TrustRegionConfig)}


def test_each_refused_option_is_accepted_where_the_page_says(page):
    for options in (
        {"trust_region": "clip", "epsilon": 0.1, "epsilon_high": 0.3, "delta": 2.0},
        {"trust_region": "sapo", "sapo_temperature_neg": 2.0, "sapo_temperature_pos": 2.0},
        {"trust_region": "vespo", "vespo_k_pos": 3.0, "vespo_lambda_neg": 1.0},
        {"loss_type": "sapo"},
        {"importance_sampling_level": "sequence"},
        {"scale_rewards": "none"},
        {"multi_objective_aggregation": "normalize_then_sum"},
    ):
        configuration(**options).resolve()


def test_nothing_set_means_troll(page):
    assert "| loss, if nothing is set | clip" in page
    method = configuration().resolve()
    assert method.rule.name == "troll" and method.rule_settings["kl_bound"] == 0.05


@pytest.mark.slow
def test_of_the_models_own_sampling_what_trl_replaces_is_accepted_and_the_rest_refused(page, make):
    from troll.training.trainer import TrustRegionTrainer

    trainer = make(TrustRegionTrainer, trust_region="clip")
    harmless = re.search(r"TRL replaces (.*?) by\nthe values", page)[1]
    listed = re.search(r"\n\| (.*), \.\.\. in the model's `generation_config.json`", page)[1]
    values = {"suppress_tokens": [3], "num_beams": 2, "top_k": 20, "typical_p": 0.5, "min_p": 0.1}
    for name in re.findall(r"`(\w+)`", harmless):
        trainer.model.generation_config = GenerationConfig(**{name: values.get(name, 0.9)})
        check_model(trainer.args, trainer.model, trainer.generation_config)
    for name in re.findall(r"`(\w+)`", listed):
        assert name in SAMPLES
        trainer.model.generation_config = GenerationConfig(**{name: values[name]})
        with refused("generation_config", name, values[name]):
            check_model(trainer.args, trainer.model, trainer.generation_config)
