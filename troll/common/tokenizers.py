"""Loads tokenizers whose chat templates show a fixed date instead of today's.

Templates of Llama 3.2, gpt-oss, SmolLM3 and others write the date into every prompt with `strftime_now`, a
function of transformers. The same checkpoint and seed would give other samples on another day. A macro of
that name in front of a template hides the function; it is saved with the tokenizer, so other programs that
load the model see the same date.
"""

from datetime import datetime
from pathlib import Path
from typing import Any

from troll.common.models import loading_error

DATE = datetime(2024, 7, 26)
"""The date that templates show: the one that Llama 3.2's template falls back to."""

_CLOCK, _MACRO = "strftime_now", "macro strftime_now("
_LETTERS = "aAbBcdDeFgGHIjmMpSTuUVwWxXyYZ"
_DIRECTIVES = (*(f"%-{letter}" for letter in "dmyHIMSj"), *(f"%{letter}" for letter in _LETTERS))
_TABLE = [*([directive, DATE.strftime(directive)] for directive in _DIRECTIVES), ["%%", "%"]]
# One newline follows, because transformers drops the first newline after a block.
_FIXED = (
    f"{{%- {_MACRO}format) -%}}{{%- set date = namespace(text=format) -%}}"
    f"{{%- for directive, shown in {_TABLE!r} -%}}"
    "{%- set date.text = date.text.replace(directive, shown) -%}{%- endfor -%}"
    "{{- date.text -}}{%- endmacro %}\n"
)


def with_fixed_date(template: str) -> str:
    """Returns a chat template that shows `DATE` as today's date; templates without a date are unchanged."""
    return template if _CLOCK not in template or _MACRO in template else _FIXED + template


def fix_date(tokenizer: Any) -> Any:
    """Makes a tokenizer's chat templates show `DATE`, in place; returns the tokenizer."""
    templates = getattr(tokenizer, "chat_template", None)
    if isinstance(templates, str):
        tokenizer.chat_template = with_fixed_date(templates)
    elif isinstance(templates, dict):  # several, by name
        tokenizer.chat_template = {name: with_fixed_date(text) for name, text in templates.items()}
    return tokenizer


def saved_tokenizer(checkpoint: Path, **options: Any) -> Any:
    """Loads the tokenizer of a saved model, with a fixed date; `UserError` if that fails."""
    from transformers import AutoTokenizer

    try:
        return fix_date(AutoTokenizer.from_pretrained(checkpoint, **options))
    except Exception as error:  # several libraries raise their own classes
        raise loading_error(checkpoint, error) from None
