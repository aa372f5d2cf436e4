"""Rewards judge the text that evaluation judges, whatever TRL makes of a response."""

import pytest
from transformers import AutoTokenizer

from troll.common.files import read_json, write_jsonl
from troll.common.tokenizers import saved_tokenizer
from troll.evaluation.grading import grade
from troll.tasks.registry import get_task
from troll.tasks.responses import response_texts
from troll.tasks.types import Problem
from troll.training.run import judged_as, reward_function
from troll.training.trainer import TrustRegionTrainer

SAID = [
    ("<think>\\boxed{1}</think>\\boxed{6}", True),
    ("<think>\\boxed{6}</think>\\boxed{1}", False),
    ("<think>\\boxed{6}", False),  # a thought that never ends is no answer
    ("\\boxed{6}</s> \\boxed{1}", True),
    ("so \\boxed{6}", True),
]


@pytest.mark.parametrize("begun", [False, True])
def test_reward_and_evaluation_judge_one_text(tiny_base, tmp_path, begun):
    tokenizer = saved_tokenizer(tiny_base)
    tokenizer.chat_template = "{{ messages[0].content }}" + "<think>" * begun
    problem = Problem("chains/test/1", "Start with 1. Add 5.\n", "6", record={"answer": "6"})
    ids = [tokenizer(text, add_special_tokens=False).input_ids for text, _ in SAID]
    reward = reward_function(get_task("chains"), {problem.task_id: problem}, tokenizer)
    # What TRL passes beside the ids: a response template leaves of a response what it takes for its content.
    parsed = [[{"role": "assistant", "content": "\\boxed{6}"}]] * len(ids)
    rewards = reward(completions=parsed, completion_ids=ids, task_id=[problem.task_id] * len(ids))

    rows = [
        {"task_id": problem.task_id, "completion": text, **({"in_thought": True} if begun else {})}
        for text in response_texts(tokenizer, ids)
    ]
    write_jsonl(tmp_path / "problems.jsonl", [problem.as_row()])
    write_jsonl(tmp_path / "samples.jsonl", rows)
    grade("chains", tmp_path / "samples.jsonl", tmp_path / "problems.jsonl", tmp_path / "grades.json")
    graded = read_json(tmp_path / "grades.json")["problems"][problem.task_id]["passed"]
    expected = [right and not (begun and "</think>" not in text) for text, right in SAID]
    assert [bool(value) for value in rewards] == graded == expected


@pytest.mark.parametrize(("answers", "expected"), [("lenient", 1.0), ("boxed", 0.0), ("####", 0.0)])
def test_data_sets_to_validate_on_are_judged_as_leniently_as_the_task(tiny_base, answers, expected):
    tokenizer, suite = saved_tokenizer(tiny_base), get_task("math500")
    problem = Problem("math500/test/1", "How long is it?", "6", record={"answer": "6"})
    (asked,) = judged_as({"answers": answers}, suite, [problem])
    assert asked.prompt == problem.prompt
    reward = reward_function(suite, {problem.task_id: asked}, tokenizer)
    ids = [tokenizer("\\boxed{6\\%}", add_special_tokens=False).input_ids]
    assert reward(completion_ids=ids, task_id=[problem.task_id]) == [expected]


def test_a_data_set_with_answers_of_its_own_keeps_them():
    own = Problem("gsm8k/test/1", "?", "6", record={"answer": "6", "answers": "####"})
    assert judged_as({"answers": "lenient"}, get_task("gsm8k"), [own])[0].record["answers"] == "####"


def test_templates_of_reward_models_show_one_date(make, tiny_base):
    tokenizer = AutoTokenizer.from_pretrained(tiny_base)
    tokenizer.chat_template = "{{ strftime_now('%d %B %Y') }}"
    make(TrustRegionTrainer, trust_region="clip", reward_processing_classes=[tokenizer])
    assert tokenizer.apply_chat_template([{"role": "user", "content": "?"}], tokenize=False) == "26 July 2024"
