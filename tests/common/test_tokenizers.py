"""Chat templates that show a date: it is the same on every day, in every place that reads prompts."""

import json
from datetime import datetime

import pytest
import transformers.utils.chat_template_utils as templates
from transformers import AutoModelForCausalLM, AutoTokenizer

from troll.common.hub import Snapshot, link
from troll.common.tokenizers import DATE, fix_date, saved_tokenizer, with_fixed_date
from troll.evaluation.engines.transformers import load_engine
from troll.tasks.prompts import encode
from troll.training.outputs import save_model
from troll.training.prompts import load_policy_tokenizer

DATED = (
    "{%- macro system() %}{{- 'Today Date: ' + strftime_now('%d %B %Y') + '\\n' }}{%- endmacro -%}"
    "{%- if strftime_now is defined %}{{- system() }}{%- endif %}"
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


class OnAnotherDay(datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2031, 2, 3, 4, 5, 6)


def shown(tokenizer):
    turns = [{"role": "user", "content": "Hello"}]
    return tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)


@pytest.fixture
def dated(tiny_base, tmp_path):
    """A model whose template shows the date, as its makers publish it."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_base)
    tokenizer.chat_template = DATED
    AutoModelForCausalLM.from_pretrained(tiny_base).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_every_loader_shows_one_date(dated, monkeypatch):
    monkeypatch.setattr(templates, "datetime", OnAnotherDay)
    published = AutoTokenizer.from_pretrained(dated)
    assert "03 February 2031" in shown(published)
    expected = shown(published).replace("03 February 2031", "26 July 2024")
    engine = load_engine("transformers", dated, max_new_tokens=2, temperature=1.0, device="cpu")
    for tokenizer in (saved_tokenizer(dated), load_policy_tokenizer(dated), engine.tokenizer):
        assert shown(tokenizer) == expected
        assert tokenizer.decode(encode(tokenizer, ["Hello"])[0]) == expected


def test_the_date_is_saved_with_the_tokenizer_and_read_by_other_programs(dated, tmp_path, monkeypatch):
    monkeypatch.setattr(templates, "datetime", OnAnotherDay)
    save_model(
        AutoModelForCausalLM.from_pretrained(dated), AutoTokenizer.from_pretrained(dated), tmp_path / "a"
    )
    again = AutoTokenizer.from_pretrained(tmp_path / "a")
    assert "26 July 2024" in shown(again)
    assert fix_date(again).chat_template == with_fixed_date(DATED)  # not a second time


@pytest.mark.parametrize("place", ["chat_template.jinja", "tokenizer_config.json"])
def test_a_linked_model_shows_one_date_to_other_programs(dated, tmp_path, place):
    if place == "tokenizer_config.json":
        (dated / "chat_template.jinja").unlink()
        facts = json.loads((dated / place).read_text())
        (dated / place).write_text(json.dumps(facts | {"chat_template": DATED}))
    linked = tmp_path / "linked"
    linked.mkdir()
    link(Snapshot("a/b", {path.name: path for path in dated.iterdir()}, {}), linked)
    assert "26 July 2024" in shown(AutoTokenizer.from_pretrained(linked))
    assert (linked / "model.safetensors").is_symlink()


def test_all_formats_are_those_of_strftime(tiny_base):
    tokenizer = AutoTokenizer.from_pretrained(tiny_base)
    formats = "100%% %a %A %b %B %d %-d %m %y %Y %H:%M:%S %I %p %j %U %w %F %D %T %x %X %c"
    tokenizer.chat_template = f"{{{{ strftime_now('{formats}') }}}}"
    assert shown(fix_date(tokenizer)) == DATE.strftime(formats)


@pytest.mark.parametrize(
    "template", ["  {% if true %}a{% endif %}\n b", "\n\n c", "{%- set d = 1 %}\n{{ d }}", "{# e #}\nf\n"]
)
def test_nothing_else_of_a_prompt_changes(tiny_base, template):
    """Spaces and newlines at the start of a template depend on what stands before them."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_base)
    tokenizer.chat_template = template
    assert fix_date(tokenizer).chat_template == template  # nothing to fix
    tokenizer.chat_template = template + "{% if strftime_now is not defined %}{% endif %}"
    expected = shown(tokenizer)
    assert shown(fix_date(tokenizer)) == expected and "macro" in tokenizer.chat_template


def test_several_templates_are_all_fixed(tiny_base):
    tokenizer = AutoTokenizer.from_pretrained(tiny_base)
    tokenizer.chat_template = {"default": DATED, "plain": "{{ messages }}"}
    fixed = fix_date(tokenizer).chat_template
    assert fixed == {"default": with_fixed_date(DATED), "plain": "{{ messages }}"} != {"default": DATED}
