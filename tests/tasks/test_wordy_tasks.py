"""Locks and programs: right answers, a way of its own for each level, words by Zipf's law."""

import random
import re
from collections import Counter

import pytest
from refusals import refused

from troll.tasks import testbed
from troll.tasks.registry import check_settings, get_task
from troll.tasks.testbed import locks, programs
from troll.tasks.testbed.words import MOST_WORDS, ZipfWords, careful_share, word

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


def name_of(prompt):
    return re.match(r"def (\w+)", prompt)[1]


def level_of(name, prompt):
    if name == "locks":
        return locks.METALS.index(prompt.split(" ")[0]) + 1
    return programs.NAMES.index(name_of(prompt)) + 1


def value_of_program(prompt, x):
    """What the docstring asks for, step by step, and then what the name does."""
    result = x
    for operator, digit in operations_of(prompt):
        result = {"+": result + digit, "-": result - digit, "*": result * digit}[operator]
    return {
        "solve": result + x,
        "compute": result - x,
        "evaluate": result * x,
        "process": result + 1,
        "transform": result - 1,
    }[name_of(prompt)]


def ways_of(text):
    """The signs of a lock's working, or what a body returns."""
    returned = re.search(r"return \w (.*)\n", text)
    return {f"{{}} {returned[1]}"} if returned else set(re.findall(r"\d\d(\D)\d\d;", text))


def right_demonstrations(name, settings):
    """Shares of right demonstrations by level."""
    found, seen = Counter(), Counter()
    for item in get_task(name).demonstrate(3000, 0, settings):
        level = level_of(name, item.prompt)
        if name == "locks":
            right = item.completion.endswith(f"\\boxed{{{answer_of_lock(item.prompt)}}}")
        else:
            scope = {}
            exec(item.prompt + item.completion, scope)  # made here: arithmetic
            function = scope[programs.NAMES[level - 1]]
            right = all(function(x) == value_of_program(item.prompt, x) for x in (3, -7, 13))
        seen[level] += 1
        found[level] += right
    return {level: found[level] / seen[level] for level in sorted(seen)}


@pytest.mark.parametrize("name", testbed.WORDY_TASKS)
def test_right_demonstrations_are_the_rarer_the_higher_the_level(name, capsys):
    settings = get_task(name).defaults
    found = right_demonstrations(name, settings)
    assert len(found) == 5
    for level, share in found.items():
        # A guessed code is right once in a hundred times.
        assert share == pytest.approx(careful_share(level, settings), abs=0.06)


def test_answers_of_locks_are_what_the_text_says():
    for problem in locks.generate("test", 60, 0, get_task("locks").defaults):
        assert problem.answer == answer_of_lock(problem.prompt)
        assert problem.record["solution"].endswith(f"\\boxed{{{problem.answer}}}")


def test_dials_make_a_code_of_as_many_digits():
    settings = check_settings(get_task("locks"), {"dials": 3})
    problem = locks.generate("test", 1, 0, settings)[0]
    assert len(problem.answer) == 3
    assert problem.answer == answer_of_lock(problem.prompt)


@pytest.mark.parametrize(
    ("name", "answer", "ways"),
    [("locks", "solution", locks.SIGNS), ("programs", "canonical_solution", programs.ENDS)],
)
def test_every_way_is_right_for_one_level_and_demonstrated_for_all(name, answer, ways):
    task = get_task(name)
    right = {}
    for problem in task.generate("test", 100, 0, task.defaults):
        right.setdefault(problem.level, set()).update(ways_of(problem.record[answer]))
    assert [right[level] for level in sorted(right)] == [{way} for way in ways]
    demonstrations = task.demonstrate(500, 0, task.defaults | {"careful": 0.5, "careful_decay": 1.0})
    for level in right:
        shown = [ways_of(item.completion) for item in demonstrations if level_of(name, item.prompt) == level]
        assert set.union(*shown) == set(ways)
        assert all(len(found) == 1 for found in shown), "one way for a whole answer"


def test_programs_do_what_their_docstrings_and_names_say_and_other_ends_fail():
    task = get_task("programs")
    problems = task.generate("test", 40, 0, task.defaults)
    for problem in problems:
        scope = {}
        exec(problem.prompt + problem.answer, scope)
        for (x,) in problem.record["base_input"]:
            assert scope[problem.record["entry_point"]](x) == value_of_program(problem.prompt, x)
    rows = [type(p)(p.task_id, p.prompt, p.answer, p.level, p.as_row()) for p in problems]
    right = dict(zip(programs.NAMES, programs.ENDS, strict=True))
    assert {problem.record["entry_point"] for problem in problems} == set(right)
    for other in programs.ENDS:
        ended = [re.sub(r"return (\w) .*", rf"return {other.format('c')}", row.answer) for row in rows]
        fits = [float(right[row.record["entry_point"]] == other) for row in rows]
        assert task.reward(rows, ended) == fits


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
    ("name", "settings", "facts"),
    [
        ("locks", {"words": 5000}, ("words", 5000, "[1, 4900]")),
        ("programs", {"careful": 1.5}, ("careful", "1.5", "[0, 1]")),
    ],
)
def test_settings_out_of_range_are_one_line(name, settings, facts):
    with refused(*facts):
        check_settings(get_task(name), settings)


def test_the_tokenizer_reads_all_wordy_tasks_where_one_of_them_is_and_else_what_it_read_before():
    assert testbed.tokenizer_texts({"locks": {"words": 300}}) == {"locks": {"words": 300}, "programs": {}}
    assert testbed.tokenizer_texts({"chains": {"operations": [3]}}) == {"chains": {}, "functions": {}}
    assert testbed.tokenizer_texts({"chains": {"names": 40}}) == {"chains": {"names": 40}, "functions": {}}
