"""Rollouts that are some batches old: whose they are, what the ratio is taken to, and going on exactly."""

import pytest
import torch
from refusals import refused
from trainer_cases import logged, parameters
from transformers import TrainerCallback

from troll.training.policies import LOG_PROBS
from troll.training.policy_lag import FILE
from troll.training.trainer import TrustRegionTrainer

STEPS_PER_BATCH = 4


class Watched(TrustRegionTrainer):
    """Records the weights before each rollout batch, those that sample it, and what it is scored with."""

    def __init__(self, *arguments, **options):
        self.before, self.sampling, self.after, self.batches = [], [], [], []
        super().__init__(*arguments, **options)

    def _sample_now(self, inputs):
        if self.model.training:
            self.sampling.append(parameters(self).clone())
        return super()._sample_now(inputs)

    def _sample(self, inputs):
        self.before.append(parameters(self).clone())
        output = super()._sample(inputs)
        self.after.append(parameters(self).clone())
        self.batches.append(output)
        return output


def trained(make, steps=16, resume=None, kind=Watched, rule="clip", config=None, **options):
    trainer = make(
        kind, steps=steps, config={"learning_rate": 1e-2} | (config or {}), trust_region=rule, **options
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.mark.parametrize("anchor", ["old", "sampler"])
@pytest.mark.parametrize("lag", [1, 2])
def test_a_batch_is_sampled_by_the_policy_from_before_an_earlier_one(make, lag, anchor):
    trainer = trained(make, policy_lag=lag, trust_region_anchor=anchor)
    assert len(trainer.before) == 4
    for batch in range(4):
        assert torch.equal(trainer.sampling[batch], trainer.before[max(0, batch - lag)])
        assert torch.equal(trainer.after[batch], trainer.before[batch]), "the policy lost its own weights"
        if batch:
            assert not torch.equal(trainer.sampling[batch], trainer.before[batch])
    # The ratio at a batch's first step, before any update on it.
    first = logged(trainer, "log_ratio_abs")[::STEPS_PER_BATCH]
    moved = [abs(value) > 1e-4 for value in first]
    assert moved == ([False] * 4 if anchor == "old" else [False, True, True, True])
    differences = logged(trainer, "sampling/sampling_logp_difference/mean")
    if anchor == "sampler":
        assert not differences and "sampling_per_token_logps" not in trainer.batches[3]
        return
    assert differences[0] < 1e-5 and min(differences[1:]) > 1e-4 and len(differences) == 4
    last = trainer.batches[3]
    on = last["completion_mask"].bool()
    apart = (last[LOG_PROBS] - last["sampling_per_token_logps"])[on].abs().mean()
    assert apart.item() == pytest.approx(differences[3], rel=1e-4)


@pytest.mark.slow
def test_without_a_lag_both_anchors_are_the_policy_as_it_is(make):
    found = [parameters(trained(make, steps=8, trust_region_anchor=anchor)) for anchor in ("old", "sampler")]
    found.append(parameters(trained(make, steps=8)))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_one_step_per_batch_is_off_policy_with_a_lag(make):
    """There TRL scores no old policy, for it takes the sampler for the policy that learns."""
    config = {"per_device_train_batch_size": 16, "steps_per_generation": 1}
    trainer = trained(make, steps=3, config=config, policy_lag=1, trust_region_anchor="sampler")
    moved = [abs(value) > 1e-4 for value in logged(trainer, "log_ratio_abs")]
    assert moved == [False, True, True]


@pytest.mark.parametrize(
    ("rule", "anchor"), [("troll", "sampler"), pytest.param("clip-cov", "old", marks=pytest.mark.slow)]
)
def test_a_run_with_a_lag_goes_on_as_if_it_had_not_been_interrupted(make, tmp_path, rule, anchor):
    options = {"rule": rule, "policy_lag": 2, "trust_region_anchor": anchor, "kind": TrustRegionTrainer}
    if rule == "clip-cov":
        options["trust_region_settings"] = {"share": 0.1, "covariance_min": 0.0}
    saving = {"save_strategy": "steps", "save_steps": 12}
    whole = trained(make, config=saving, **options)
    checkpoint = tmp_path / "TrustRegionTrainer" / "checkpoint-12"
    assert (checkpoint / FILE).exists()
    resumed = trained(make, resume=str(checkpoint), **options)
    assert torch.equal(parameters(resumed), parameters(whole))
    assert logged(resumed, "ratio_mean")[-4:] == logged(whole, "ratio_mean")[-4:]
    (checkpoint / FILE).unlink()
    with refused(checkpoint / FILE):
        trained(make, resume=str(checkpoint), **options)


class Interrupt(TrainerCallback):
    """Ends training between two micro-batches of the first step, once."""

    def on_substep_end(self, *_, **__):
        if not self.done:
            self.done = True
            raise KeyboardInterrupt

    done = False


def test_a_run_after_one_that_was_interrupted_inside_a_step_is_as_the_first(make):
    ended = []
    for interrupted in (False, True):
        options = {"estimator": "gae", "critic": {}, "regulariser": {}, "aggregation": "token-mean"}
        config = {"gradient_accumulation_steps": 2, "entropy_coef": 0.01, "top_entropy_quantile": 0.5}
        trainer = make(TrustRegionTrainer, steps=2, config=config, trust_region="clip", **options)
        if interrupted:
            trainer.add_callback(Interrupt())
            with pytest.raises(KeyboardInterrupt):
                trainer.train()
        trainer.train()
        rows = [{k: v for k, v in row.items() if "time" not in k} for row in trainer.state.log_history[:-1]]
        ended.append((rows, parameters(trainer)))
    for one, other in zip(ended[0][0], ended[1][0], strict=True):
        assert {k: (one[k], other[k]) for k in one if one[k] != other[k]} == {}
    torch.testing.assert_close(ended[0][1], ended[1][1], rtol=0, atol=0)


def test_a_second_call_of_train_begins_with_the_weights_of_the_first(make):
    trainer = trained(make, steps=8, policy_lag=1)
    assert trainer.generated_samples == 8 * 4
    trainer.train()
    first, second = len(trainer.before) // 2, len(trainer.before)
    assert (first, second) == (2, 4)
    assert torch.equal(trainer.sampling[first], trainer.before[first])
    assert not torch.equal(trainer.before[first], trainer.before[0])
    assert torch.equal(trainer.sampling[first + 1], trainer.before[first])
    assert trainer.generated_samples == 8 * 4 and trainer.constraint_check.steps == 8
