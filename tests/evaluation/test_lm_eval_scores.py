"""lm-eval scores recorded samples: its own verdicts beside ours, its own files, and nothing that hangs it."""

import argparse
import importlib
import inspect
import math
import random
import statistics
import sys
from pathlib import Path

import pandas as pd
import pytest
from refusals import check_facts, refused

from troll.common.files import read_json, read_jsonl, write_json, write_jsonl
from troll.evaluation.grading import grade
from troll.evaluation.lm_eval.builtin import scorers, task_root, write_builtin_tasks
from troll.evaluation.lm_eval.replay import replay
from troll.evaluation.lm_eval.scores import Score, scores
from troll.tasks.datasets.catalogue import DATA_SETS
from troll.tasks.datasets.load import load
from troll.tasks.datasets.task import worked_solution
from troll.tasks.sandbox.pool import sandbox_available

lm_eval = pytest.importorskip("lm_eval", reason="lm_eval is not installed: pip install 'troll[evaluate]'")
needs_programs = pytest.mark.skipif(
    not sandbox_available()[0] or importlib.util.find_spec("evalplus") is None,
    reason=f"no evalplus, or no sandbox: {sandbox_available()[1]}",
)
FLEXIBLE, STRICT = "exact_match,flexible-extract", "exact_match,strict-match"


@pytest.fixture(autouse=True)
def no_hub(monkeypatch):
    """Nothing here may load a data set by its name."""
    import datasets

    def refuse(path, *_, **__):
        assert path == "json", f"asked for {path}"
        return original(path, *_, **__)

    original = datasets.load_dataset
    monkeypatch.setattr(datasets, "load_dataset", refuse)


def graded(tmp_path, task, completions):
    """Grades samples of the first problems of a set, given by number of the problem."""
    problems = load(task).problems
    rows = [
        {"task_id": problems[number].task_id, "completion": text}
        for number, texts in enumerate(completions)
        for text in texts
    ]
    write_jsonl(tmp_path / "run/samples.jsonl", rows)
    grade(task, tmp_path / "run/samples.jsonl", None, tmp_path / "grades.json", only_present=True)
    return read_json(tmp_path / "grades.json"), [problem.task_id for problem in problems]


def test_lm_evals_verdict_stands_beside_ours_and_each_difference_is_listed(real_data, tmp_path):
    right = [problem.answer for problem in load("gsm8k").problems[:3]]
    boxed, unboxed = f"\\boxed{{{right[0]}}}", f"The answer is {right[1]}."
    last_number = f"\\boxed{{{right[2]}}}, for each of the 7."
    result, names = graded(
        tmp_path, "gsm8k", [[boxed, "\\boxed{-5}"], [unboxed] * 2, [last_number, "no idea"]]
    )
    rows = result["problems"]
    assert [rows[name]["passed"] for name in names[:3]] == [[True, False], [False, False], [True, False]]
    assert [rows[name]["official"] for name in names[:3]] == [[True, False], [True, True], [False, False]]
    assert result["metrics"] == {
        "pass@1": pytest.approx(1 / 3),
        "pass@2": pytest.approx(2 / 3),
        "official/pass@1": pytest.approx(0.5),
        "official/pass@2": pytest.approx(2 / 3),
        "disagreements": 3,
    }
    listed = read_jsonl(tmp_path / "disagreements.jsonl")
    assert [(row["task_id"], row["samples"], row["completion"]) for row in listed] == [
        (names[1], [0, 1], unboxed),
        (names[2], [0], last_number),
    ]
    assert [(row["lm_eval"]["passed"], row["troll"]["passed"]) for row in listed] == [
        (True, False),
        (False, True),
    ]
    assert [row["answer"] for row in listed] == right[1:3]
    assert listed[0]["prompt"] == load("gsm8k").problems[1].prompt
    assert result["official"]["tasks"] == ["gsm8k"] and result["official"]["metric"] == FLEXIBLE
    assert result["official"]["version"] == result["versions"]["lm_eval"] == lm_eval.__version__


