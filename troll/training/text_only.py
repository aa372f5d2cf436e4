"""Trains the language model of a model of text and images, where the data set holds only text."""

from collections.abc import Iterable, Mapping
from typing import Any

from transformers import AutoProcessor, ProcessorMixin

from troll.common.errors import UserError

_COLUMNS = ("image", "images")


def as_text_model(model: Any, args: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The trainer's further arguments, with the tokenizer in place of a processor of images and text.

    As in TRL, the processor is loaded by the model's name if none is given.

    Raises:
        UserError: the first row of a data set holds images (for others see `check_text`), or the processor
            has no tokenizer.
    """
    processor = given.get("processing_class")
    if processor is None:
        name = model if isinstance(model, str) else model.config.name_or_path
        processor = AutoProcessor.from_pretrained(
            name,
            revision=(args.model_init_kwargs or {}).get("revision"),
            truncation_side="left",
            padding_side="left",
            trust_remote_code=args.trust_remote_code,
        )
    if not isinstance(processor, ProcessorMixin):
        return {**given, "processing_class": processor}
    kind, tokenizer = type(processor).__name__, getattr(processor, "tokenizer", None)
    for name in ("train_dataset", "eval_dataset"):
        data = given.get(name)
        sets = data if isinstance(data, Mapping) and not hasattr(data, "column_names") else {name: data}
        for one in sets.values():
            check_text(name, [] if one is None else [next(iter(one), {})])
    if tokenizer is None:
        raise UserError(
            f"processing_class is a {kind} without a tokenizer, but this trainer only supports text; pass "
            "a tokenizer: processing_class=AutoTokenizer.from_pretrained(...)"
        )
    return {**given, "processing_class": tokenizer}


def check_text(where: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Rejects rows of a data set with an image, in a column of its own or among the parts of the prompt."""
    if any(_has_image(row) for row in rows):
        raise UserError(f"{where}: holds images, but this trainer only supports text; leave them out")


def _has_image(row: Mapping[str, Any]) -> bool:
    prompt = row.get("prompt")
    turns = prompt if isinstance(prompt, list) else []
    parts = [turn.get("content") for turn in turns if isinstance(turn, Mapping)]
    kinds = {part.get("type") for content in parts if isinstance(content, list) for part in content}
    return any(row.get(name) for name in _COLUMNS) or "image" in kinds
