"""`TrustRegionConfig`: TRL's ways to configure, and what becomes of every option of GRPO."""

import json
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from refusals import refused
from trainer_cases import BY_TRL, BY_US, CONDITIONAL, SAMPLES_ALIKE
from transformers import GenerationConfig, TrainingArguments
from trl import GRPOConfig, GRPOTrainer, TrlParser
from trl.trainer.utils import RepeatSampler

import troll
from troll.experiment.settings import Critic, Overlong, Regulariser
from troll.training import trl_parts
from troll.training.config import TrustRegionConfig
from troll.training.method import resolve
from troll.training.trainer import TrustRegionTrainer
from troll.training.trl_options import RULE_SETTINGS, SAMPLES
from troll.training.trl_parts import ADDED, DROPPED

CPU = {"output_dir": "out", "use_cpu": True, "bf16": False}


def config(**options):
    return TrustRegionConfig(**CPU | options)


def settings_of(**options):
    return config(**options).resolve().rule_settings


def test_every_option_of_grpo_is_honoured_or_refused():
    own = {field.name for field in fields(GRPOConfig)} - {field.name for field in fields(TrainingArguments)}
    tables = [set(BY_TRL), set(BY_US), set(RULE_SETTINGS), set(CONDITIONAL)]
    known = set().union(*tables)
    assert own <= known, f"options of TRL that nobody has looked at: {sorted(own - known)}"
    assert sum(map(len, tables)) == len(known), "an option is in two tables"
    gone = known - {field.name for field in fields(GRPOConfig)} - set(DROPPED) - ADDED
    assert not gone, f"options that TRL no longer has: {sorted(gone)}"


def test_trls_parser_reads_yaml_and_command_line(tmp_path):
    options = {
        "trust_region": "troll",
        "trust_region_settings": {"kl_bound": 0.03},
        "estimator": "gae",
        "critic": {"learning_rate": 1e-4},
        "epsilon": 0.2,
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(CPU | options))
    parser = TrlParser((TrustRegionConfig,))
    (found,) = parser.parse_args_and_config(
        ["--config", str(tmp_path / "run.yaml"), "--tail", "constant", "--overlong", '{"buffer": 8}']
    )
    assert found.resolve().rule_settings["kl_bound"] == 0.03
    assert found.tail == "constant" and found.resolve().overlong == Overlong(buffer=8)
    assert found.resolve().critic == Critic(learning_rate=1e-4)
    # Loggers and checkpoints of transformers write options as JSON.
    assert json.loads(found.to_json_string())["critic"]["learning_rate"] == 1e-4
    shown = TrlParser((TrustRegionConfig,)).format_help()
    for field in {field.name for field in fields(TrustRegionConfig)} - {f.name for f in fields(GRPOConfig)}:
        assert f"--{field}" in shown


def test_options_that_were_changed_are_resolved_as_they_are_now():
    changed = config(trust_region="clip")
    changed.trust_region_settings = {"epsilon_low": 0.1}
    changed.aggregation = "seq-mean-token-sum"
    found = changed.resolve()
    assert found.rule_settings["epsilon_low"] == 0.1
    assert found.aggregation == "seq-mean-token-sum"
    changed.estimator, changed.critic = "grpo", {}
    with refused("estimator 'grpo'", "critic"):
        changed.resolve()


def test_blocks_may_be_settings_mappings_or_json():
    for given in (Regulariser(coefficient=0.5), {"coefficient": 0.5}, '{"coefficient": 0.5}'):
        assert config(regulariser=given).resolve().regulariser == Regulariser(coefficient=0.5)
    assert troll.TrustRegionConfig is TrustRegionConfig


