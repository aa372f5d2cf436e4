"""`TrustRegionTrainer` against TRL's own trainer, and against itself."""

import copy
import json

import pytest
import torch
from accelerate import Accelerator
from datasets import Dataset
from refusals import refused
from trainer_cases import PROMPTS, digits, parameters, response_logits, trained
from transformers import AutoModelForCausalLM, ProcessorMixin

from troll.algorithms.trust_regions import ConstraintBreach, Thresholds
from troll.common.errors import UserError
from troll.experiment.settings import Critic
from troll.training.batches import RESPONSE_WEIGHTS
from troll.training.config import TrustRegionConfig
from troll.training.diagnostics import Diagnostics
from troll.training.tokenizer import load_tokenizer
from troll.training.trainer import TrustRegionTrainer


@pytest.mark.slow
def test_estimators_equal_trls_advantages(make):
    options = {"trust_region": "clip", "config": {"scale_rewards": "group"}}
    theirs = trained(make, **options)
    ours = trained(make, **options, estimator="grpo", estimator_settings={"epsilon": 1e-4})
    torch.testing.assert_close(parameters(ours), parameters(theirs), rtol=0, atol=2e-5)


def critic_of(trainer):
    """The parameters of the critic; empty if there is none."""
    critic = trainer.critic and trainer.accelerator.unwrap_model(trainer.critic.model)
    return [p.detach().flatten() for p in critic.parameters()] if critic else []


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        {"trust_region": "troll"},
        {"trust_region": "clip", "estimator": "gae", "critic": Critic(learning_rate=1e-3)},
    ],
    ids=["troll", "ppo"],
)
def test_micro_batches_do_not_change_the_update(make, method):
    """Optimiser steps of one size, cut differently."""
    cut = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "steps_per_generation": 8}
    whole, parts = (trained(make, aggregation="token-mean", config=x, **method) for x in ({}, cut))
    torch.testing.assert_close(parameters(parts), parameters(whole), rtol=0, atol=2e-5)
    torch.testing.assert_close(critic_of(parts), critic_of(whole), rtol=0, atol=2e-5)


@pytest.mark.slow
def test_the_released_aggregation_weighs_the_responses_of_a_step(make):
    class Uneven(TrustRegionTrainer):
        def _generate_single_turn(self, *args, **kwargs):
            responses, *rest = super()._generate_single_turn(*args, **kwargs)
            return [ids[: 2 + 2 * (row % 4)] for row, ids in enumerate(responses)], *rest

    class Weighed(Uneven):
        def _part_loss(self, model, inputs, share):
            tokens, step = inputs["completion_mask"].sum(1), self.state.global_step
            seen = [*zip(tokens.tolist(), inputs[RESPONSE_WEIGHTS].tolist(), strict=True)]
            self.seen = getattr(self, "seen", {})
            self.seen[step] = [*self.seen.get(step, []), *seen]
            return super()._part_loss(model, inputs, share)

    options = {"trust_region": "troll", "config": {"optim": "sgd", "learning_rate": 0.1}}
    whole = trained(make, Weighed, aggregation="released", **options)
    mean = trained(make, Uneven, aggregation="token-mean", **options)
    # One micro-batch: its token mean.
    torch.testing.assert_close(parameters(whole), parameters(mean), rtol=0, atol=2e-5)
    parts = trained(make, Weighed, aggregation="released", micro_batch_tokens=30, **options)
    for step in parts.seen.values():
        assert len(step) == 4 and sum(tokens * weight for tokens, weight in step) == pytest.approx(1)
    assert any(len({weight for _, weight in step}) > 1 for step in parts.seen.values())
    assert (parameters(parts) - parameters(mean)).abs().max() > 1e-4


