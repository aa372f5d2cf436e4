"""Encodes prompts as tokens, raw or as chats, and finds where an answer ends."""

import ast
from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Any, Literal, get_args

from jinja2 import TemplateError
from pydantic import BeforeValidator

from troll.common.digests import digest_of_json
from troll.common.errors import UserError
from troll.tasks.types import Problem

Chat = Literal["auto", "on", "off"]
ThinkingMode = Literal["off", "on", "template"]


def _word(value: Any) -> Any:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


Thinking = Annotated[ThinkingMode, BeforeValidator(_word)]
"""A `ThinkingMode` as a setting; YAML reads a bare ``on`` or ``off`` as a truth value."""

_PROGRAM = (
    "Complete this Python program. Answer with the whole program in one fenced block.\n\n```python\n{}\n```"
)


def wants_chat(tokenizer: Any, chat: str) -> bool:
    """Tells whether prompts become chats: ``on``, ``off``, or ``auto`` (``on`` if there is a chat template).

    Base models such as Qwen3-Base have a template, too; use ``off`` for a model that was trained on raw
    prompts.
    """
    if chat not in get_args(Chat):
        raise UserError(f"sampling: chat is {chat!r}; valid: {', '.join(get_args(Chat))}")
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if chat == "on" and not has_template:
        raise UserError(
            "sampling: chat is on, but the model's tokenizer has no chat template; use auto or off"
        )
    return chat != "off" and has_template


def template_arguments(thinking: str) -> dict[str, bool]:
    """Returns the arguments of chat templates for a `ThinkingMode`.

    ``on`` and ``off`` are for templates that know ``enable_thinking`` (Qwen3). ``template`` passes none, as
    the paper's released configuration does: Qwen3's template then lets the model think. A thought is often
    longer than the 4,096 tokens that the paper allows a response.
    """
    if thinking not in get_args(ThinkingMode):
        raise UserError(f"sampling: thinking is {thinking!r}; valid: {', '.join(get_args(ThinkingMode))}")
    return {} if thinking == "template" else {"enable_thinking": thinking == "on"}


def encode(
    tokenizer: Any, prompts: Sequence[str | Problem], chat: str = "auto", *, thinking: str = "off"
) -> list[list[int]]:
    """Returns the token ids of each prompt, raw or as a chat (see `wants_chat` and `as_chat`).

    Raw, a system turn is the first paragraph of the prompt. For ``thinking`` see `template_arguments`.
    """
    arguments = template_arguments(thinking)
    if not wants_chat(tokenizer, chat):
        return [list(ids) for ids in tokenizer([as_text(prompt) for prompt in prompts]).input_ids]
    chats = [as_chat(prompt) for prompt in prompts]
    try:
        texts = [
            tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **arguments)
            for turns in chats
        ]
    except TemplateError as error:
        if all(len(turns) == 1 for turns in chats):
            raise
        raise UserError(
            f"the model's chat template takes no system turn, and the data has one ({error}); set "
            "tasks.<task>.settings.system_turn to drop, or use another model"
        ) from None
    # The template has already added the special tokens.
    return [list(ids) for ids in tokenizer(texts, add_special_tokens=False).input_ids]


def digest_of_ids(prompts: Iterable[Sequence[int]]) -> str:
    """Returns a digest of prompts as a model reads them: the SHA-256 of their token ids as JSON."""
    return digest_of_json([list(ids) for ids in prompts])


def as_chat(prompt: str | Problem) -> list[dict[str, str]]:
    """Returns a prompt as a user message, after the system message if its problem has one.

    A program to continue is wrapped in a request to complete it.
    """
    system, text = _parts(prompt)
    content = _PROGRAM.format(text.rstrip()) if is_program(text) else text
    before = [{"role": "system", "content": system}] if system else []
    return [*before, {"role": "user", "content": content}]


def as_text(prompt: str | Problem) -> str:
    """Returns a prompt as raw text, with a system turn as its first paragraph."""
    return "\n\n".join(filter(None, _parts(prompt)))


def _parts(prompt: str | Problem) -> tuple[str, str]:
    return ("", prompt) if isinstance(prompt, str) else (prompt.system, prompt.prompt)


def is_program(prompt: str) -> bool:
    """Tells whether a prompt is Python to continue: the head of a function, or a docstring as in MBPP."""
    try:
        body = ast.parse(prompt).body
    except (SyntaxError, ValueError):
        return False
    last = body[-1] if body else None
    docstring = isinstance(last, ast.Expr) and isinstance(last.value, ast.Constant)
    return isinstance(last, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or (
        docstring and prompt.lstrip().startswith(('"""', "'''"))
    )


def end_ids(tokenizer: Any, generation_config: Any) -> list[int]:
    """Returns the sorted ids of the tokens that end a text, for rollouts and evaluation on any engine.

    They are those of the tokenizer and of the model's ``generation_config``, where chat models name the end
    of a turn. Empty if neither has one: then only the length limit ends a text.
    """
    named = [tokenizer.eos_token_id, generation_config.eos_token_id]
    return sorted({end for item in named for end in (item if isinstance(item, list) else [item])} - {None})


def until_end(tokens: Sequence[int], ends: Collection[int]) -> list[int]:
    """Returns the tokens up to and including the first that ends the text."""
    last = next((place for place, token in enumerate(tokens) if token in ends), len(tokens))
    return list(tokens[: last + 1])
