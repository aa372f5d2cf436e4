"""Attributes that callbacks set on the trainer: they act as in TRL, or setting them raises."""

import ast
import inspect
import textwrap

import pytest
import torch
from refusals import refused
from trainer_cases import SeededGRPOTrainer, parameters
from transformers import TrainerCallback
from trl import GRPOTrainer

from troll.training.live_options import _CHECKS, IN_ARGS
from troll.training.trainer import TrustRegionTrainer

CLIP = {"trust_region": "clip"}
# Ratios leave the bounds, and the last values have time to act.
FAR = {
    "num_iterations": 4,
    "learning_rate": 1e-2,
    "steps_per_generation": 1,
    "per_device_train_batch_size": 8,
}


class Schedule(TrainerCallback):
    """Sets attributes of the trainer after the first step."""

    def __init__(self, values):
        self.values = values

    def on_step_end(self, args, state, control, **_):
        if state.global_step == 1:
            for name, value in self.values.items():
                setattr(args if name in IN_ARGS else self.trainer, name, value)


def trained(make, kind, config, values, **ours):
    trainer = make(kind, steps=4, config=FAR | config, **ours)
    schedule = Schedule(values)
    schedule.trainer = trainer
    trainer.add_callback(schedule)
    trainer.train()
    return parameters(trainer)


@pytest.mark.parametrize(
    ("config", "values"),
    [
        ({"beta": 1e-3}, {"beta": 2.0}),
        ({}, {"epsilon_low": 0.001, "epsilon_high": 0.002}),
        ({}, {"top_entropy_quantile": 0.3}),
        ({}, {"off_policy_mask_threshold": 1e-6}),
        ({"loss_type": "dr_grpo", "optim": "sgd", "learning_rate": 0.5}, {"max_completion_length": 1}),
        ({"entropy_coef": 1e-3}, {"entropy_coef": 0.5}),
        ({"loss_type": "sapo"}, {"sapo_temperature_neg": 10.0}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_what_a_callback_sets_acts_as_in_trl(make, config, values):
    rule = {} if config.get("loss_type") == "sapo" else CLIP
    theirs = trained(make, SeededGRPOTrainer, config, values)
    ours = trained(make, TrustRegionTrainer, config, values, **rule)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    assert (trained(make, TrustRegionTrainer, config, {}, **rule) - ours).abs().max() > 1e-3


def test_what_a_callback_sets_in_args_without_effect_is_refused(make):
    with refused("args.delta", 2.0, "'troll'", "kl_bound"):
        trained(make, TrustRegionTrainer, {}, {"delta": 2.0})


def test_entropy_options_in_args_act_beside_a_regulariser(make):
    trainer = make(TrustRegionTrainer, **CLIP, regulariser={}, config={"use_adaptive_entropy": True})
    trainer.args.entropy_coef_delta = 0.25
    trainer.entropy_bonus._adapt(-1.0)
    assert trainer.entropy_coef == 0.25


def test_the_length_penalty_follows_the_limit(make):
    trainer = make(TrustRegionTrainer, **CLIP, estimator="grpo", overlong={"buffer": 2})
    lengths = torch.tensor([3.0, 4.0, 5.0])
    assert trainer.signal.penalty(lengths).tolist() == [0, 0, 0]
    trainer.max_completion_length = 5
    assert trainer.signal.penalty(lengths).tolist() == [0, -0.5, -1]


def test_bounds_are_those_of_the_trust_region(make):
    settings = {"epsilon_low": 0.1, "epsilon_high": 0.3}
    trainer = make(TrustRegionTrainer, **CLIP, trust_region_settings=settings)
    assert (trainer.epsilon_low, trainer.epsilon_high) == (0.1, 0.3)
    trainer.epsilon_high *= 0.5
    assert trainer.trust_region.current_settings()["epsilon_high"] == trainer.epsilon_high == 0.15
    cispo = make(TrustRegionTrainer, config={"loss_type": "cispo", "epsilon_high": 5.0})
    cispo.epsilon_high = 4.0
    assert cispo.trust_region.current_settings() == {"ratio_max": 4.0}


@pytest.mark.parametrize(
    ("facts", "name", "value", "options"),
    [
        (("'troll'", "kl_bound"), "epsilon_high", 0.3, {}),
        (("'cispo'", "ratio_max"), "epsilon_low", 0.3, {"trust_region": "cispo"}),
        (("epsilon_high", "-1.0"), "epsilon_high", -1.0, CLIP),
        (("beta", 0), "beta", 0.1, CLIP),
        (("regulariser",), "beta", 0.1, {"regulariser": {"coefficient": 0.2}}),
        (("TrustRegionConfig",), "importance_sampling_level", "sequence", CLIP),
        (("TrustRegionConfig",), "loss_type", "cispo", CLIP),
        (("TrustRegionConfig",), "temperature", 0.5, CLIP),
        (("TrustRegionConfig",), "num_generations", 2, CLIP),
        (("entropy_coef", 0), "entropy_coef", 0.1, CLIP),
        (("'grpo'",), "scale_rewards", "none", {"estimator": "grpo"}),
    ],
)
def test_what_would_have_no_effect_is_refused(make, facts, name, value, options):
    trainer = make(TrustRegionTrainer, **options)
    before = getattr(trainer, name)
    with refused(name, value, *facts):
        setattr(trainer, name, value)
    assert getattr(trainer, name) == before
    setattr(trainer, name, before)


# What ours reads in every step as TRL's loss does; other assignments are checked, and passed on or refused.
READ = {
    *("max_completion_length", "off_policy_mask_threshold", "router_aux_loss_coef", "top_entropy_quantile"),
    *("args.entropy_coef_delta", "args.entropy_coef_max", "args.entropy_coef_min", "args.entropy_target"),
    "args.use_bias_correction_kl",
}
# What is no option: state, components, and what is asked of the distributed run or of the sampler.
STATE = {"accelerator", "args", "model", "current_gradient_accumulation_steps", "args.steps_per_generation"}
STATE |= {"use_vllm", "vllm_importance_sampling_correction", "use_liger_kernel", "num_generations"}


def attributes(function):
    """What a method reads of ``self`` and of ``self.args``, without methods and private parts."""
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "self.args"):
            name = ast.unparse(node).removeprefix("self.")
            if not node.attr.startswith("_") and not hasattr(GRPOTrainer, node.attr):
                yield name


def test_every_option_that_trls_loss_reads_is_read_passed_on_or_refused():
    named = set(attributes(GRPOTrainer._compute_loss))
    assert {"beta", "args.delta", "top_entropy_quantile"} <= named
    assert named - STATE <= READ | {*_CHECKS} | {f"args.{name}" for name in IN_ARGS}