@pytest.mark.slow
def test_long_prompts_lose_their_first_tokens(make):
    class Kept(TrustRegionTrainer):
        def _part_loss(self, model, inputs, share):
            self.seen = [
                ids[mask.bool()].tolist()
                for ids, mask in zip(inputs["prompt_ids"], inputs["prompt_mask"], strict=True)
            ]
            return super()._part_loss(model, inputs, share)

    found = {}
    for longest in (None, 6):
        found[longest] = trained(make, Kept, steps=1, trust_region="clip", max_prompt_tokens=longest).seen
    assert max(map(len, found[None])) > 6 and found[6] == [ids[-6:] for ids in found[None]]


class CountedPasses(TrustRegionTrainer):
    """Keeps the number of tokens, padding included, of every pass that learns."""

    def _part_loss(self, model, inputs, share):
        tokens = inputs["prompt_ids"].shape[1] + inputs["completion_ids"].shape[1]
        self.passes = [*getattr(self, "passes", []), len(inputs["prompt_ids"]) * tokens]
        return super()._part_loss(model, inputs, share)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        {"trust_region": "troll", "aggregation": "token-mean"},
        {"trust_region": "troll", "tail": "constant", "aggregation": "seq-mean-token-mean"},
        {"trust_region": "troll-seq"},
        {"trust_region": "quatro-recon-gradient", "estimator": "grpo"},
        {"trust_region": "clip", "estimator": "gae", "critic": Critic(learning_rate=1e-3, warmup_steps=1)},
    ],
    ids=["pooled", "constant", "sequences", "groups", "critic"],
)
@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_token_budget_does_not_change_the_update(make, method, accumulated):
    config = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": accumulated,
        "steps_per_generation": 2 * accumulated,
        # Adam would turn a gradient that is only rounding into a full step.
        "optim": "sgd",
        "learning_rate": 0.1,
    }
    found = []
    for budget in (None, 45):
        trainer = trained(make, CountedPasses, config=config, micro_batch_tokens=budget, **method)
        rows = [row for row in trainer.state.log_history if "loss" in row]
        found.append((parameters(trainer), critic_of(trainer), rows, trainer.passes))
    (whole, values, said, passes), (cut, cut_values, cut_said, cut_passes) = found
    torch.testing.assert_close(cut, whole, rtol=0, atol=2e-5)
    torch.testing.assert_close(cut_values, values, rtol=0, atol=2e-5)
    assert len(cut_passes) > len(passes) and max(cut_passes) <= 45 < max(passes)
    for row, cut_row in zip(said, cut_said, strict=True):
        for name in row.keys() & {"loss", "entropy", "kl_to_old", "grad_norm", "critic/loss"}:
            assert cut_row[name] == pytest.approx(row[name], rel=1e-3, abs=2e-5), name


class CountedSteps(TrustRegionTrainer):
    """Keeps the masks and normalisers of every part that is learnt from, by optimiser step."""

    def _part_loss(self, model, inputs, share):
        self.steps = getattr(self, "steps", {})
        self.steps.setdefault(self.state.global_step, []).append(inputs)
        return super()._part_loss(model, inputs, share)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [4, 8], ids=["whole epochs", "epochs with a rest"])
@pytest.mark.parametrize(
    ("accumulated", "per_generation"), [(1, 2), (2, 2), (2, 3), (3, 2), (4, 2), (4, 3), (4, 6), (5, 2)]
)
def test_normalisers_are_those_of_the_step_however_it_meets_rollout_batches(
    make, accumulated, per_generation, rows
):
    config = {
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": accumulated,
        "steps_per_generation": per_generation,
        "num_iterations": 1 + (per_generation == 2),
        "mask_truncated_completions": True,
    }
    trainer = make(CountedSteps, steps=5, config=config, trust_region="m2po", aggregation="token-mean")
    numbers, sample = [], trainer._sample_now
    trainer._sample_now = lambda inputs: numbers.append(trainer.rollout_batch) or sample(inputs)
    trainer.train()
    assert numbers == list(range(len(numbers))), "a seed of rollouts was skipped or taken twice"
    for parts in trainer.steps.values():
        masks = [part["completion_mask"] for part in parts]
        lengths = torch.cat([mask.sum(1) for mask in masks])
        for part in parts:
            assert part["step_tokens"] == lengths.sum()
            assert part["step_sequences"] == (lengths > 0).sum()
            assert part["step_responses"] == len(lengths)
        seen = parts[0].get("rule_step_tokens")
        assert seen is None if len(parts) == 1 else len(seen.log_probs) == lengths.sum()
    assert {len(parts) for parts in trainer.steps.values()} >= {accumulated}


