"""What models are shown: raw prompts, or chats."""

import pytest
from refusals import refused
from transformers import AutoTokenizer

from troll.tasks.prompts import encode, is_program
from troll.tasks.types import Problem

# The parts of Qwen3's template that matter here: turns, and an empty thought where thinking is off.
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"
)


@pytest.fixture
def tokenizer(tiny_base):
    return AutoTokenizer.from_pretrained(tiny_base)


@pytest.fixture
def chatty(tokenizer):
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def shown(tokenizer, prompt, *arguments, **settings):
    return tokenizer.decode(encode(tokenizer, [prompt], *arguments, **settings)[0])


def test_a_tokenizer_without_a_template_gets_the_raw_prompt(tokenizer):
    prompt = "Start with 3.\n"
    assert encode(tokenizer, [prompt]) == [tokenizer(prompt).input_ids]
    with refused("chat", "on", "auto", "off"):
        encode(tokenizer, [prompt], "on")


def test_a_template_makes_a_chat_unless_told_otherwise(chatty):
    end = chatty.eos_token
    assert shown(chatty, "What is 2+2?") == f"<user>What is 2+2?{end}<assistant><think></think>"
    assert shown(chatty, "What is 2+2?", "on") == shown(chatty, "What is 2+2?")
    assert shown(chatty, "What is 2+2?", "off") == "What is 2+2?"
    # What the template writes are single tokens, not their spelling.
    assert encode(chatty, ["a"])[0].count(chatty.eos_token_id) == 1


def test_thinking_has_three_states(chatty):
    asked = f"<user>What is 2+2?{chatty.eos_token}<assistant>"
    assert shown(chatty, "What is 2+2?", thinking="off") == f"{asked}<think></think>"
    # The template alone decides if nothing is passed: this one lets the model think, the next one does not.
    assert shown(chatty, "What is 2+2?", thinking="template") == asked
    assert shown(chatty, "What is 2+2?", thinking="on") == asked
    chatty.chat_template = TEMPLATE.replace("enable_thinking is defined and not ", "not ")
    assert shown(chatty, "What is 2+2?", thinking="template") == f"{asked}<think></think>"
    assert shown(chatty, "What is 2+2?", thinking="on") == asked
    with refused("thinking", "'yes'", "off, on, template"):
        encode(chatty, ["a"], thinking="yes")


def test_a_system_turn_comes_first_in_a_chat_and_in_raw_text(tokenizer):
    problem, without = Problem("a", "What is 2+2?", "4", system="Think."), Problem("b", "And 3+3?", "6")
    raw = [tokenizer.decode(ids) for ids in encode(tokenizer, [problem, without])]
    assert raw == ["Think.\n\nWhat is 2+2?", "And 3+3?"]
    tokenizer.chat_template = TEMPLATE
    end = tokenizer.eos_token
    chats = [tokenizer.decode(ids) for ids in encode(tokenizer, [problem, without])]
    assert chats == [
        f"<system>Think.{end}<user>What is 2+2?{end}<assistant><think></think>",
        f"<user>And 3+3?{end}<assistant><think></think>",
    ]
    tokenizer.chat_template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + TEMPLATE
    )
    assert encode(tokenizer, [without])
    with refused("no system role", "system_turn", "drop"):
        encode(tokenizer, [without, problem])


def test_a_program_goes_into_a_fenced_block(chatty):
    prompt = 'def f(x):\n    """Twice x."""\n'
    text = shown(chatty, prompt)
    assert "whole program in one fenced block.\n\n```python\ndef f(x):" in text
    assert text.endswith('x."""\n```' + chatty.eos_token + "<assistant><think></think>")


@pytest.mark.parametrize(
    ("prompt", "program"),
    [
        ('def f(x):\n    """Twice x."""\n', True),
        ('import math\n\n\ndef f(x: int) -> int:\n    """Root."""\n', True),
        ('"""\nWrite a function to add.\nassert f(1) == 2\n"""\n', True),
        ("How many eggs are left?\n\nPlease reason step by step.", False),
        ("x", False),
        ("", False),
    ],
)
def test_programs_are_told_from_questions(prompt, program):
    assert is_program(prompt) is program


def test_an_unknown_mode_is_refused(tokenizer):
    with refused("chat", "'yes'", "auto, on, off"):
        encode(tokenizer, ["a"], "yes")
