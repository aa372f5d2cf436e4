"""The log has TRL's metrics, with TRL's values."""

import pytest
import torch
import trl
from datasets import Dataset
from packaging.version import Version
from trainer_cases import CLIP, PROMPTS, SeededGRPOTrainer, both, digits

from troll.common.seeding import derive_seed
from troll.training.config import TrustRegionConfig
from troll.training.trainer import TrustRegionTrainer

RATIOS = [f"clip_ratio/{name}" for name in ("low_mean", "low_min", "high_mean", "high_max", "region_mean")]


class SeededValidation(SeededGRPOTrainer):
    """TRL's trainer with our seeds in validation, too."""

    def _prepare_inputs(self, batch):
        if not self.model.training:
            number = self._step // (self.args.steps_per_generation * self.num_iterations)
            seed = derive_seed(stream="validation", batch=number, seed=self.args.seed, process=0)
            torch.manual_seed(seed % 2**63)
        return super()._prepare_inputs(batch)


def logged(trainer, name):
    return [row[name] for row in trainer.state.log_history if name in row]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"epsilon": 0.01, "epsilon_high": 0.02, "delta": 1.05}, RATIOS),
        ({"epsilon": 0.002, "importance_sampling_level": "sequence"}, RATIOS),
        ({"loss_type": "cispo", "epsilon_high": 1.02}, ["cispo_clip_ratio"]),
    ],
    ids=["tokens", "responses", "cispo"],
)
def test_clip_ratios_are_trls_in_training_and_validation(make, options, names):
    config = {"num_iterations": 4, "steps_per_generation": 1, "per_device_train_batch_size": 8, "beta": 0.1}
    config |= {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 4}
    rule = {} if "loss_type" in options else CLIP
    config |= options | {"learning_rate": 5e-3}
    data = Dataset.from_dict({"prompt": PROMPTS})
    theirs, ours = both(make, rule, theirs=SeededValidation, steps=4, config=config, eval_dataset=data)
    if Version(trl.__version__) < Version("1.9"):  # whose extremes are over processes
        names = [name for name in names if not name.endswith(("low_min", "high_max"))]
    for name in (*names, *(f"eval_{name}" for name in (*names, "entropy", "kl", "loss"))):
        assert logged(ours, name) == pytest.approx(logged(theirs, name), rel=1e-3, abs=1e-5), name
        assert logged(ours, name)
    assert max(max(logged(ours, name)) for name in names) > 0.01


def test_arguments_after_args_may_be_positional_as_in_trl(make, tiny_base):
    built = make(TrustRegionTrainer, trust_region="clip")
    args = TrustRegionConfig(built.args.output_dir, use_cpu=True, bf16=False, report_to="none")
    data = Dataset.from_dict({"prompt": PROMPTS})
    held_out = Dataset.from_dict({"prompt": PROMPTS[:1]})
    trainer = TrustRegionTrainer(built.model, digits, args, data, held_out, built.processing_class)
    assert len(trainer.train_dataset) == 4 and len(trainer.eval_dataset) == 1
    assert torch.equal(trainer.model.lm_head.weight, built.model.lm_head.weight)


def test_the_means_of_a_validation_are_over_responses(make):
    def reward(completions, value, log_metric, **_):
        log_metric("doubled", 2 * sum(value) / len(value))
        return [None if one < 0 else one for one in value]

    values = [0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 1.0]  # in batches of 4 and of 3, of which TRL takes the mean
    data = Dataset.from_dict({"prompt": [PROMPTS[0]] * 7, "value": values})
    config = {"per_device_eval_batch_size": 4, "num_generations_eval": 1}
    trainer = make(
        TrustRegionTrainer, config=config, reward=reward, eval_dataset=data, eval_loss=False, **CLIP
    )
    for _ in range(2):
        found = trainer.evaluate()
        assert found["eval_reward"] == pytest.approx(sum(values) / 7)
        assert found["eval_doubled"] == pytest.approx(2 * sum(values) / 7)
    of_none = Dataset.from_dict({"prompt": [PROMPTS[0]] * 5, "value": [0.25] * 4 + [-1.0]})
    assert trainer.evaluate(of_none)["eval_reward"] == pytest.approx(0.25)