class Cut(TrustRegionTrainer):
    """Responses of the first rollout batch never end."""

    def _generate_single_turn(self, prompt_ids, *rest, **named):
        if self.rollout_batch:
            end = self.processing_class.eos_token_id
            return [[9 + i % 7, 11, end] for i in range(len(prompt_ids))], None
        return [[9, 10, 11, 12 + i % 5] for i in range(len(prompt_ids))], None


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        {"trust_region": "troll-adaptive", "trust_region_settings": {"follow": "kl"}},
        {"trust_region": "kl-stop", "estimator": "reinforce++"},
        {"trust_region": "clip", "estimator": "gae", "critic": {}},
        {"trust_region": "clip", "regulariser": {"target": 0.1, "horizon": 16}},
    ],
    ids=["bound", "stop", "critic", "regulariser"],
)
def test_a_step_whose_tokens_are_all_masked_tells_and_spoils_nothing(make, tmp_path, method):
    def constant(completions, **_):
        return [float(i % 2) for i in range(len(completions))]

    config = {
        "mask_truncated_completions": True,
        "steps_per_generation": 1,
        "logging_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
        "use_adaptive_entropy": True,
        "entropy_coef": 0.01,
        "entropy_target": 0.1,
        "entropy_coef_delta": 0.001,
    }
    one = make(Cut, steps=1, config=config, reward=constant, **method)
    before = one.method_state()
    one.train()
    assert one.entropy_coef == 0.01 and one._last_world_entropy == float("inf")
    for part in ("trust_region", "controller"):
        assert one.method_state().get(part) == before.get(part), part
    assert one.constraint_check.summary()["steps"] == 0

    trained(make, Cut, steps=2, config=config, reward=constant, **method)

    def no_json(name):
        raise AssertionError(f"{name} is no JSON")

    state = (tmp_path / "Cut" / "checkpoint-2" / "trainer_state.json").read_text()
    (row,) = [row for row in json.loads(state, parse_constant=no_json)["log_history"] if "loss" in row]
    # The window's means are those of its second step, whose ratio is 1 and whose policy is not certain.
    assert row["ratio_max"] == pytest.approx(1.0) and row["ratio_mean"] == pytest.approx(1.0)
    assert row["entropy"] > 4.0


def test_what_overflows_is_a_number_that_json_knows():
    diagnostics = Diagnostics(Accelerator(cpu=True))
    ratio = torch.tensor([[torch.inf, 1.0, -torch.inf]])
    diagnostics.add({"ratio": ratio, "kept_mass": ratio}, torch.tensor([[1, 1, 0]]))
    found = diagnostics.summary()
    largest = torch.finfo(torch.float32).max
    assert found == {"ratio_mean": largest, "ratio_max": largest, "kept_mass": largest, "kept_mass_min": 1.0}
    diagnostics.add({"ratio": ratio}, torch.zeros(1, 3))
    assert diagnostics.summary() == {} == diagnostics.summary()