def test_what_gsm8k_demonstrates_is_right_for_lm_eval_and_for_us(real_data, tmp_path):
    shown = [worked_solution(problem) for problem in load("gsm8k").problems[:100]]
    result, _ = graded(tmp_path, "gsm8k", [[text] for text in shown])
    assert result["metrics"] == {"pass@1": 1.0, "official/pass@1": 1.0, "disagreements": 0}


def test_what_stands_in_a_thought_cuts_nothing_and_is_no_answer(real_data, tmp_path):
    """lm-eval's gsm8k ends an answer at `Question:`, which models write when they think."""
    right = [problem.answer for problem in load("gsm8k").problems[:2]]
    wondering = f"<think>Question: is it 1?</think>\n\n\\boxed{{{right[0]}}}"
    unfinished = f"<think>It must be \\boxed{{{right[1]}}}"
    result, names = graded(tmp_path, "gsm8k", [[wondering], [unfinished]])
    for name, expected in zip(names, (True, False), strict=False):
        row = result["problems"][name]
        assert (row["passed"], row["official"]) == ([expected], [expected])


def test_the_files_are_those_that_lm_evals_own_tools_read(real_data, tmp_path):
    import datasets
    from lm_eval.utils import get_results_filenames, get_sample_results_filenames, make_table

    right = [problem.answer for problem in load("gsm8k").problems[:4]]
    texts = [[f"\\boxed{{{right[0]}}}"], ["no"], [f"#### {right[2]}"], ["no"]]
    result, _ = graded(tmp_path, "gsm8k", texts)
    graded(tmp_path, "gsm8k", texts)  # replaces the files, and adds none
    files = [str(path) for path in (tmp_path / "lm_eval").rglob("*") if path.is_file()]
    (summary,), samples = get_results_filenames(files), get_sample_results_filenames(files)
    assert len(files) == 3 and len(samples) == 2
    found = read_json(Path(summary))
    # Of 1, 0, 1, 0 and of 0, 0, 1, 0: mean, and standard deviation over the root of 4
    assert found["results"]["gsm8k"][FLEXIBLE] == 0.5
    assert found["results"]["gsm8k"]["exact_match_stderr,flexible-extract"] == pytest.approx(
        math.sqrt(1 / 12)
    )
    assert found["results"]["gsm8k"][STRICT] == 0.25
    assert result["official"]["stderr"] == pytest.approx(math.sqrt(1 / 12))
    assert found["versions"]["gsm8k"] == 3.0 and found["n-samples"]["gsm8k"]["effective"] == 4
    assert found["task_hashes"]["gsm8k"] == result["lm_eval"]["gsm8k"]["hash"]
    assert "|gsm8k" in make_table(found).replace(" ", "")
    (path,) = [name for name in samples if "/samples_gsm8k_" in name]
    table = datasets.load_dataset("json", data_files=path, split="train", cache_dir=str(tmp_path / "cache"))
    assert [row["exact_match"] for row in table if row["filter"] == "flexible-extract"] == [1, 0, 1, 0]
    assert table[0]["arguments"]["gen_args_0"]["arg_0"] == load("gsm8k").problems[0].prompt


