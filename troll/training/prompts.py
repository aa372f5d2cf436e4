"""Training prompts: problems in TRL's format, filtered by length, and where rollouts end."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from troll.common.errors import UserError
from troll.common.progress import say
from troll.tasks.prompts import as_chat, encode, end_ids, wants_chat
from troll.tasks.types import Problem, Task

THINKING = {"enable_thinking": False}
"""Arguments that TRL passes to chat templates; training and evaluation thus render the same prompts."""


def load_policy_tokenizer(path: Path) -> Any:
    """Loads the tokenizer of a saved model; pads on the left, with the end of text if it has no pad token."""
    from transformers import AutoTokenizer

    try:
        tokenizer = without_place(AutoTokenizer.from_pretrained(path))
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path}: cannot load a tokenizer ({reason})") from None
    if tokenizer.eos_token is None:
        raise UserError(f"{path}: the tokenizer has no end-of-text token, so no response could end")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    return tokenizer


def without_place(tokenizer: Any) -> Any:
    """Resets the tokenizer's ``local_files_only``, which would be saved and change the digest."""
    if "local_files_only" in tokenizer.init_kwargs:
        tokenizer.init_kwargs["local_files_only"] = False
    return tokenizer


def end_rollouts(trainer: Any, model: Any) -> None:
    """Makes rollouts of all engines end at the tokens that end a text in evaluation.

    These are `troll.tasks.prompts.end_ids`. TRL's are the same, but vLLM would read them from the files that
    it has loaded, which may differ from the trainer's tokenizer and model. Rejects ``generation_kwargs`` with
    end tokens that evaluation does not use.
    """
    ends = end_ids(trainer.processing_class, model.generation_config)
    for name in ("eos_token_id", "stop_token_ids"):
        given = (trainer.args.generation_kwargs or {}).get(name)
        given = given if isinstance(given, list) else [given]
        if unknown := sorted({*given} - {*ends, None}):
            raise UserError(
                f"generation_kwargs: {name} contains {unknown}, which do not end a text in evaluation; add "
                "them to the model's generation_config.eos_token_id"
            )
    trainer.eos_token_ids = ends
    if trainer.use_vllm:
        engine = trainer.vllm_generation
        engine.generation_kwargs = {**engine.generation_kwargs, "stop_token_ids": ends}


def prompt_of(tokenizer: Any, text: str) -> str | list[dict[str, str]]:
    """A prompt in TRL's format: a chat if the tokenizer has a chat template, else the text.

    Chats are rendered as in evaluation, without thinking; see `THINKING` and `troll.tasks.prompts.encode`.
    """
    return as_chat(text) if wants_chat(tokenizer, "auto") else text


def completion_text(completion: str | Sequence[dict[str, str]]) -> str:
    """The text of a completion; TRL passes messages if the prompt is a chat."""
    return completion if isinstance(completion, str) else completion[0]["content"]


def within(problems: Sequence[Problem], tokenizer: Any, limit: int | None) -> list[Problem]:
    """The problems whose prompts have at most ``limit`` tokens, in order; all if ``limit`` is None."""
    if limit is None:
        return list(problems)
    lengths = map(len, encode(tokenizer, [problem.prompt for problem in problems]))
    return [item for item, length in zip(problems, lengths, strict=True) if length <= limit]


def read_problems(
    task: Task, data: Path, tokenizer: Any, limit: int | None
) -> tuple[list[Problem], list[Problem], dict[str, int]]:
    """Train and validation problems whose prompts have at most ``limit`` tokens, chat template included.

    Also returns the numbers of omitted problems, ``overlong_train`` and ``overlong_validation``.
    """
    kept, overlong = [], {}
    for split in ("train", "validation"):
        problems = task.load(data / f"{split}.jsonl")
        kept.append(within(problems, tokenizer, limit))
        overlong[f"overlong_{split}"] = len(problems) - len(kept[-1])
    if any(overlong.values()):
        counts = " and ".join(f"{count} {name[9:]}" for name, count in overlong.items())
        say(f"{data}: {counts} problems omitted because their prompts have more than {limit} tokens")
    return kept[0], kept[1], overlong
