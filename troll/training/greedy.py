"""The greedy response to every prompt, whose reward is the baseline of ReMax."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from trl.data_utils import is_conversational


def greedy_rewards(trainer: Any, inputs: list[dict[str, Any]]) -> Tensor:
    """Reward [B] of the greedy response to each row's prompt; each prompt is decoded once.

    Args:
        trainer: a `troll.training.trainer.TrustRegionTrainer` that samples through transformers; it reports
            the mean reward and counts the samples.
        inputs: rows of prompts, each repeated for every response of its group.
    """
    prompts = inputs[:: trainer.num_generations]
    texts = [item["prompt"] for item in prompts]
    prompt_ids, images, fields = trainer._tokenize_prompts(copy.deepcopy(texts))
    with _greedy(trainer):
        ids, _ = trainer._generate_single_turn(prompt_ids, images, fields, 1)
    responses: list[Any] = trainer.processing_class.batch_decode(ids, skip_special_tokens=True)
    if is_conversational(prompts[0]):
        responses = [[{"role": "assistant", "content": text}] for text in responses]
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
