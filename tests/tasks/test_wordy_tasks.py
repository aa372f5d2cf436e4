"""Locks and programs: right answers, careful shares that fall with the level, words by Zipf's law."""

import random
import re
from collections import Counter

import pytest

from troll.common.errors import UserError
from troll.tasks import testbed
from troll.tasks.registry import check_settings, get_task
from troll.tasks.testbed import locks, programs
from troll.tasks.testbed.words import MOST_WORDS, ZipfWords, word

OPERATORS = {"add": "+", "plus": "+", "minus": "-", "less": "-", "times": "*", "by": "*"}


def answer_of_lock(prompt):
    """The code after all turns, read from the text with other code than the task's."""
    codes = re.findall(r"\d+", prompt)
    return "".join(str(sum(map(int, dial)) % 10) for dial in zip(*codes, strict=True))


def operations_of(prompt):
    """Operators and digits of the steps, read from the docstring."""
    return [
        (OPERATORS[verb], int(digit))
        for verb, digit in re.findall(r"(\w+) (\d)", prompt)
        if verb in OPERATORS
    ]


def value_of_program(prompt, x):
    """What the docstring asks for, step by step."""
    for operator, digit in operations_of(prompt):
        x = {"+": x + digit, "-": x - digit, "*": x * digit}[operator]
    return x


def right_demonstrations(name, settings):
    """Shares of right demonstrations by level."""
    found, seen = Counter(), Counter()
    for item in get_task(name).demonstrate(3000, 0, settings):
        if name == "locks":
            level = locks.METALS.index(item.prompt.split(" ")[0]) + 1
            right = item.completion.endswith(f"\\boxed{{{answer_of_lock(item.prompt)}}}")
        else:
            level = programs.NAMES.index(re.match(r"def (\w+)", item.prompt)[1]) + 1
            scope = {}
            exec(item.prompt + item.completion, scope)  # made here: arithmetic and a print at most
            function = scope[programs.NAMES[level - 1]]
            right = all(function(x) == value_of_program(item.prompt, x) for x in (3, -7, 13))
        seen[level] += 1
        found[level] += right
    return {level: found[level] / seen[level] for level in sorted(seen)}


@pytest.mark.parametrize("name", testbed.WORDY_TASKS)
def test_right_demonstrations_are_the_rarer_the_higher_the_level(name, capsys):
    settings = get_task(name).defaults
    module = {"locks": locks, "programs": programs}[name]
    found = right_demonstrations(name, settings)
    assert len(found) == 5
    for level, share in found.items():
        # A guessed code is right once in a hundred times.
        assert share == pytest.approx(module.careful_share(level, settings), abs=0.06)


def test_answers_of_locks_are_what_the_text_says():
    for problem in locks.generate("test", 60, 0, locks.DEFAULTS):
        assert problem.answer == answer_of_lock(problem.prompt)
        assert problem.record["solution"].endswith(f"\\boxed{{{problem.answer}}}")


def test_dials_make_a_code_of_as_many_digits():
    settings = check_settings(get_task("locks"), {"dials": 3})
    problem = locks.generate("test", 1, 0, settings)[0]
    assert len(problem.answer) == 3
    assert problem.answer == answer_of_lock(problem.prompt)


def test_programs_do_what_their_docstrings_say_and_hasty_ones_fail():
    task = get_task("programs")
    problems = task.generate("test", 40, 0, task.defaults)
    for problem in problems:
        scope = {}
        exec(problem.prompt + problem.answer, scope)
        for (x,) in problem.record["base_input"]:
            assert scope[problem.record["entry_point"]](x) == value_of_program(problem.prompt, x)
    rows = [type(p)(p.task_id, p.prompt, p.answer, p.level, p.as_row()) for p in problems]
    printing = [re.sub(r"return (\w+)", r"print(\1)", problem.answer) for problem in problems]
    generator = random.Random(0)
    words = ZipfWords(100, 1.0)
    slips = [
        programs._body(programs._with_slip(operations_of(problem.prompt), generator), words, generator)
        for problem in problems
    ]
    assert task.reward(rows, printing) == [0.0] * len(rows)
    assert task.reward(rows, slips) == [0.0] * len(rows)


def test_words_are_different_and_no_words_of_python():
    import builtins
    import keyword

    words = {word(number) for number in range(MOST_WORDS)}
    assert len(words) == MOST_WORDS
    assert not words & {*keyword.kwlist, *dir(builtins), *programs.NAMES}


def test_words_follow_zipfs_law():
    drawn = Counter(ZipfWords(50, 1.0).draw(random.Random(0), 60_000).split(" "))
    harmonic = sum(1 / rank for rank in range(1, 51))
    for rank in (1, 2, 5, 20):
        assert drawn[word(rank - 1)] / 60_000 == pytest.approx(1 / (rank * harmonic), rel=0.1)


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("locks", {"words": 5000}, r"words is 5000; it lies in \[1, 4900\]"),
        ("programs", {"careful": 1.5}, r"careful is 1.5; it lies in \[0, 1\]"),
    ],
)
def test_settings_out_of_range_are_one_line(name, settings, said):
    with pytest.raises(UserError, match=said):
        check_settings(get_task(name), settings)


def test_the_tokenizer_reads_all_wordy_tasks_where_one_of_them_is_and_else_what_it_read_before():
    assert testbed.tokenizer_texts({"locks": {"words": 300}}) == {"locks": {"words": 300}, "programs": {}}
    assert testbed.tokenizer_texts({"chains": {"operations": [3]}}) == {"chains": {}, "functions": {}}
    assert testbed.tokenizer_texts({"chains": {"names": 40}}) == {"chains": {"names": 40}, "functions": {}}