@pytest.mark.slow
def test_the_sparse_support_approaches_the_dense_one(make):
    # A ball that tokens leave: without projections the supports differ in their rounding alone.
    tight = {"trust_region_settings": {"kl_bound": 1e-4}}
    found = {}
    for keep in (4, 100, 400):
        trainer = trained(make, trust_region="troll", keep=keep, dropped_mass=0.0, **tight)
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
    log_probs = response_logits(model, output).double().log_softmax(-1)
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
    trainer.constraint_check.thresholds = Thresholds(fraction_projected=-1.0)
    with refused("fraction_projected", error=ConstraintBreach):
        trainer.train()


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_the_run(make):
    trainer = make(TrustRegionTrainer, trust_region="clip")
    with torch.no_grad():
        next(trainer.model.parameters())[:] = float("inf")
    with pytest.raises((UserError, RuntimeError)):
        trainer.train()


@pytest.mark.slow
def test_a_response_that_nothing_scores_is_refused_where_trl_alone_knows_it(make):
    def reward(completions, **_):
        return [None, *[float(len(text) % 2) for text in completions[1:]]]

    make(TrustRegionTrainer, steps=1, reward=reward, trust_region="clip").train()
    named = make(TrustRegionTrainer, steps=1, reward=reward, trust_region="clip", estimator="grpo")
    with refused("reward", "None"):
        named.train()


class Pictures(ProcessorMixin):
    """Of a tokenizer alone, as the real ones need torchvision."""

    def __init__(self, tokenizer):
        super().__init__(tokenizer)


@pytest.mark.parametrize(
    "prompts",
    [
        {"prompt": PROMPTS, "image": [[0]] * len(PROMPTS)},
        {"prompt": [[{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}]] * 4},
    ],
    ids=["column", "part"],
)
def test_images_are_refused(tiny_base, tmp_path, prompts):
    model, processor = AutoModelForCausalLM.from_pretrained(tiny_base), Pictures(load_tokenizer(tiny_base))
    args = TrustRegionConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none")
    data = {"train_dataset": Dataset.from_dict(prompts)}
    with refused("train_dataset", "images"):
        TrustRegionTrainer(model, digits, args, processing_class=processor, **data)


def test_images_of_later_rows_are_refused_too(make):
    trainer = make(TrustRegionTrainer, trust_region="clip")
    rows = [{"prompt": text} for text in PROMPTS[:3]] + [{"prompt": PROMPTS[3], "image": [[0]]}]
    with refused("data set", "images"):
        trainer._sample_now(rows)


def test_a_processor_of_images_is_read_as_its_tokenizer_where_there_is_only_text(tiny_base, tmp_path):
    ended = []
    for kind in (Pictures, lambda tokenizer: tokenizer):
        model = AutoModelForCausalLM.from_pretrained(tiny_base, dtype=torch.float32)
        model.config.image_token_id = 5  # with a processor, TRL never samples it
        args = TrustRegionConfig(
            str(tmp_path), use_cpu=True, bf16=False, report_to="none", max_steps=2, learning_rate=1e-3
        )
        args.max_completion_length, args.save_strategy = 8, "no"
        trainer = TrustRegionTrainer(
            model,
            digits,
            args,
            processing_class=kind(load_tokenizer(tiny_base)),
            train_dataset=Dataset.from_dict({"prompt": PROMPTS * 4}),
        )
        trainer.train()
        ended.append(parameters(trainer))
    torch.testing.assert_close(ended[0], ended[1], rtol=0, atol=0)


class UnderDeepSpeed(TrustRegionTrainer):
    """As if accelerate had been started with DeepSpeed."""

    def create_accelerator_and_postprocess(self):
        super().create_accelerator_and_postprocess()
        self.is_deepspeed_enabled = True


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"micro_batch_tokens": 60}, "micro_batch_tokens"),
        ({"estimator": "gae", "critic": {}}, "critic"),
        ({"trust_region": "kl-stop"}, "'kl-stop'"),
    ],
)
def test_what_deepspeed_would_get_wrong_is_refused(make, options, named):
    make(UnderDeepSpeed, trust_region="clip")
    with refused(named, "DeepSpeed"):
        make(UnderDeepSpeed, **{"trust_region": "troll", **options})
