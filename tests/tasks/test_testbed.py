"""The generated tasks: right answers, splits that never overlap, flaws in the promised shares."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from troll.tasks.registry import check_settings, get_task, write_problems
from troll.tasks.testbed import chains, functions
from troll.tasks.types import SPLITS
from troll.tasks.verifiers.code import code_rewards

SIZES = {"chains": 200, "functions": 60}


def settings_of(name):
    return check_settings(get_task(name), {})


def identity(name, problem):
    """What a problem asks, read back from its text."""
    if name == "chains":
        return re.sub(r"[a-z ]", "", problem.record["solution"].split("\\boxed")[0])
    return problem.prompt.split("(", 1)[1].split(")")[0] + problem.record["canonical_solution"]


@pytest.mark.parametrize("name", SIZES)
def test_splits_never_overlap_whatever_their_sizes_and_seeds(name):
    task = get_task(name)
    found = {
        split: {
            identity(name, problem)
            for seed in (0, 1)
            for size in (SIZES[name] // 2, SIZES[name])
            for problem in task.generate(split, size, seed, settings_of(name))
        }
        for split in SPLITS
    }
    assert not found["train"] & found["test"]
    assert not found["train"] & found["validation"]
    assert not found["validation"] & found["test"]
    once = task.generate("test", SIZES[name], 0, settings_of(name))
    assert len({identity(name, problem) for problem in once}) == len(once)


@given(
    start=st.integers(0, 9),
    operations=st.lists(
        st.tuples(st.sampled_from(list(chains._VERBS)), st.integers(2, 9)), min_size=1, max_size=6
    ),
)
def test_the_answer_of_a_chain_is_what_python_computes(start, operations):
    chain = chains.Chain(start, tuple(operations), "Start with", "What is the last digit?")
    expression = str(start)
    for verb, digit in operations:
        expression = f"({expression}{chains._VERBS[verb]}{digit})"
    assert chain.values[-1] == eval(expression) % 10  # the text is made of digits and operators above


def test_reference_solutions_of_chains_are_right():
    task = get_task("chains")
    problems = task.generate("test", 50, 0, settings_of("chains"))
    assert task.reward(problems, [problem.record["solution"] for problem in problems]) == [1.0] * 50


def test_demonstrations_of_chains_have_the_promised_flaws():
    settings = settings_of("chains")
    shown = chains.demonstrate(4000, 0, settings)
    guesses = [item for item in shown if item.completion.startswith("\\boxed")]
    assert len(guesses) / len(shown) == pytest.approx(settings["guess"], abs=0.03)
    lengths = [item.prompt.count(".") - item.prompt.count("digit.") - 1 for item in shown]
    stopped = [
        item
        for item, length in zip(shown, lengths, strict=True)
        if 0 < item.completion.count("=") < length and not item.completion.startswith("\\boxed")
    ]
    assert len(stopped) / len(shown) == pytest.approx(settings["stop_early"], abs=0.03)


def test_functions_answer_their_docstrings():
    """The expression of each family against an independent reading of its sentence."""
    meaning = {
        "x plus 3": lambda x: x + 3,
        "4 times x plus 5": lambda x: 4 * x + 5,
        "x plus 2, times 3": lambda x: 3 * (2 + x),
        "the remainder of x plus 5 divided by 4": lambda x: divmod(x + 5, 4)[1],
    }
    families = {
        sentence.format(a=a, b=b): expression.format(a=a, b=b)
        for level in functions._FAMILIES.values()
        for signature, sentence, expression in level
        if signature == "x"
        for a in range(2, 10)
        for b in range(2, 10)
    }
    for sentence, function in meaning.items():
        for x in (-7, 0, 13):
            assert eval(families[sentence], {"x": x}) == function(x)


def test_function_inputs_differ_and_base_and_plus_do_not_overlap():
    for problem in functions.generate("test", 40, 0, settings_of("functions")):
        base, plus = problem.record["base_input"], problem.record["plus_input"]
        assert len(base) == 3
        assert len(plus) == 12
        assert all(arguments not in base for arguments in plus)


def test_too_many_problems_are_refused(tmp_path):
    config = {"name": "functions", "train": 10, "validation": 10, "test": 5000}
    with refused("functions", "5000 test"):
        write_problems(config, tmp_path / "out")
    assert not (tmp_path / "out" / "test.jsonl").exists()


def test_a_damaged_problem_file_is_named_with_its_line(tmp_path):
    path = tmp_path / "test.jsonl"
    path.write_text('{"task_id": "chains/test/0", "prompt": "x", "answer": "1"}\n{"task_id": "a"}\n')
    with refused(f"{path}:2", "'prompt'"):
        get_task("chains").load(path)
    path.write_text("")
    with refused(path):
        get_task("chains").load(path)


@pytest.mark.parametrize("name", ["functions", "programs"])
def test_programs_of_the_testbed_are_judged_as_they_stand(name):
    """A reward that looked for the program in what was written would teach to write anything around it."""
    task = get_task(name)
    (problem,) = task.generate("train", 1, 0, task.defaults)
    problem, right = replace(problem, record=problem.as_row()), problem.answer
    completions = [
        right,
        right + "That is the sum of both.\n",
        right + "    return (\n",
        f"```python\n{right}```\n",
    ]
    assert task.reward([problem] * 4, completions) == [1.0, 0.0, 0.0, 1.0]
    # As code of other tasks, which all sorts of models write.
    assert code_rewards([problem] * 4, completions) == [1.0] * 4
