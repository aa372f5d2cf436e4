"""The testbed's tokenizer: byte-level BPE, trained on the tasks' text."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from troll.common.errors import UserError
from troll.common.files import fresh_directory
from troll.common.numerics import last_change
from troll.common.progress import say
from troll.experiment.model_settings import LEAST_VOCABULARY
from troll.tasks.registry import check_settings, get_task
from troll.training.manifest import uncommitted_source, versions
from troll.training.model_cache import take_or_make
from troll.training.prompts import without_place

END, PAD = "<|endoftext|>", "<|pad|>"


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Trains a byte-level BPE tokenizer; each digit is a single token, as in Qwen's tokenizers.

    The vocabulary size includes special tokens. Rejects a size below 256 bytes plus two special tokens, and
    texts that yield fewer entries.
    """
    if vocabulary < LEAST_VOCABULARY:
        raise UserError(f"vocabulary {vocabulary} is too small; at least {LEAST_VOCABULARY} is needed")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    entries = tokenizer.get_vocab_size()
    if entries != vocabulary:
        raise UserError(
            f"the tasks' text gives {entries} vocabulary entries, not {vocabulary}; use at most {entries}"
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """Loads a tokenizer trained by `train_tokenizer` and written by ``save_pretrained``."""
    tokenizer: PreTrainedTokenizerFast = without_place(PreTrainedTokenizerFast.from_pretrained(path))
    return tokenizer


def make_tokenizer(
    tasks: Mapping[str, Mapping[str, Any]],
    vocabulary: int,
    demonstrations: int,
    out: Path,
    *,
    shared: bool = False,
) -> None:
    """Trains the tokenizer of an experiment's models on ``demonstrations`` of each task.

    If ``shared``, it is copied from the cache `troll.training.model_cache`, or added to it.
    """
    settings = {name: check_settings(get_task(name), tasks[name]) for name in sorted(tasks)}

    def make() -> dict[str, Any]:
        shown = [get_task(name).demonstrate(demonstrations, 0, given) for name, given in settings.items()]
        texts = (item.prompt + item.completion for items in shown for item in items)
        tokenizer = train_tokenizer(texts, vocabulary)
        with fresh_directory(out) as temporary:
            tokenizer.save_pretrained(temporary)
        return {}

    if not shared:
        make()
        return
    identity = {
        "tasks": settings,
        "vocabulary": vocabulary,
        "demonstrations": demonstrations,
        "numerics": last_change(""),
        "uncommitted_source": uncommitted_source(),
        "versions": versions(),
    }
    taken = take_or_make("tokenizer", identity, out, make)
    if taken is not None:
        say(f"[tokenizer] {out}: taken from {taken.path}")