@pytest.mark.parametrize(
    ("facts", "options"),
    [
        (("'clipp'", "'clip'"), {"trust_region": "clipp"}),
        (("'kl_bond'", "'kl_bound'"), {"trust_region_settings": {"kl_bond": 1}}),
        (("gpro", "grpo"), {"estimator": "gpro"}),
        (("aggregation", "mean", "token-mean"), {"aggregation": "mean"}),
        (("overlong.buffer", 0, "> 0"), {"estimator": "grpo", "overlong": {"buffer": 0}}),
        (("regulariser", "weight"), {"regulariser": {"weight": 1}}),
        (("max_prompt_tokens", 0, "> 0"), {"max_prompt_tokens": 0}),
        (("top_p", "0.9"), {"top_p": 0.9}),
        (("top_k", 50), {"top_k": 50}),
        (("min_p", "0.1"), {"min_p": 0.1}),
        (("generation_kwargs", "top_k", 5), {"generation_kwargs": {"top_k": 5}}),
        (("generation_kwargs", "typical_p", "0.9"), {"generation_kwargs": {"typical_p": 0.9}}),
        (("generation_kwargs", "eta_cutoff", "0.01"), {"generation_kwargs": {"eta_cutoff": 0.01}}),
        (("generation_kwargs", "top_h", "0.5"), {"generation_kwargs": {"top_h": 0.5}}),
        (("generation_kwargs", "num_beams", 2), {"generation_kwargs": {"num_beams": 2}}),
        (("generation_kwargs", "suppress_tokens", "[7]"), {"generation_kwargs": {"suppress_tokens": [7]}}),
        (
            ("generation_kwargs", "logit_bias", "{7: -5.0}"),
            {"generation_kwargs": {"logit_bias": {7: -5.0}}, "use_vllm": True},
        ),
        (
            ("generation_kwargs", "do_sample", "False", "True"),
            {"generation_kwargs": {"do_sample": False}},
        ),
        (
            ("generation_kwargs", "temperature", "0.5", "0.8"),
            {"generation_kwargs": {"temperature": 0.5}, "temperature": 0.8},
        ),
        (("repetition_penalty", "1.1"), {"repetition_penalty": 1.1}),
        (
            ("vllm_structured_outputs_regex",),
            {
                "vllm_structured_outputs_regex": "[0-9]",
                "use_vllm": True,
                "vllm_importance_sampling_correction": False,
            },
        ),
        (("loss_type='vespo'",), {"loss_type": "vespo", "trust_region": "clip"}),
        (("loss_type='sapo'",), {"loss_type": "sapo", "trust_region": "clip"}),
        (
            ("importance_sampling_level='sequence'", "cispo"),
            {"importance_sampling_level": "sequence", "loss_type": "cispo"},
        ),
        (("loss_type='bnpo'",), {"importance_sampling_level": "sequence", "loss_type": "bnpo"}),
        (("delta=3.0", "'troll'", "kl_bound"), {"delta": 3.0}),
        (("vespo_k_pos=1.0", "'clip'"), {"vespo_k_pos": 1.0, "trust_region": "clip"}),
        (("delta=1.1", 1), {"delta": 1.1, "trust_region": "clip"}),
        (
            ("epsilon", "trust_region_settings"),
            {"epsilon": 0.1, "trust_region": "clip", "trust_region_settings": {"epsilon_low": 0.1}},
        ),
        (("scale_rewards='batch'", "'rloo'"), {"scale_rewards": "batch", "estimator": "rloo"}),
        (
            ("multi_objective_aggregation='x'", "'rloo'"),
            {"multi_objective_aggregation": "x", "estimator": "rloo"},
        ),
        (("beta", "regulariser"), {"beta": 0.1, "regulariser": {}}),
        (
            ("use_bias_correction_kl", "regulariser"),
            {"use_bias_correction_kl": not GRPOConfig.use_bias_correction_kl, "regulariser": {}},
        ),
        (("loss_type='grpo'",), {"loss_type": "grpo", "aggregation": "token-mean"}),
        (("loss_type='luspo'",), {"loss_type": "luspo", "trust_region": "gspo-clip"}),
        (("loss_type='grpo'",), {"loss_type": "grpo", "estimator": "dr-grpo"}),
        (("vespo", "importance"), {"trust_region": "vespo", "use_vllm": True}),
        (("policy_lag", -1, ">= 0"), {"policy_lag": -1}),
        (("policy_lag", "1.5"), {"policy_lag": 1.5}),
        (("trust_region_anchor", "'samplr'", "'sampler'"), {"trust_region_anchor": "samplr"}),
        (("policy_lag", "transformers"), {"policy_lag": 1, "use_vllm": True}),
        (("'gae'", "critic"), {"estimator": "gae"}),
        (("'ppo-max'", "critic"), {"estimator": "ppo-max"}),
        (("'grpo'", "critic"), {"estimator": "grpo", "critic": {}}),
        (("critic",), {"critic": {}}),
        (("overlong",), {"overlong": {}}),
        (("regulariser.applied_to", "estimator"), {"regulariser": {"applied_to": "reward"}}),
    ],
)
def test_mistakes_and_options_without_effect_are_refused(facts, options):
    with refused(*facts):
        config(**options)


@pytest.mark.parametrize(
    ("options", "rule", "aggregation"),
    [
        ({}, "troll", "token-mean"),
        ({"loss_type": "cispo"}, "cispo", "token-mean"),
        ({"loss_type": "sapo"}, "sapo", "seq-mean-token-mean"),
        ({"loss_type": "vespo"}, "vespo", "token-mean"),
        ({"loss_type": "vespo", "importance_sampling_level": "sequence"}, "vespo", "token-mean"),
        ({"loss_type": "luspo"}, "troll", "seq-mean-token-sum"),
        ({"loss_type": "luspo", "importance_sampling_level": "sequence"}, "luspo", "seq-mean-token-sum"),
        ({"importance_sampling_level": "sequence"}, "troll-seq", "seq-mean-token-mean"),
        (
            {"importance_sampling_level": "sequence", "trust_region": "clip"},
            "gspo-clip",
            "token-mean",
        ),
        (
            {"importance_sampling_level": "sequence", "trust_region": "gspo-clip"},
            "gspo-clip",
            "seq-mean-token-mean",
        ),
    ],
)
def test_options_of_trl_name_the_trust_region_that_is_not_named(options, rule, aggregation):
    found = config(**options).resolve()
    assert (found.rule.name, found.aggregation) == (rule, aggregation)


