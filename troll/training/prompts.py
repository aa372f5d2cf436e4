"""Training prompts: problems in TRL's format, filtered by length, and where rollouts end."""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from troll.common.errors import UserError
from troll.common.progress import say
from troll.common.tokenizers import fix_date, with_fixed_date
from troll.tasks.prompts import as_chat, as_text, digest_of_ids, encode, end_ids, wants_chat
from troll.tasks.types import Problem, Task


def load_policy_tokenizer(path: Path) -> Any:
    """Loads the tokenizer of a saved model; pads on the left, with the end of text if it has no pad token."""
    from transformers import AutoTokenizer

    try:
        tokenizer = fix_date(without_place(AutoTokenizer.from_pretrained(path)))
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


def prepare_rollouts(trainer: Any, model: Any) -> None:
    """Makes rollouts of all engines begin and end as texts do in evaluation.

    Chat templates, also those of reward models, show a fixed date (`troll.common.tokenizers`). Responses end
    at the tokens that `troll.tasks.prompts.end_ids` names. TRL's are the same, but vLLM would read them from
    the files that it has loaded, which may differ from the trainer's tokenizer and model. Rejects
    ``generation_kwargs`` with other end tokens.
    """
    for tokenizer in (trainer.processing_class, *(trainer.reward_processing_classes or ())):
        fix_date(tokenizer)
    if trainer.chat_template is not None:  # TRL's own, for tools
        trainer.chat_template = with_fixed_date(trainer.chat_template)
    ends = end_ids(trainer.processing_class, model.generation_config)
    for name in ("eos_token_id", "stop_token_ids"):
        given = (trainer.args.generation_kwargs or {}).get(name)
        given = given if isinstance(given, list) else [given]
        if unknown := sorted({*given} - {*ends, None}):
            raise UserError(
                f"generation_kwargs: {name} contains {unknown}, at which responses do not end; they end at "
                f"{ends}: the tokenizer's eos_token and the model's generation_config.eos_token_id; leave "
                f"{name} out, and add further tokens to model.generation_config.eos_token_id"
            )
    end = trainer.processing_class.eos_token_id
    if not hasattr(trainer, "eos_token_ids") and set(ends) != {end} and not trainer.use_vllm:
        say(
            f"warning: trl {version('trl')} ends responses at token {end} alone, and not at all of {ends} as "
            "in evaluation; trl 1.14 does"
        )
    trainer.eos_token_ids = ends
    if trainer.use_vllm:
        engine = trainer.vllm_generation
        engine.generation_kwargs = {**engine.generation_kwargs, "stop_token_ids": ends}


def prompt_of(tokenizer: Any, problem: Problem) -> str | list[dict[str, str]]:
    """A problem's prompt in TRL's format: a chat if the tokenizer has a chat template, else the text.

    TRL renders chats as evaluation does; see `troll.tasks.prompts.template_arguments`.
    """
    return as_chat(problem) if wants_chat(tokenizer, "auto") else as_text(problem)


def read_problems(
    files: Mapping[str, tuple[Task, Path]],
    tokenizer: Any,
    limit: int | None,
    thinking: str = "off",
    *,
    cut: bool = False,
) -> tuple[dict[str, list[Problem]], dict[str, int], str]:
    """The problems of each file whose prompts have at most ``limit`` tokens, chat template included.

    With ``cut``, all problems: the trainer cuts their prompts. Also returns the numbers of problems omitted,
    ``overlong_<name of the file>``, or cut, ``cut_<name of the file>``, and a digest of the token ids of all
    prompts, omitted ones included.
    """
    kept, overlong, read = {}, {}, []
    for name, (task, path) in files.items():
        problems = task.load(path)
        ids = encode(tokenizer, problems, thinking=thinking)
        fits = [limit is None or len(one) <= limit for one in ids]
        read += [one[-limit:] for one in ids] if cut and limit is not None else ids
        kept[name] = [item for item, short in zip(problems, fits, strict=True) if cut or short]
        overlong[f"{'cut' if cut else 'overlong'}_{name}"] = fits.count(False)
        if not kept[name]:
            raise UserError(f"{path}: every prompt has more than {limit} tokens; raise max_prompt_tokens")
    if any(overlong.values()):
        counts = " and ".join(f"{count} {name.partition('_')[2]}" for name, count in overlong.items())
        what = "lose the start of their prompts, which" if cut else "omitted because their prompts"
        say(f"{counts} problems {what} have more than {limit} tokens")
    return kept, overlong, digest_of_ids(read)
