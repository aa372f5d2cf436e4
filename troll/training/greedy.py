"""The greedy response to every prompt, whose reward is the baseline of ReMax."""

import copy
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from troll.common.errors import UserError


def check_greedy(trainer: Any) -> None:
    """Refuses rollouts that cannot be repeated greedily.

    Raises:
        UserError: responses are not the trainer's own, or come from an environment with a state.
    """
    for name in ("rollout_func", "environment_factories"):
        if getattr(trainer, name, None) is not None:
            option = "environment_factory" if name == "environment_factories" else name
            raise UserError(
                f"estimator 'remax' needs a greedy response to every prompt, which {option} does not give; "
                "leave it out or choose another estimator, such as 'rloo'"
            )


def greedy_rewards(trainer: Any, inputs: list[dict[str, Any]]) -> Tensor:
    """Reward [B] of the greedy response to each row's prompt; each prompt is decoded once.

    Args:
        trainer: a `troll.training.trainer.TrustRegionTrainer` that samples through transformers; it reports
            the mean reward and counts the samples.
        inputs: rows of prompts, each repeated for every response of its group.
    """
    prompts = inputs[:: trainer.num_generations]
    texts = [item["prompt"] for item in prompts]
    with _greedy(trainer), _unseen(trainer):
        _, ids, _, responses, *_ = trainer._generate(texts)
        trainer._calculate_rewards(prompts, texts, responses, ids)
    rewards: Tensor = trainer.total_rewards(len(prompts))
    trainer._report("greedy_success", rewards.mean())
    trainer.generated_samples += len(prompts) * trainer.accelerator.num_processes
    rewards = rewards + trainer.signal.penalty(rewards.new_tensor([len(response) for response in ids]))
    return rewards.repeat_interleave(trainer.num_generations)


@contextmanager
def _greedy(trainer: Any) -> Iterator[None]:
    sampling = trainer.generation_config
    trainer.generation_config = copy.deepcopy(sampling)
    # The other values are transformers' own: they mean nothing in a greedy decode.
    trainer.generation_config.update(do_sample=False, temperature=1.0, top_p=1.0, top_k=50, min_p=None)
    try:
        yield
    finally:
        trainer.generation_config = sampling


@contextmanager
def _unseen(trainer: Any) -> Iterator[None]:
    """What is measured of responses, by TRL or by rewards, is that of the samples alone."""
    names = ("_metrics", "_pending_metrics", "_pending_extra_logs")
    kept = {name: getattr(trainer, name) for name in names}
    tokens = trainer.state.num_input_tokens_seen
    trainer._metrics = {mode: defaultdict(list) for mode in kept["_metrics"]}
    trainer._pending_metrics, trainer._pending_extra_logs = defaultdict(list), defaultdict(list)
    try:
        yield
    finally:
        trainer.state.num_input_tokens_seen = tokens
        for name, value in kept.items():
            setattr(trainer, name, value)
