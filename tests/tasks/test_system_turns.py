"""Data whose prompts are chats: the system turn, and whose instruction is in the prompt."""

import pytest
from refusals import refused

from troll.common.files import write_jsonl
from troll.tasks.datasets import convert, load
from troll.tasks.datasets.convert import INSTRUCTION
from troll.tasks.datasets.settings import applied
from troll.tasks.registry import get_task, write_problems
from troll.training.prompts import load_policy_tokenizer, prompt_of

BOX = "Present the answer as \\boxed{Your answer}."
SYSTEM = {"role": "system", "content": "You act in steps."}


def row(*turns, **others):
    return {"prompt": list(turns), "reward_model": {"ground_truth": "2"}, **others}


def user(text):
    return {"role": "user", "content": text}


CHATS = (convert.dapo, convert.eurus_math)


@pytest.mark.parametrize("reader", CHATS)
def test_the_system_turn_is_kept_and_no_instruction_doubled(reader):
    given = reader(row(SYSTEM, user(f"What is 1+1?\n\n{BOX}")), 0)
    assert (given.system, given.prompt) == ("You act in steps.", f"What is 1+1?\n\n{BOX}")
    assert given.as_row()["system"] == "You act in steps."
    in_system = reader(row({"role": "system", "content": BOX}, user("What is 1+1?")), 0)
    assert (in_system.system, in_system.prompt) == (BOX, "What is 1+1?")
    without = reader(row(SYSTEM, user("What is 1+1?")), 0)
    assert without.prompt == f"What is 1+1?\n\n{INSTRUCTION}", "no instruction of its own"
    alone = reader(row(user(f"What is 1+1? {BOX}")), 0)
    assert (alone.system, alone.prompt) == ("", f"What is 1+1? {BOX}")
    assert "system" not in alone.as_row()


def test_a_question_without_a_chat_gets_our_instruction_as_ever():
    plain = convert.dapo({"problem": "What does \\boxed{1} mean?", "answer": "1"}, 0)
    assert (plain.system, plain.prompt) == ("", f"What does \\boxed{{1}} mean?\n\n{INSTRUCTION}")
    with refused("user", "system"):
        convert.dapo(row(SYSTEM), 0)


@pytest.mark.parametrize("reader", CHATS)
def test_dropped_system_turns_leave_the_question_and_our_instruction(reader):
    given = reader(row(SYSTEM, user("What is 1+1? ")), 0)
    dropped = applied(given, {"system_turn": "drop"})
    assert (dropped.system, dropped.prompt) == ("", f"What is 1+1?\n\n{INSTRUCTION}")
    assert applied(given, {"system_turn": "require"}) == applied(given, {}) == given


def test_programs_keep_their_system_turn(tmp_path):
    truth = {"inputs": ["1\n"], "outputs": ["2\n"]}
    given = convert.eurus_code(row(SYSTEM, user("Add one."), reward_model={"ground_truth": truth}), 0)
    assert (given.system, given.prompt) == ("You act in steps.", "Add one.")
    assert applied(given, {"system_turn": "drop"}).prompt == "Add one."
    write_jsonl(tmp_path / "problems.jsonl", [given.as_row()])
    assert get_task("eurus-code").load(tmp_path / "problems.jsonl")[0].system == "You act in steps."


def test_training_shows_the_system_turn(tiny_base):
    tokenizer = load_policy_tokenizer(tiny_base)
    given = convert.eurus_math(row(SYSTEM, user(f"What is 1+1? {BOX}")), 0)
    assert prompt_of(tokenizer, given) == f"You act in steps.\n\nWhat is 1+1? {BOX}"
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    assert prompt_of(tokenizer, given) == [SYSTEM, user(f"What is 1+1? {BOX}")]


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    """Rows of DAPO as a rehearsal has them, the last without a system turn if asked."""
    monkeypatch.setenv(load.STAND_INS, str(tmp_path / "rows"))

    def write(missing):
        turns = [(SYSTEM, user("What is 1+1?"))] * 3 + [(user("What is 2+0?"),)] * missing
        rows = [row(*chat, index=str(number)) for number, chat in enumerate(turns)]
        write_jsonl(tmp_path / "rows" / "dapo" / "test.jsonl", rows)
        load._load.cache_clear()

    yield write
    load._load.cache_clear()


@pytest.mark.parametrize("size", ["all", 2])
def test_a_missing_system_turn_is_named_where_one_is_required(stand_ins, tmp_path, size):
    def problems(system_turn):
        settings = {"system_turn": system_turn}
        write_problems({"name": "dapo", "test": size, "settings": settings}, tmp_path / "out")

    stand_ins(missing=0)
    problems("require")
    stand_ins(missing=1)
    problems("keep")
    (tmp_path / "out" / "test.jsonl").unlink()
    with refused("tasks.dapo.settings.system_turn", "require", "problem 3", "keep"):
        problems("require")
    assert not (tmp_path / "out" / "test.jsonl").exists()