@pytest.mark.parametrize(
    ("rule", "estimator", "aggregation"),
    [
        ("troll", None, "released"),
        ("troll", "dr-grpo", "released"),
        ("troll-seq", "grpo", "released"),
        ("clip", "grpo", "released"),
        ("clip", "dr-grpo", "seq-mean-token-sum-norm"),
        ("gspo-clip", "grpo", "seq-mean-token-mean"),
    ],
)
def test_the_released_aggregation_is_trolls_and_that_of_token_means(rule, estimator, aggregation):
    found = config(trust_region=rule, estimator=estimator, aggregation="released").resolve()
    assert found.aggregation == aggregation


def test_bounds_of_a_rule_that_trls_loss_type_names_are_trls():
    cispo = {"loss_type": "cispo"}
    assert settings_of(**cispo) == {"ratio_max": 0.2}
    assert settings_of(**cispo, epsilon=0.3) == {"ratio_max": 0.3}
    assert settings_of(**cispo, epsilon=0.3, epsilon_high=2.0) == {"ratio_max": 2.0}
    assert settings_of(**cispo, trust_region="cispo") == {"ratio_max": 5.0}
    assert settings_of(**cispo, trust_region_settings={"ratio_max": 4.0}) == {"ratio_max": 4.0}
    luspo = {"loss_type": "luspo", "importance_sampling_level": "sequence"}
    bounds = settings_of(**luspo, epsilon_high=0.3)
    assert bounds == {"epsilon_low": 0.2, "epsilon_high": 0.3}
    assert settings_of(**luspo, trust_region="luspo")["epsilon_low"] == 2e-3


def test_every_field_of_a_generation_config_is_known_to_change_what_is_sampled_or_not():
    known = {"temperature", *SAMPLES, *SAMPLES_ALIKE}
    found = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    assert found <= known, f"fields that nobody has looked at: {sorted(found - known)}"
    assert not set(SAMPLES) & SAMPLES_ALIKE


def test_what_leaves_the_distribution_as_it_is_may_be_said():
    said = {"do_sample": True, "top_k": 0, "typical_p": 1.0, "num_beams": 1, "suppress_tokens": None}
    config(generation_kwargs=said | {"temperature": 0.7, "stop_strings": ["x"]}, temperature=0.7)


def test_options_of_trls_losses_are_settings_of_the_rules_that_have_them():
    clip = settings_of(trust_region="clip", epsilon=0.1, epsilon_high=0.3, delta=4.0)
    assert clip == {"epsilon_low": 0.1, "epsilon_high": 0.3, "dual_clip": 4.0}
    cispo = settings_of(trust_region="cispo", loss_type="cispo", epsilon_high=2.0)
    assert cispo == {"ratio_max": 2.0}
    dcpo = settings_of(trust_region="dcpo", epsilon_high=0.3)
    assert (dcpo["epsilon_high"], dcpo["ratio_max"]) == (0.3, 10.0)
    for rule in ("icepop", "dppo-binary-tv", "bapo", "ripo"):  # their ratio_max is another thing
        with refused("epsilon_high=0.28", repr(rule)):
            config(trust_region=rule, epsilon_high=0.28)
    sapo = settings_of(trust_region="sapo", loss_type="sapo", sapo_temperature_pos=0.5)
    assert sapo["temperature_positive"] == 0.5
    vespo = settings_of(trust_region="vespo", loss_type="vespo", vespo_lambda_neg=0.5)
    assert (vespo["lambda_negative"], vespo["k_negative"]) == (0.5, 3.0)


def test_a_configuration_of_grpo_is_no_configuration_of_a_trust_region(tiny_base):
    with refused("args", "GRPOConfig", "troll.TrustRegionConfig"):
        TrustRegionTrainer(str(tiny_base), args=GRPOConfig(**CPU))


def test_without_any_reward_trl_says_so(tiny_base):
    with pytest.raises(ValueError, match="reward"):  # in TRL's words
        TrustRegionTrainer(str(tiny_base), args=config(output_dir=str(Path("unused"))))


def test_a_release_of_trl_that_lacks_a_part_is_named_with_the_part(monkeypatch):
    assert trl_parts.missing_parts() == []
    monkeypatch.delattr(GRPOTrainer, "_calculate_rewards")
    monkeypatch.setitem(trl_parts.ATTRIBUTES, RepeatSampler.__init__, ("repeat_count", "of_old"))
    with refused(
        "trl", "transformers", "GRPOTrainer._calculate_rewards, RepeatSampler.of_old", "'trl>=1.8,<2'"
    ):
        trl_parts.check_parts()


def test_options_that_trl_drops_are_read_with_a_default():
    kept = {name: value for name, value in vars(config(trust_region="clip")).items() if name not in DROPPED}
    assert resolve(SimpleNamespace(**kept)).rule.name == "clip"
