"""Extracts the judged text of a response, which has no special tokens and no thoughts.

Rewards, evaluation and the public scorers read a response through this module, so that they judge the same
text.
"""

import re
from collections.abc import Sequence
from typing import Any

from troll.tasks.prompts import as_chat, template_arguments, wants_chat

# End markers as the tokenizers of public models spell them; evalplus' decoders cut at two of them, too. In
# gpt-oss' format, an end marker before another message of the assistant ends a thought, not the response.
_END = re.compile(
    r"<\|(?:endoftext|im_end|eot_id|eom_id|end_of_text|return)\|>|<\|end\|>(?!<\|start\|>assistant)"
    "|<end_of_turn>|<｜end▁of▁sentence｜>|</s>"
)
# How public models mark their thoughts. gpt-oss has channels, of which only `final` is the answer.
_OPEN = (
    "<think>",
    "<thought>",
    "<seed:think>",
    "[THINK]",
    "<|START_THINKING|>",
    "<|inner_prefix|>",
    "◁think▷",
    "<|channel>thought",
    "<|channel|>analysis<|message|>",
)
_CLOSE = (
    "</think>",
    "</thought>",
    "</seed:think>",
    "[/THINK]",
    "<|END_THINKING|>",
    "<|inner_suffix|>",
    "◁/think▷",
    "<channel|>",
    "<|channel|>final<|message|>",
)
# To a tool, or a preamble: neither is the answer.
_COMMENTARY = r"<\|channel\|>commentary[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>"
_MARK = re.compile("|".join([*map(re.escape, (*_OPEN, *_CLOSE)), _COMMENTARY]))


def without_thoughts(text: str, *, in_thought: bool = False) -> str:
    """Returns a response without its thoughts; a response without marks of thoughts is unchanged.

    A thought that does not end reaches to the end of the response: what is in it does not count as an answer,
    so a response that is nothing but an unfinished thought is judged as empty, which is wrong. What precedes
    the end of a thought whose beginning is not marked is thought, too.

    Args:
        in_thought: whether the prompt has already begun a thought, see `begins_thought`.
    """
    if not in_thought and _MARK.search(text) is None:
        return text
    kept: list[str] = []
    inside, place = in_thought, 0
    for mark in _MARK.finditer(text):
        if mark[0] in _CLOSE:
            kept = kept if inside else []
            inside = False
        elif not inside:
            kept.append(text[place : mark.start()])
            inside = True
        place = mark.end()
    if not inside:
        kept.append(text[place:])
    return "".join(kept).strip()


def response_texts(tokenizer: Any, responses: Sequence[Sequence[int]]) -> list[str]:
    """Decodes token ids of responses, without special tokens except those that mark thoughts."""
    texts = _decoded(tokenizer, responses, skip_special_tokens=True)
    special = [token for token in tokenizer.all_special_tokens if token]
    if not any(_part_of_mark(token) for token in special):
        return texts
    pattern = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))))
    whole = _decoded(tokenizer, responses, skip_special_tokens=False)
    return [
        _outside_marks(pattern, long) if _MARK.search(long) else short
        for short, long in zip(texts, whole, strict=True)
    ]


def judged_text(text: str, prompt: str = "", *, in_thought: bool = False) -> str:
    """Returns what is judged of a response: the text before its end, without thoughts.

    It ends at an end marker that is written out, such as `</s>`: some servers return special tokens as text.
    A marker that the prompt contains is ignored, since it may be part of the answer. For ``in_thought`` see
    `without_thoughts`.
    """
    found = next((match for match in _END.finditer(text) if match[0] not in prompt), None)
    return without_thoughts(text if found is None else text[: found.start()], in_thought=in_thought)


def begins_thought(tokenizer: Any, chat: str = "auto", *, thinking: str = "off") -> bool:
    """Tells whether the chat template ends a prompt within a thought, as DeepSeek-R1's does.

    For ``thinking`` see `troll.tasks.prompts.template_arguments`.
    """
    if not wants_chat(tokenizer, chat):
        return False
    shown = tokenizer.apply_chat_template(
        as_chat("?"), tokenize=False, add_generation_prompt=True, **template_arguments(thinking)
    )
    marks = _MARK.findall(shown)
    return bool(marks) and marks[-1] not in _CLOSE


def _decoded(tokenizer: Any, responses: Sequence[Sequence[int]], *, skip_special_tokens: bool) -> list[str]:
    texts: list[str] = tokenizer.batch_decode(
        responses, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
    )
    return texts


def _part_of_mark(token: str) -> bool:
    return any(token in mark for mark in (*_OPEN, *_CLOSE))


def _outside_marks(special: re.Pattern[str], text: str) -> str:
    """Returns the text without special tokens, except in marks of thoughts."""
    pieces, place = [], 0
    for mark in _MARK.finditer(text):
        pieces += [special.sub("", text[place : mark.start()]), mark[0]]
        place = mark.end()
    return "".join([*pieces, special.sub("", text[place:])])