def test_the_metrics_are_those_of_lm_evals_own_evaluation(real_data, tmp_path):
    """The same responses through its evaluator and its own task files, which take one response each."""
    from lm_eval.api.model import LM
    from lm_eval.evaluator import evaluate
    from lm_eval.tasks import TaskManager

    generator = random.Random(0)
    forms = (
        "\\boxed{{{0}}}",
        "${0}$",
        "so {0}. Problem: \\boxed{{1}}",
        "#### {0}",
        "Question: {0}",
        "0.5",
        "",
    )
    forms += ("Final Answer: The final answer is ${0}$. I hope it is correct.",)
    stock = {"gsm8k": ["gsm8k"], "aime24": ["aime24"]}
    stock["math500"] = ["minerva_math500", "hendrycks_math500"]
    write_builtin_tasks(tmp_path)
    for data_set, names in stock.items():
        problems = {problem.task_id: problem.as_row() for problem in load(data_set).problems[:24]}
        said = {name: generator.choice(forms).format(row["answer"]) for name, row in problems.items()}

        class Model(LM):
            said: dict[str, str]

            def generate_until(self, requests, disable_tqdm=False):
                return [self._until(self.said[r.doc["task_id"]], r.args[1]["until"]) for r in requests]

            def _until(self, text, stops):
                return min((text.split(stop)[0] for stop in stops), key=len)

            def loglikelihood(self, requests, disable_tqdm=False):
                raise NotImplementedError

            loglikelihood_rolling = loglikelihood

        model = Model()
        model.said = said
        manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
        loaded = manager.load([f"local_{name}" for name in names])
        theirs = evaluate(lm=model, task_dict=loaded, limit=24, log_samples=False)["results"]
        ours = replay(scorers(data_set), problems, {name: [text] for name, text in said.items()}).results
        for name in names:
            for key, found in ours[name]["metrics"].items():
                metric, _, chosen = key.partition(",")
                assert found["value"] == theirs[f"local_{name}"][key]
                # Python 3.12 and later add floats with less rounding.
                assert found["stderr"] == pytest.approx(
                    theirs[f"local_{name}"][f"{metric}_stderr,{chosen}"], rel=1e-12
                )
        assert 0 < max(found["value"] for found in ours[names[0]]["metrics"].values()) < 1


def test_all_samples_count_and_errors_are_over_problems(real_data, tmp_path):
    right = [problem.answer for problem in load("math500").problems[:3]]
    flags = [[1, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]]
    texts = [
        [f"\\boxed{{{answer if flag else -77}}}" for flag in row]
        for answer, row in zip(right, flags, strict=True)
    ]
    result, _ = graded(tmp_path, "math500", texts)
    assert result["official"]["pass@1"] == pytest.approx(4 / 12)
    assert result["official"]["pass@4"] == pytest.approx(2 / 3)
    means = [0.75, 0.0, 0.25]
    (key,) = {result["official"]["metric"]}
    assert result["official"]["n"] == 3
    assert result["official"]["stderr"] == pytest.approx(statistics.stdev(means) / math.sqrt(3))
    metric = result["lm_eval"]["minerva_math500"]["metrics"][key]
    assert metric == {
        "value": pytest.approx(1 / 3),
        "stderr": pytest.approx(statistics.stdev(means) / math.sqrt(3)),
    }


def test_a_response_ends_where_lm_evals_task_stops_its_model(real_data, tmp_path):
    answer = load("gsm8k").problems[0].answer
    result, names = graded(tmp_path, "gsm8k", [[f"\\boxed{{{answer}}}\n\nQuestion: What is 1 + 1? It is 2."]])
    assert result["problems"][names[0]]["official"] == [True]


def test_math_is_scored_by_subject_and_counted_as_a_whole(real_data, tmp_path):
    problems = {problem.record["type"]: problem for problem in load("math").problems}
    chosen = [problems["Algebra"], problems["Number Theory"], problems["Precalculus"]]
    rows = [{"task_id": one.task_id, "completion": f"\\boxed{{{one.answer}}}"} for one in chosen[:2]]
    rows.append({"task_id": chosen[2].task_id, "completion": "\\boxed{-77}"})
    write_jsonl(tmp_path / "samples.jsonl", rows)
    grade("math", tmp_path / "samples.jsonl", None, tmp_path / "grades.json", only_present=True)
    result = read_json(tmp_path / "grades.json")
    names = {"minerva_math_algebra", "minerva_math_num_theory", "minerva_math_precalc"}
    assert set(result["official"]["tasks"]) == names
    values = {name: result["lm_eval"][name]["metrics"]["math_verify,none"]["value"] for name in names}
    assert values == {name: float(not name.endswith("precalc")) for name in names}
    assert result["official"]["pass@1"] == pytest.approx(2 / 3)


