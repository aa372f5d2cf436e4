"""Whether models made from scratch can be built."""

from collections.abc import Iterator

from troll.experiment.settings import ModelSettings

LEAST_VOCABULARY = 256 + 2
"""The tokenizer's bytes, end and padding: `troll.training.tokenizer`, which is slow to import."""


def shape_problems(name: str, model: ModelSettings) -> Iterator[str]:
    """What transformers or the tokenizer would refuse of a model made from scratch.

    The width need not divide by the heads: heads have a width of their own.

    Args:
        name: of the model.
        model: its settings; one of the hub has no problem here.
    """
    if model.hub is not None:
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
