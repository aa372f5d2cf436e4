"""`TrustRegionTrainer` against TRL's own trainer, and against itself."""

import copy

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

from troll.algorithms.trust_regions import CertificateBreach, Thresholds
from troll.errors import UserError
from troll.seeding import derive_seed
from troll.training.tokenizer import load_tokenizer
from troll.training.trainer import TrustRegionTrainer

PROMPTS = ["Start with 3. Add 4.", "Begin with 5. Subtract 2. Add 3.", "Take the number 9.", "Start with 1."]


def digits(completions, **_):
    """A reward that varies within a group: the share of digits and full stops in the text."""
    return [sum(c in "0123456789." for c in text) / max(len(text), 1) for text in completions]


class SeededGRPOTrainer(GRPOTrainer):
    """TRL's trainer with our seeding of rollouts, and nothing else changed."""

    def _prepare_inputs(self, batch):
        if self.model.training and self._step % (self.args.steps_per_generation * self.num_iterations) == 0:
            every = self.args.steps_per_generation * self.num_iterations
            step = self.state.global_step * self.args.gradient_accumulation_steps // every
            seed = derive_seed(stream="rollout", batch=step, seed=self.args.seed, process=0)
            torch.manual_seed(seed % 2**63)
        return super()._prepare_inputs(batch)


@pytest.fixture
def make(tiny_base, tmp_path):
    """Builds a trainer of either kind on a fresh copy of the tiny model."""

    def build(kind, *, steps=4, config=None, **ours):
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
            digits,
            args=GRPOConfig(**arguments),
            train_dataset=Dataset.from_dict({"prompt": PROMPTS * 4}),
            processing_class=load_tokenizer(tiny_base),
            **ours,
        )

    return build


def parameters(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss_type", "rule", "trl_settings"),
    [
        ("grpo", {"trust_region": "clip"}, {}),
        ("dr_grpo", {"trust_region": "clip"}, {"scale_rewards": "none"}),
        (
            "grpo",
            {"trust_region": "clip", "trust_region_settings": {"epsilon_low": 0.1, "epsilon_high": 0.28}},
            {"epsilon": 0.1, "epsilon_high": 0.28},
        ),
        ("grpo", {"trust_region": "gspo-clip"}, {"importance_sampling_level": "sequence"}),
    ],
)
def test_twenty_steps_end_in_the_parameters_of_trl(make, loss_type, rule, trl_settings):
    settings = {"loss_type": loss_type} | trl_settings
    theirs = make(SeededGRPOTrainer, steps=20, config=settings)
    before = parameters(theirs).clone()
    theirs.train()
    # Both vocabularies are scored, but only the support travels: the clipped loss does not depend on it.
    ours = make(TrustRegionTrainer, steps=20, config=settings, **rule)
    ours.train()
    assert (parameters(theirs) - before).abs().max() > 1e-3
    torch.testing.assert_close(parameters(ours), parameters(theirs), rtol=0, atol=2e-5)


@pytest.mark.slow
def test_estimators_equal_trls_advantages(make):
    theirs = make(TrustRegionTrainer, trust_region="clip", config={"scale_rewards": "group"})
    ours = make(
        TrustRegionTrainer,
        trust_region="clip",
        estimator="grpo",
        estimator_settings={"epsilon": 1e-4},
        config={"scale_rewards": "group"},
    )
    for trainer in (theirs, ours):
        trainer.train()
    torch.testing.assert_close(parameters(ours), parameters(theirs), rtol=0, atol=2e-5)


@pytest.mark.slow
def test_micro_batches_do_not_change_the_update(make):
    whole = make(TrustRegionTrainer, trust_region="troll", aggregation="token-mean")
    parts = make(
        TrustRegionTrainer,
        trust_region="troll",
        aggregation="token-mean",
        config={
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "steps_per_generation": 8,
        },
    )
    for trainer in (whole, parts):
        trainer.train()
    torch.testing.assert_close(parameters(parts), parameters(whole), rtol=0, atol=2e-5)


@pytest.mark.slow
def test_the_sparse_support_approaches_the_dense_one(make):
    found = {}
    for keep in (4, 100, 400):
        trainer = make(TrustRegionTrainer, trust_region="troll", keep=keep, dropped_mass=0.0)
        trainer.train()
        found[keep] = parameters(trainer)
    near, far = ((found[keep] - found[400]).norm() for keep in (100, 4))
    assert near < far


def test_old_log_probs_and_distribution_are_those_of_the_policy(make, tiny_base):
    trainer = make(TrustRegionTrainer, keep=8, dropped_mass=0.0)
    model = copy.deepcopy(trainer.model)
    trainer.model.train()
    output = trainer._generate_and_score_completions(
        [{"prompt": prompt} for prompt in PROMPTS for _ in range(4)]
    )
    mask = output["completion_mask"].bool()
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
    attention = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=attention).logits[:, -mask.shape[1] - 1 : -1]
    log_probs = torch.log_softmax(logits.double(), dim=-1)
    sampled = log_probs.gather(-1, output["completion_ids"].unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(output["old_per_token_logps"][mask].double(), sampled[mask], rtol=0, atol=1e-5)
    kept = output["old_token_ids"][mask]
    expected = log_probs[mask].gather(-1, kept)
    torch.testing.assert_close(output["old_support_log_probs"][mask].double(), expected, rtol=0, atol=1e-5)
    assert (kept == output["completion_ids"][mask].unsqueeze(-1)).any(-1).all()
    total = output["old_support_log_probs"].exp().sum(-1) + output["old_tail_log_prob"].exp()
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_breach_of_the_certificate_stops_the_run(make):
    trainer = make(TrustRegionTrainer, trust_region="troll")
    trainer.certificate.thresholds = Thresholds(fraction_projected=-1.0)
    with pytest.raises(CertificateBreach, match="fraction_projected"):
        trainer.train()


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_the_run(make):
    trainer = make(TrustRegionTrainer, trust_region="clip")
    with torch.no_grad():
        next(trainer.model.parameters())[:] = float("inf")
    with pytest.raises((UserError, RuntimeError)):
        trainer.train()


def test_unknown_names_are_refused(make):
    with pytest.raises(UserError, match="clip"):
        make(TrustRegionTrainer, trust_region="clipp")
    with pytest.raises(UserError, match="grpo"):
        make(TrustRegionTrainer, estimator="gpro")


def test_options_without_meaning_here_are_refused(make):
    with pytest.raises(ValueError, match="top_entropy_quantile"):
        make(TrustRegionTrainer, config={"top_entropy_quantile": 0.5})