def test_problems_whose_solution_has_no_box_are_scored_by_their_answer():
    """Copies of MATH-500 without solutions, for one: lm-eval's own reader of documents breaks there."""
    solutions = ["", "It is \\boxed{7", "so $\\boxed 7$", "\\boxed{7}"]
    problems = {
        str(number): {"task_id": str(number), "prompt": "?", "problem": "?", "solution": text, "answer": "7"}
        for number, text in enumerate(solutions)
    }
    said = {name: ["\\boxed{7}", "\\boxed{8}"] for name in problems}
    found = replay(scorers("math500"), problems, said).samples["minerva_math500"]["math_verify,none"]
    assert found == {name: [1.0, 0.0] for name in problems}


@pytest.mark.parametrize("name", [name for name, item in DATA_SETS.items() if item.kind == "math"])
def test_each_mathematics_set_has_its_scorer(name):
    """lm-eval's own task where it has one, else the package's."""
    found = scorers(name)
    official = {one.name.partition("_math_")[0] for one in found if one.official}
    stock = {"gsm8k": "gsm8k", "math": "minerva", "math500": "minerva_math500"}
    stock |= {"aime24": "aime24", "aime25": "aime25"}
    assert official == {stock.get(name, found[0].name)} and found[0].own


def test_without_lm_eval_one_line_says_so_and_nothing_is_written(real_data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    with refused("lm-eval", "pip install 'troll[evaluate]'"):
        graded(tmp_path, "gsm8k", [["\\boxed{1}"]])
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


HOSTILE = """
import os, signal

def process_results(doc, results):
    text = results[0]
    if text == "exit":
        os._exit(3)
    if text == "busy":
        while True:
            pass
    if text == "grow":
        return {"found": len(bytearray(1 << 40))}
    if text == "raise":
        raise ValueError("cannot read it")
    if text == "talk":
        print('{"metrics": {"found": 1.0}}', flush=True)
    return {"found": float(text == doc["right"])}
"""


def test_an_answer_that_ends_hangs_or_fills_the_process_is_wrong_and_the_others_are_scored(tmp_path):
    (tmp_path / "utils.py").write_text(HOSTILE)
    (tmp_path / "task.yaml").write_text("task: x\nprocess_results: !function utils.process_results\n")
    texts = ["yes", "exit", "yes", "busy", "grow", "raise", "talk", "no", "yes"]
    pairs = [({"right": "yes"}, text) for text in texts]
    found = scores(tmp_path / "task.yaml", ["found"], pairs, cpu_s=1)
    assert [score.metrics["found"] for score in found] == [1, 0, 1, 0, 0, 0, 0, 0, 1]
    failures = {text: score.failure for text, score in zip(texts, found, strict=True) if score.failure}
    assert failures.pop("grow").startswith("MemoryError")
    assert failures == {"exit": "crash", "busy": "timeout", "raise": "ValueError: cannot read it"}


def test_huge_numbers_do_not_hold_lm_eval_up(real_data, tmp_path):
    """math-verify's own timeout is a signal that Python handles, which one long operation never looks at."""
    tower = "\\boxed{9^{9^{9^{9}}}}"
    result, names = graded(tmp_path, "math500", [[tower], ["\\boxed{7}"]])
    assert [result["problems"][name]["official"] for name in names[:2]] == [[False], [False]]


def test_a_process_that_does_not_start_is_one_line(tmp_path):
    (tmp_path / "task.yaml").write_text("task: x\nprocess_results: !function missing.process_results\n")
    with refused("lm-eval", "missing"):
        scores(tmp_path / "task.yaml", ["found"], [({}, "")])


def test_many_answers_are_scored_side_by_side_in_their_order():
    file = task_root() / "aime/aime24.yaml"
    pairs = [({"Answer": str(number % 5)}, "\\boxed{3}") for number in range(200)]
    found = scores(file, ["exact_match"], pairs, workers=2)
    assert found == [Score({"exact_match": float(number % 5 == 3)}) for number in range(200)]


@needs_programs
def test_programs_have_evalplus_verdict_on_few_and_on_all_tests(real_data, tmp_path):
    first = load("humaneval+").problems[0]
    few = "".join(
        f"    if args == {tuple(args)!r}:\n        return {_reference(first, args)!r}\n"
        for args in first.record["base_input"]
    )
    shallow = f"def {first.record['entry_point']}(*args):\n{few}    return None\n"
    cheat = (
        f"class Yes:\n    def __eq__(self, other): return True\n"
        f"def {first.record['entry_point']}(*args):\n    return Yes()\n"
    )
    result, names = graded(tmp_path, "humaneval+", [[first.answer, shallow, cheat, "    return ("]])
    assert result["problems"][names[0]]["base"] == [True, True, False, False]
    assert result["problems"][names[0]]["official"] == [True, False, True, False]
    assert result["evalplus"]["base/pass@1"] == 0.75 and result["official"]["pass@1"] == 0.5
    assert result["metrics"]["pass@1"] == 0.25 and result["metrics"]["disagreements"] == 1
    (listed,) = read_jsonl(tmp_path / "disagreements.jsonl")
    assert listed["completion"] == cheat and listed["samples"] == [2]
    assert (result["official"]["scorer"], result["official"]["metric"]) == ("evalplus", "plus")


@needs_programs
def test_the_official_verdict_is_on_the_program_that_evalplus_takes(real_data, tmp_path):
    """A chat answer stands alone; a continuation follows the prompt, up to evalplus' stop strings."""
    problem = next(one for one in load("humaneval+").problems if one.task_id == "HumanEval/28")
    function = "def concatenate(strings: List[str]) -> str:\n    return ''.join(strings)\n"
    fenced = f"Here it is:\n```python\n{function}```\nIt joins them."
    complete = fenced.replace("def ", "from typing import List\ndef ", 1)
    body = "    return ''.join(strings)\n"
    asserting = f"{body}\nassert False\n"
    wrong_again = f"{body}\ndef concatenate(strings):\n    return 'no'\n"
    long = complete.replace("```python\n", "```python\n" + "# no code\n" * 150)
    texts = [fenced, complete, body, asserting, wrong_again, function, long, "    return ("]
    write_jsonl(tmp_path / "s.jsonl", [{"task_id": problem.task_id, "completion": text} for text in texts])
    grade("humaneval+", tmp_path / "s.jsonl", None, tmp_path / "grades.json", only_present=True)
    row = read_json(tmp_path / "grades.json")["problems"][problem.task_id]
    assert row["official"] == [False, True, True, True, True, False, True, False]
    assert row["passed"] == [True] * 7 + [False]
    listed = read_jsonl(tmp_path / "disagreements.jsonl")
    assert [one["completion"] for one in listed] == [fenced, function]
    for one in listed:
        assert one["evalplus"] == {"base": False, "passed": False}
        assert one["evalplus_on_our_program"] == {"base": True, "passed": True}


@needs_programs
def test_a_reference_solution_that_evalplus_sanitizer_breaks_is_listed(real_data, tmp_path):
    """It drops functions without `return`, here a generator, as docs/results.md says."""
    problem = next(one for one in load("mbpp+").problems if one.task_id == "Mbpp/630")
    write_jsonl(tmp_path / "s.jsonl", [{"task_id": problem.task_id, "completion": problem.answer}])
    grade("mbpp+", tmp_path / "s.jsonl", None, tmp_path / "grades.json", only_present=True)
    row = read_json(tmp_path / "grades.json")["problems"][problem.task_id]
    assert row["passed"] == [True] and row["official"] == [False]
    (listed,) = read_jsonl(tmp_path / "disagreements.jsonl")
    assert listed["evalplus_on_our_program"] == {"base": True, "passed": True}


def _reference(problem, args):
    scope = {}
    exec(problem.record["prompt"] + problem.record["canonical_solution"], scope)
    return scope[problem.record["entry_point"]](*args)


# --- comparison by peer.py ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def peer():
    """The script, as a module."""
    return importlib.import_module("peer")


def side_by_side(peer, tmp_path, name, prompts, ours, verdicts, theirs, margins=None, listed=()):
    """Rows of the comparison; verdicts are (ours, official), theirs (text, taken, passed), by problem."""
    names = [str(number) for number in range(len(prompts))]
    rows = [{"task_id": key, "prompt": text} for key, text in zip(names, prompts, strict=True)]
    write_jsonl(tmp_path / "asked.jsonl", rows)
    rows = [{"task_id": key, "completion": text} for key, text in zip(names, ours, strict=True)]
    write_jsonl(tmp_path / "written.jsonl", rows)
    graded = {
        key: {"passed": [own], "official": [official], "status": ["passed" if own else "wrong"]}
        for key, (own, official) in zip(names, verdicts, strict=True)
    }
    write_json(tmp_path / "grades.json", {"problems": graded, "disagreements": listed})
    said = {
        key: {"text": text, "taken": taken, "passed": passed}
        for key, (text, taken, passed) in zip(names, theirs, strict=True)
    }
    return peer.compared(name, tmp_path, said, margins)


def test_a_peer_that_says_the_same_needs_no_explanation_and_judges_are_explained(peer, tmp_path):
    ours = ["\\boxed{18}", "It is 18.", "\\boxed{18}, of 3", "\\boxed{5}\nQuestion: more", "\\boxed{4}"]
    verdicts = [(True, True), (False, True), (True, False), (True, True), (True, True)]
    theirs = [("\\boxed{18}", "18", True), ("It is 18.", "18", True), ("\\boxed{18}, of 3", "3", False)]
    theirs += [("\\boxed{5}\n", "5", True), ("\\boxed{4}", "4", False)]
    rows = side_by_side(peer, tmp_path, "gsm8k", ["?"] * 5, ours, verdicts, theirs)
    assert all(row["same_text"] for row in rows)
    why = [row["explanation"] for row in rows]
    assert why[0] == why[3] == ""
    assert why[1] == "there is no box, which our judge requires; lm-eval takes the last number, `18`"
    assert why[2] == "our judge reads the box `18`; lm-eval takes the last number, `3`"
    assert why[4].endswith("unexplained")  # one text, two verdicts of one scorer
    text = peer.report(pd.DataFrame(rows), {"model": "m", "digest": "d", "versions": "v"}, ["a", "a", "b"])
    assert "| gsm8k | 5 | 4 | 4 | 3 | 2 | 5 | 2 | 1 |" in text
    assert "| gsm8k | 2 | yes | no | no | yes | our judge reads the box" in text
    assert text.endswith("```bash\na\nb\n```\n")


def test_texts_of_programs_are_compared_as_evalplus_cuts_them(peer, tmp_path):
    prompts = ["def f(x):\n"] * 3
    body = "    return 2 * x\n"
    ours = [f"{body}\nprint(f(1))", "\treturn 2 * x\n", body]
    theirs = [(prompts[0] + body, "code", True), (prompts[0] + body, "code", True), (prompts[0], "", False)]
    margins = peer.Margins(tmp_path)
    rows = side_by_side(peer, tmp_path, "humaneval+", prompts, ours, [(True, True)] * 3, theirs, margins)
    assert [row["same_text"] for row in rows] == [True, True, False]
    assert rows[2]["explanation"] == "one text is a prefix of the other: unexplained"
    chat = side_by_side(
        peer,
        tmp_path,
        "humaneval+",
        ["<user>..."],
        [f"def f(x):\n{body}\ndef g(x):\n    pass\n```\nThis is right."],
        [(True, True)],
        [(f"def f(x):\n{body}\ndef g(x):\n    pass", "code", True)],
    )
    assert chat[0]["same_text"], "in a chat evalplus stops at the end of the block alone"


def test_a_program_that_evalplus_takes_otherwise_is_told_from_one_it_judges_otherwise(peer, tmp_path):
    texts = ["def f(x: List):\n    return x\n```"] * 3
    theirs = [
        (text, "def f(x: List): return x", passed) for text, passed in zip(texts, (0, 0, 1), strict=True)
    ]
    again = [{"base": True, "passed": True}, {"base": False, "passed": False}]
    listed = [{"task_id": str(key), "evalplus_on_our_program": one} for key, one in enumerate(again)]
    verdicts = [(True, False)] * 3
    rows = side_by_side(peer, tmp_path, "humaneval+", ["?"] * 3, texts, verdicts, theirs, listed=listed)
    why = [row["explanation"] for row in rows]
    assert why[0].startswith(
        "evalplus takes `def f(x: List): return x` from the text, without the prompt's imports"
    )
    assert why[1] == "evalplus and our judge disagree about the same program (ours: passed): unexplained"
    assert why[2] == "evalplus gives two verdicts on the same text: unexplained"


def test_programs_are_asked_for_with_the_very_text_of_evalplus_decoder(peer, tmp_path, checkpoint):
    pytest.importorskip("evalplus", reason="evalplus is not installed")
    from evalplus import codegen
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    tokenizer.save_pretrained(tmp_path / peer.MODEL)
    source = inspect.getsource(codegen.run_codegen)
    assert f'"{peer._INSTRUCTION}"' in source and f'"{peer._RESPONSE}"' in source
    prompt = "\ndef f(x):\n    pass\n"
    steps, options = peer.Steps(tmp_path), argparse.Namespace(bare=False)
    asked = peer.as_evalplus_asks(prompt, steps, options)
    assert asked.startswith("<user>Please provide") and "```\ndef f(x):\n    pass\n```" in asked
    assert asked.endswith(f"<assistant>{peer._RESPONSE}\n```python\n")
    assert peer.as_evalplus_asks(prompt, steps, argparse.Namespace(bare=True)) == prompt[1:]


def test_evalplus_decoder_gets_problems_in_an_order_in_which_no_prompt_ends_an_answer(peer, checkpoint):
    """Its stop criteria of one problem stay for the next, and look at the tokens after the earlier prompt."""
    pytest.importorskip("evalplus", reason="evalplus is not installed")
    from transformers import AutoTokenizer

    decoder = pytest.importorskip("evalplus.provider.hf").HuggingFaceDecoder(
        name=str(checkpoint),
        dataset="humaneval",
        dtype="float32",
        temperature=0,
        max_new_tokens=12,
        force_base_prompt=True,
    )
    decoder.eos = ["stop"]
    prompts = ["ask", "ask more and stop here", "ask more"]
    rows = [{"prompt": prompt} for prompt in prompts]
    ordered = peer.longest_first(rows, rows, AutoTokenizer.from_pretrained(checkpoint))
    assert [row["prompt"] for row in ordered] == [prompts[1], prompts[2], prompts[0]]
    lengths = {row["prompt"]: len(decoder.codegen(row["prompt"], False, 1)[0]) for row in ordered}
    assert lengths[prompts[1]] > 1
    assert len(decoder.codegen(prompts[1], False, 1)[0]) <= 1, "if it does not, the order is no longer needed"


CODEGEN = """
import json, pathlib, sys
first, last = json.loads(sys.argv[sys.argv.index("--id_range") + 1])
out = pathlib.Path("humaneval+/peer/humaneval")
out.mkdir(parents=True, exist_ok=True)
with open("ranges", "a") as ranges:
    print(first, last, file=ranges)
done = {json.loads(line)["task_id"] for file in out.glob("*0.0.jsonl") for line in file.open()}
for number in range(first, last):
    if f"HumanEval/{number}" in done:
        continue
    if number == 8 and not pathlib.Path("again").exists():
        sys.exit(1)
    for ending in ("raw.jsonl", "jsonl"):
        with open(out / f"model_hf_temp_0.0.{ending}", "a") as file:
            print(json.dumps({"task_id": f"HumanEval/{number}", "solution": ending}), file=file)
"""


def test_evalplus_generates_for_a_few_problems_in_each_process_and_resumes(peer, tmp_path):
    """Its decoder becomes slower with each problem of a process, until 164 would take days."""
    pytest.importorskip("evalplus", reason="evalplus is not installed")
    (tmp_path / "evalplus").mkdir()
    (tmp_path / "evalplus/__init__.py").touch()
    (tmp_path / "evalplus/codegen.py").write_text(CODEGEN)  # found first, in the directory of work
    verdicts = {
        f"HumanEval/{number}": [{"solution": "", "base_status": "pass", "plus_status": "fail"}]
        for number in range(14)
    }
    steps, options = peer.Steps(tmp_path), argparse.Namespace(bare=False)
    with refused("status 1"):
        peer.by_evalplus(steps, "humaneval+", 14, options)
    (tmp_path / "again").touch()
    write_json(tmp_path / "humaneval+/peer/eval_results.json", {"eval": verdicts})
    results = peer.by_evalplus(peer.Steps(tmp_path), "humaneval+", 14, options)
    assert results.keys() == verdicts.keys() and results["HumanEval/13"]["text"] == "raw.jsonl"
    assert not any(result["passed"] for result in results.values())
    ranges = [tuple(map(int, line.split())) for line in (tmp_path / "ranges").read_text().splitlines()]
    assert ranges == [(0, 6), (6, 12), (6, 12), (12, 14)]


def test_only_nearly_equal_tokens_explain_texts_that_part(peer, tmp_path, checkpoint, monkeypatch):
    """The margin is that of the model itself at the token where the texts part."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    margins, problem = peer.Margins(checkpoint), "what is"
    text, other = "abcd", "abxd"
    with torch.no_grad():
        ids = torch.tensor([tokenizer("what isab").input_ids])
        logits = model(ids).logits[0]
    # The texts part at the third token of the answer, which follows "b"; or one before.
    gaps = [float(row.topk(2).values.diff().abs()) for row in logits[-2:]]
    said = margins.explain("gsm8k", problem, text, other)
    assert f"diverge at character 2, where the two most likely tokens are {min(gaps):.1g} nats apart" in said
    assert said.endswith("unexplained") is (min(gaps) >= 1e-3)
    monkeypatch.setattr(margins, "_margin", lambda *_: 5e-4)
    assert not margins.explain("gsm8k", problem, text, other).endswith("unexplained")
    assert margins.explain("gsm8k", problem, "ab", "abc").endswith("unexplained")


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (
            ["--problems", "gsm8k=0"],
            ("--problems", "'gsm8k=0'", "SET=NUMBER", "gsm8k, math500"),
        ),
        (["--problems", "gsm=3"], ("--problems", "'gsm=3'")),
        ([], ("*.safetensors",)),
    ],
)
def test_a_wrong_call_of_the_peer_is_one_line(peer, tmp_path, capsys, arguments, facts):
    call = ["--checkpoint", str(tmp_path), "--out", str(tmp_path / "peer"), *arguments]
    with pytest.raises(SystemExit):
        peer.main(call)
    (line,) = capsys.readouterr().err.splitlines()
    check_facts(line, "error", *facts)
    assert list(tmp_path.iterdir()) == []
