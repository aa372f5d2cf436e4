"""Whether models made from scratch can be built, and whether prompts and responses fit the context of any."""

from collections.abc import Iterator

from troll.experiment.experiment import Run
from troll.experiment.model_settings import ModelSettings
from troll.experiment.settings import Training

LEAST_VOCABULARY = 256 + 2
"""The bytes, the end and the padding of `troll.training.tokenizer`."""


def shape_problems(name: str, model: ModelSettings) -> Iterator[str]:
    """What transformers or the tokenizer would refuse of a model made from scratch.

    The width need not divide by the heads: heads have a width of their own.
    """
    if model.pretrained is not None:
        return
    if model.heads % model.key_value_heads:
        yield (
            f"models.{name}.heads: {model.heads} do not divide into groups for {model.key_value_heads} "
            "key_value_heads; make it a multiple"
        )
    if model.head_width % 2:
        yield f"models.{name}.head_width: {model.head_width} is odd; rotary positions need an even one"
    if model.vocabulary < LEAST_VOCABULARY:
        yield (
            f"models.{name}.vocabulary: {model.vocabulary} is too small; the tokenizer needs "
            f"{LEAST_VOCABULARY} entries for bytes, end and padding"
        )


def context_problems(run: Run, training: Training, context: int) -> Iterator[str]:
    """Prompts and responses of a run that are longer than its model's context: sampling would refuse them."""
    response, prompt = training.max_response_tokens, training.max_prompt_tokens
    if response >= context:
        yield (
            f"run {run.run_id}: max_response_tokens {response} leaves a prompt no room in the context of "
            f"{context} tokens of model {run.model}; shorten responses"
        )
    elif prompt is not None and prompt + response > context:
        yield (
            f"run {run.run_id}: max_prompt_tokens {prompt} and max_response_tokens {response} exceed the "
            f"context of {context} tokens of model {run.model}; shorten one of them"
        )
