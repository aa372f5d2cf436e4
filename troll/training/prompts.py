"""What a policy is trained on: problems in the form that TRL reads, within a length."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from troll.common.errors import UserError
from troll.common.progress import say
from troll.tasks.prompts import as_chat, encode, end_ids, wants_chat
from troll.tasks.types import Problem, Task

THINKING = {"enable_thinking": False}
"""What TRL hands to chat templates, so that training and evaluation read the same prompts."""


def load_policy_tokenizer(path: Path) -> Any:
    """The tokenizer beside a saved model, padding on the left, if need be with the end of text."""
    from transformers import AutoTokenizer

    try:
        tokenizer = without_place(AutoTokenizer.from_pretrained(path))
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path}: no tokenizer that can be loaded ({reason})") from None
    if tokenizer.eos_token is None:
        raise UserError(f"{path}: the tokenizer has no end of text, so that no response could end")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    return tokenizer


def without_place(tokenizer: Any) -> Any:
    """The tokenizer, which forgets that it was loaded offline: it would be saved, and change the digest."""
    if "local_files_only" in tokenizer.init_kwargs:
        tokenizer.init_kwargs["local_files_only"] = False
    return tokenizer


def end_rollouts(trainer: Any, model: Any) -> None:
    """Lets rollouts by every engine end where evaluation ends a text: see `troll.tasks.prompts.end_ids`.

    TRL's own ends are the same, but vLLM reads those that it is told of nowhere else from the files that it
    has loaded, and the trainer's tokenizer and model may be others. Refuses ``generation_kwargs`` with an end
    that evaluation would not know.
    """
    ends = end_ids(trainer.processing_class, model.generation_config)
    for name in ("eos_token_id", "stop_token_ids"):
        given = (trainer.args.generation_kwargs or {}).get(name)
        given = given if isinstance(given, list) else [given]
        if others := sorted({*given} - {*ends, None}):
            raise UserError(
                f"generation_kwargs: {name} names {others}, at which evaluation would not end a text; name "
                "them in the model's generation_config.eos_token_id"
            )
    trainer.eos_token_ids = ends
    if trainer.use_vllm:
        engine = trainer.vllm_generation
        engine.generation_kwargs = {**engine.generation_kwargs, "stop_token_ids": ends}


def prompt_of(tokenizer: Any, text: str) -> str | list[dict[str, str]]:
    """A prompt in the form that TRL reads: a chat where the tokenizer has a template for one, else the text.

    Chats are rendered as in evaluation, without thinking: see `THINKING` and `troll.tasks.prompts.encode`.
    """
    return as_chat(text) if wants_chat(tokenizer, "auto") else text


def completion_text(completion: str | Sequence[dict[str, str]]) -> str:
    """The text of a completion, which TRL gives as messages where the prompt is a chat."""
    return completion if isinstance(completion, str) else completion[0]["content"]


def within(problems: Sequence[Problem], tokenizer: Any, limit: int | None) -> list[Problem]:
    """The problems whose prompts have at most ``limit`` tokens, in their order; all without a limit."""
    if limit is None:
        return list(problems)
    lengths = map(len, encode(tokenizer, [problem.prompt for problem in problems]))
    return [item for item, length in zip(problems, lengths, strict=True) if length <= limit]


def read_problems(
    task: Task, data: Path, tokenizer: Any, limit: int | None
) -> tuple[list[Problem], list[Problem], dict[str, int]]:
    """Train and validation problems, without prompts of more than ``limit`` tokens, chat template included.

    And how many of each are left out for their length: ``overlong_train``, ``overlong_validation``.
    """
    found, overlong = [], {}
    for split in ("train", "validation"):
        problems = task.load(data / f"{split}.jsonl")
        found.append(within(problems, tokenizer, limit))
        overlong[f"overlong_{split}"] = len(problems) - len(found[-1])
    if any(overlong.values()):
        counts = " and ".join(f"{count} {name[9:]}" for name, count in overlong.items())
        say(f"{data}: {counts} problems left out, their prompts have more than {limit} tokens")
    return found[0], found[1], overlong
