"""What tests of the trainer share: prompts, a reward that varies, TRL's trainer with our seeds."""

import dataclasses

import torch
from trl import GRPOConfig, GRPOTrainer

from troll.common.seeding import derive_seed
from troll.training.config import TrustRegionConfig
from troll.training.trainer import TrustRegionTrainer

PROMPTS = ["Start with 3. Add 4.", "Begin with 5. Subtract 2. Add 3.", "Take the number 9.", "Start with 1."]


def digits(completions, **_):
    """A reward that varies within a group: the share of digits and full stops in the text."""
    return [sum(c in "0123456789." for c in text) / max(len(text), 1) for text in completions]


def completion_text(completion):
    """The text of a completion; TRL passes messages if the prompt is a chat."""
    return completion if isinstance(completion, str) else completion[0]["content"]


class SeededGRPOTrainer(GRPOTrainer):
    """TRL's trainer with our seeding of rollouts, and nothing else changed."""

    def _prepare_inputs(self, batch):
        every = self.args.steps_per_generation * self.num_iterations
        if self.model.training and self._step % every == 0:
            seed = derive_seed(stream="rollout", batch=self._step // every, seed=self.args.seed, process=0)
            torch.manual_seed(seed % 2**63)
        return super()._prepare_inputs(batch)


def configured(kind, model, reward, arguments, ours, **rest):
    """A trainer of either kind; of ``ours``, options go to our configuration and the rest to the trainer."""
    if not issubclass(kind, TrustRegionTrainer):
        return kind(model, reward, args=GRPOConfig(**arguments), **rest, **ours)
    names = {field.name for field in dataclasses.fields(TrustRegionConfig)}
    options = {name: value for name, value in ours.items() if name in names}
    others = {name: value for name, value in ours.items() if name not in names}
    return kind(model, reward, args=TrustRegionConfig(**arguments | options), **rest, **others)


def parameters(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
