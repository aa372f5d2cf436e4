"""What of a response is judged."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from troll.tasks.responses import begins_thought, judged_text, response_texts, without_thoughts

HARMONY = ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|constrain|>"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so \\boxed{3}", "so \\boxed{3}"),
        ("  no thought: as it is\n", "  no thought: as it is\n"),
        ("<think>Question: \\boxed{1}</think>\n\n\\boxed{2}", "\\boxed{2}"),
        ("maybe \\boxed{1}</think>\\boxed{2}", "\\boxed{2}"),  # the prompt began the thought
        ("<think>not sure, \\boxed{1}", ""),  # it never ended: no answer
        ("\\boxed{1} <think>or \\boxed{2}", "\\boxed{1}"),
        ("a <think>b</think> c <think>d</think> e", "a  c  e"),
        ("<think>a <think> b</think> c", "c"),
        ("<think>I write </think> in it</think>\\boxed{4}", "\\boxed{4}"),
        ("[THINK]1[/THINK]2", "2"),
        ("<|channel|>analysis<|message|>1 assistant<|channel|>final<|message|>2", "2"),
        ("<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}", ""),
        ("<|channel|>analysis<|message|>\\boxed{1}", ""),
    ],
)
def test_thoughts_are_cut(text, answer):
    assert without_thoughts(text) == answer


def test_a_thought_that_the_prompt_began_must_end():
    assert without_thoughts("so \\boxed{1}", in_thought=True) == ""
    assert without_thoughts("so \\boxed{1}</think>\\boxed{2}", in_thought=True) == "\\boxed{2}"


def test_the_end_comes_before_the_thought():
    assert judged_text("<think>a</think>b<|im_end|>\n<|im_start|>user <think>") == "b"
    assert judged_text("x</s>y", "what is </s>?") == "x</s>y"


@pytest.fixture(scope="module")
def harmony():
    """A tokenizer with gpt-oss' special tokens, which mark thoughts and are not part of texts."""
    words = [*HARMONY, "<pad>", *(chr(code) for code in range(32, 127))]
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, "<pad>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(HARMONY)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|return|>",
        pad_token="<pad>",
        extra_special_tokens=HARMONY,
    )


def test_marks_that_are_special_tokens_are_read(harmony):
    said = "<|channel|>analysis<|message|>1?<|end|><|start|>assistant<|channel|>final<|message|>2<|return|>"
    open_ended = "<|channel|>analysis<|message|>1?"
    ids = [harmony(text, add_special_tokens=False).input_ids for text in (said, open_ended, "3<|return|>")]
    assert "2" in harmony.decode(ids[0], skip_special_tokens=True)
    texts = response_texts(harmony, ids)
    assert texts[2] == "3"
    assert [judged_text(text) for text in texts] == ["2", "", "3"]


def test_a_template_may_begin_a_thought(tiny_base):
    tokenizer = AutoTokenizer.from_pretrained(tiny_base)
    assert not begins_thought(tokenizer)
    tokenizer.chat_template = (
        "{{ messages[0].content }}{% if not enable_thinking %}<think></think>{% endif %}"
    )
    assert not begins_thought(tokenizer)
    tokenizer.chat_template = "{{ messages[0].content }}{% if enable_thinking %}<think>{% endif %}"
    thoughts = [begins_thought(tokenizer, thinking=mode) for mode in ("off", "on", "template")]
    assert thoughts == [False, True, False]
    tokenizer.chat_template = "{{ messages[0].content }}<think>\n"
    assert begins_thought(tokenizer) and not begins_thought(tokenizer, "off")
