import hashlib
import random
import subprocess
import sys
import time
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from troll.common.files import read_json, write_jsonl
from troll.evaluation.evalplus import check as evalplus_check
from troll.evaluation.evalplus.check import EvalplusVerdict, evalplus_verdicts
from troll.evaluation.grading import grade
from troll.evaluation.lm_eval import replay as lm_eval_replay
from troll.evaluation.lm_eval.builtin import scorers
from troll.evaluation.lm_eval.replay import Scored, replay
from troll.evaluation.pass_at_k import mean_pass_at_k, pass_at_k, reported_ks
from troll.evaluation.sampling import write_oracle
from troll.tasks import testbed
from troll.tasks.datasets.catalogue import DATA_SETS
from troll.tasks.datasets.load import load
from troll.tasks.registry import get_task, write_problems
from troll.tasks.sandbox.pool import sandbox_available
from troll.tasks.verifiers.math import judge_math

needs_sandbox = pytest.mark.skipif(not sandbox_available()[0], reason=f"no sandbox: {sandbox_available()[1]}")


def chain(number):
    prompt = f"Start with {number}. Add 5. Which digit remains?\n"
    return {
        "task_id": f"chains/test/{number}",
        "prompt": prompt,
        "answer": str((number + 5) % 10),
        "level": 1,
    }


def doubling(number, factor=2):
    return {
        "task_id": f"functions/test/{number}",
        "prompt": f'def f(x):\n    """{factor} times x."""\n',
        "entry_point": "f",
        "canonical_solution": f"    return {factor} * x\n",
        "base_input": [[1], [2]],
        "plus_input": [[0], [-3], [7]],
        "atol": 0,
        "contract": "",
        "level": 1,
    }


def under_evalplus(*programs, **settings):
    """evalplus's verdicts on programs that are to double a number."""
    record = doubling(0)
    samples = [(record["task_id"], program) for program in programs]
    return evalplus_verdicts("humaneval", {record["task_id"]: record}, samples, **settings)


def write(tmp_path, problems, completions):
    """Problems, and samples given as (number of the problem, completion)."""
    write_jsonl(tmp_path / "problems.jsonl", problems)
    counts = Counter()
    rows = []
    for number, completion in completions:
        task_id = problems[number]["task_id"]
        rows.append({"task_id": task_id, "sample": counts[number], "completion": completion})
        counts[number] += 1
    write_jsonl(tmp_path / "samples.jsonl", rows)


def grades(tmp_path, task, **settings):
    grade(task, tmp_path / "samples.jsonl", tmp_path / "problems.jsonl", tmp_path / "grades.json", **settings)
    return read_json(tmp_path / "grades.json")


def test_a_problem_that_occurs_twice_is_refused(tmp_path):
    """The last would win, silently."""
    write(tmp_path, [chain(1), chain(2), {**chain(3), "task_id": "chains/test/1"}], [(0, "\\boxed{6}")])
    with refused(tmp_path / "problems.jsonl:3", "task_id", "'chains/test/1'"):
        grades(tmp_path, "chains", only_present=True)
    with refused(tmp_path / "problems.jsonl:3", "task_id", "'chains/test/1'", "line 1"):
        get_task("chains").load(tmp_path / "problems.jsonl")


def test_a_sample_that_occurs_twice_is_refused(tmp_path):
    write(tmp_path, [chain(1)], [(0, "\\boxed{6}")])
    rows = [{"task_id": "chains/test/1", "sample": 0, "completion": text} for text in ("a", "b")]
    write_jsonl(tmp_path / "samples.jsonl", rows)
    with refused(tmp_path / "samples.jsonl:2", "sample 0", "task_id 'chains/test/1'", "line 1"):
        grades(tmp_path, "chains")


@pytest.mark.parametrize("ids", [[1, 2], [1, 2, 3], [2]])
@pytest.mark.parametrize("named", [True, False])
def test_row_numbers_that_may_count_from_1_are_refused(tmp_path, ids, named):
    """Else each sample would be judged by the problem before its own."""
    problems = [chain(number) for number in (1, 2, 3)]
    if not named:
        problems = [{key: row[key] for key in row if key != "task_id"} for row in problems]
    write_jsonl(tmp_path / "problems.jsonl", problems)
    rows = [{"task_id": number, "completion": f"\\boxed{{{(number + 5) % 10}}}"} for number in ids]
    write_jsonl(tmp_path / "samples.jsonl", rows)
    with refused(tmp_path / "samples.jsonl", "task_id", "from 0", "subtract 1"):
        grades(tmp_path, "chains", only_present=True)
    if 1 in ids:
        from_0 = [{**row, "task_id": row["task_id"] - 1} for row in rows]
        write_jsonl(tmp_path / "samples.jsonl", from_0)
        assert grades(tmp_path, "chains", only_present=True)["metrics"]["pass@1"] == 1.0


def test_samples_of_different_prompts_are_not_mixed(tmp_path):
    write(tmp_path, [chain(1)], [(0, "\\boxed{6}")])
    rows = [
        {"task_id": "chains/test/1", "sample": number, "completion": "\\boxed{6}", "prompt_digest": digest}
        for number, digest in enumerate("aab")
    ]
    write_jsonl(tmp_path / "samples.jsonl", rows)
    with refused(tmp_path / "samples.jsonl:3", "task_id 'chains/test/1'", "(b)", "(a)"):
        grades(tmp_path, "chains")
    write_jsonl(tmp_path / "samples.jsonl", [*rows[:2], {"task_id": "chains/test/1", "completion": "x"}])
    found = grades(tmp_path, "chains")
    assert found["metrics"]["pass@1"] == pytest.approx(2 / 3) and len(found["prompts_sha256"]) == 64


def test_thoughts_are_not_judged(tmp_path):
    write(tmp_path, [chain(1)], [])
    said = ["<think>\\boxed{6}", "<think>\\boxed{1}</think>\\boxed{6}", "\\boxed{6}", "\\boxed{6}"]
    rows = [{"task_id": "chains/test/1", "sample": n, "completion": text} for n, text in enumerate(said)]
    rows[3]["in_thought"] = True
    write_jsonl(tmp_path / "samples.jsonl", rows)
    assert grades(tmp_path, "chains")["problems"]["chains/test/1"]["passed"] == [False, True, True, False]


# --- mathematics --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chain_samples():
    """Twelve problems with nine samples each of all kinds, shuffled across problems."""
    generator = random.Random(0)
    problems = [chain(number) for number in range(12)]
    forms = ("\\boxed{{{}}}", "so \\boxed{{0}} no \\boxed{{ {} }}\n", "{}", "\\boxed{{{}+1-1}}", "")
    completions = [
        (number, generator.choice(forms).format((number + generator.choice([5, 5, 6])) % 10))
        for number in range(12)
        for _ in range(9)
    ]
    generator.shuffle(completions)
    return problems, completions


def test_replay_through_lm_eval_equals_direct_verdicts(tmp_path, chain_samples):
    problems, completions = chain_samples
    write(tmp_path, problems, completions)
    result = grades(tmp_path, "chains")
    assert result["disagreements"] == [] and result["missing"] == []
    for number, problem in enumerate(problems):
        texts = [text for owner, text in completions if owner == number]
        expected = judge_math([problem["answer"]] * 9, texts)
        assert result["problems"][problem["task_id"]]["status"] == expected
        assert result["problems"][problem["task_id"]]["passed"] == [status == "passed" for status in expected]
    flags = [problem["passed"] for problem in result["problems"].values()]
    assert result["metrics"]["pass@1"] == pytest.approx(sum(map(sum, flags)) / 108)
    assert result["metrics"]["pass@9"] == pytest.approx(sum(map(any, flags)) / 12)
    assert 0 < result["metrics"]["pass@1"] < result["metrics"]["pass@8"] < 1.0 + 1e-12
    assert result["data_sha256"] == hashlib.sha256((tmp_path / "problems.jsonl").read_bytes()).hexdigest()
    assert {"lm_eval", "math-verify", "python", "troll"} <= set(result["versions"])


def test_grades_name_only_who_judged(tmp_path):
    """lm-eval has no task of locks, so it says nothing of them."""
    write(tmp_path, [{**chain(1), "task_id": "locks/test/0"}], [(0, "\\boxed{6}")])
    result = grades(tmp_path, "locks")
    assert result["metrics"] == {"pass@1": 1.0} and "lm_eval" not in result["versions"]
    assert not (tmp_path / "lm_eval").exists() and "official" not in result


def test_lm_eval_sees_the_very_prompts_and_all_samples(tmp_path, chain_samples, monkeypatch):
    problems, completions = chain_samples
    write(tmp_path, problems, completions)
    import lm_eval.evaluator

    seen = []
    original = lm_eval.evaluator.evaluate

    def spy(lm, task_dict, **settings):
        generate = lm.generate_until
        lm.generate_until = lambda requests, **k: (seen.extend(requests), generate(requests, **k))[1]
        return original(lm=lm, task_dict=task_dict, **settings)

    monkeypatch.setattr(lm_eval.evaluator, "evaluate", spy)
    grades(tmp_path, "chains")
    assert Counter(request.args[0] for request in seen) == {problem["prompt"]: 9 for problem in problems}


def test_a_difference_to_lm_eval_is_listed(tmp_path, monkeypatch):
    write(tmp_path, [chain(1)], [(0, "\\boxed{6}")])
    metrics = {"pass@1,all": {"value": 0.25, "stderr": None}}
    scored = Scored({"chains": {"version": 1.0, "n": 1, "metrics": metrics}})
    monkeypatch.setattr(lm_eval_replay, "replay", lambda *_, **__: scored)
    result = grades(tmp_path, "chains")
    assert result["disagreements"] == [{"metric": "pass@1", "lm_eval": 0.25, "troll": 1.0}]


def test_unequal_numbers_of_samples_are_replayed_as_they_are():
    problems = {problem["task_id"]: problem for problem in (chain(1), chain(2))}
    completions = {"chains/test/1": ["\\boxed{6}"] * 3, "chains/test/2": ["\\boxed{0}"]}
    metrics = replay(scorers("chains"), problems, completions).results["chains"]["metrics"]
    assert metrics["pass@1,all"]["value"] == pytest.approx(0.5)


# --- code ---------------------------------------------------------------------------------------------------

EQUAL_TO_ALL = """    class Yes:
        def __eq__(self, other): return True
    return Yes()
"""
FRAME_WALK = """    import sys
    frame = sys._getframe()
    while frame:
        if "expected" in frame.f_locals:
            expected = frame.f_locals["expected"]
            expected[:] = [None] * len(expected)
        frame = frame.f_back
    return None
"""


@needs_sandbox
def test_code_is_graded_by_both_and_they_agree_on_honest_work(tmp_path):
    problems = [doubling(0), doubling(1, 3)]
    completions = [
        (0, "    return 2 * x\n"),
        (1, "    return 2 * x\n"),
        (0, "    return 2 * abs(x)\n"),
        (1, "    return x * 3\n"),
        (0, "    return 2 * x\n"),
        (1, "    print(3 * x)\n"),
        (1, "    return 3 * x)\n"),
        (0, "    return 2.0 * x\n"),
    ]
    write(tmp_path, problems, completions)
    result = grades(tmp_path, "functions")
    assert result["disagreements"] == []
    assert result["problems"]["functions/test/0"] == {
        "passed": [True, False, True, True],
        "base": [True, True, True, True],
        "status": ["passed", "wrong", "passed", "passed"],
    }
    assert result["problems"]["functions/test/1"]["status"] == ["wrong", "passed", "wrong", "crash"]
    assert result["metrics"] == {"pass@1": 0.5, "pass@4": 1.0, "base/pass@1": 0.625, "base/pass@4": 1.0}
    assert result["evalplus"] == {"pass@1": 0.5, "pass@4": 1.0, "base/pass@1": 0.625, "base/pass@4": 1.0}
    assert {"evalplus", "bubblewrap"} <= set(result["versions"])


@needs_sandbox
@pytest.mark.parametrize("cheat", [EQUAL_TO_ALL, FRAME_WALK], ids=["equal to all", "frame walk"])
def test_what_cheats_evalplus_does_not_score_and_is_listed(tmp_path, cheat):
    write(tmp_path, [doubling(0)], [(0, cheat), (0, "    return 2 * x\n"), (0, cheat)])
    result = grades(tmp_path, "functions")
    assert result["problems"]["functions/test/0"]["passed"] == [False, True, False]
    assert result["metrics"]["pass@1"] == pytest.approx(1 / 3)
    (disagreement,) = result["disagreements"]
    assert disagreement["samples"] == [0, 2] and disagreement["completion"] == cheat
    assert disagreement["evalplus"] == {"base": True, "passed": True}
    assert disagreement["troll"]["passed"] is False


@needs_sandbox
def test_a_program_can_neither_write_evalplus_report_nor_keep_it_waiting():
    forge = """import os
for descriptor in range(3, 20):
    try: os.write(descriptor, b"garbage\\n")
    except OSError: pass
def f(x): return 2 * x
"""
    # Whether a process has ended, Python's multiprocessing reads from one of those descriptors.
    stay = f"{forge.replace('return 2 * x', 'return g(x)')}def g(x):\n    while True:\n        try: g(x)\n"
    stay += "        except BaseException: pass\n"
    right = "def f(x):\n    return 2 * x\n"
    start = time.monotonic()
    verdicts = under_evalplus(right, forge, right, stay, right, workers=1)
    passed, failed = EvalplusVerdict(True, True), EvalplusVerdict(False, False)
    assert verdicts == [passed, passed, passed, failed, passed]
    assert time.monotonic() - start < evalplus_check._SAMPLE_S / 2


@needs_sandbox
def test_programs_under_evalplus_are_confined():
    """They can neither kill the evaluator nor multiply, whatever they call."""
    attack = """import ctypes, os
libc = ctypes.CDLL(None)
def f(x):
    denied = [libc.kill(os.getppid(), 9), libc.fork(), libc.socket(2, 1, 0), libc.unshare(0x10000000)]
    return 2 * x if denied == [-1] * 4 else None
"""
    threads = """import threading, time
threading.stack_size(1 << 16)
alive = []
try:
    while len(alive) < 1000:
        alive.append(threading.Thread(target=time.sleep, args=(1,), daemon=True)); alive[-1].start()
except RuntimeError: pass
def f(x): return 2 * x if 10 < len(alive) < 100 else None
"""
    assert under_evalplus(attack, threads) == [EvalplusVerdict(True, True)] * 2


@needs_sandbox
def test_code_is_graded_in_a_container_where_parts_of_proc_are_covered(tmp_path):
    """As in Docker and Kubernetes: there the kernel lets nobody mount /proc."""
    part = next(name for name in ("acpi", "fs", "bus", "irq") if Path("/proc", name).is_dir())
    container = ["bwrap", "--dev-bind", "/", "/", "--tmpfs", f"/proc/{part}"]
    mounting = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    if subprocess.run([*container, "true"], check=False).returncode:
        pytest.skip("no container can be made here")
    refusal = subprocess.run([*container, *mounting], capture_output=True, check=False).stderr
    assert b"Can't mount proc" in refusal, "else this container shows nothing"
    write(tmp_path, [doubling(0)], [(0, "    return 2 * x\n"), (0, "    return x\n")])
    program = "from pathlib import Path; from troll.evaluation.grading import grade\n"
    program += "samples, problems, out = map(Path, ('samples.jsonl', 'problems.jsonl', 'grades.json'))\n"
    program += "grade('functions', samples, problems, out)"
    subprocess.run([*container, sys.executable, "-c", program], cwd=tmp_path, check=True)
    result = read_json(tmp_path / "grades.json")
    assert result["problems"]["functions/test/0"]["passed"] == [True, False]
    assert result["evalplus"]["pass@1"] == 0.5 and not result["disagreements"]


@needs_sandbox
def test_programs_under_evalplus_see_no_processes_and_no_settings_of_the_kernel():
    source = """import os
found = []
for path, _, files in os.walk("/proc"): found += [os.path.join(path, name) for name in files]
def f(x): return 2 * x if found == ["/proc/meminfo"] else None
"""
    assert under_evalplus(source) == [EvalplusVerdict(True, True)]


@needs_sandbox
def test_evalplus_that_cannot_start_is_an_error(monkeypatch):
    command = evalplus_check._command
    monkeypatch.setattr(evalplus_check, "_command", lambda job: [*command(job)[:-1], "/troll/nothing.json"])
    with refused("evalplus", "nothing.json"):
        under_evalplus("x")


def test_without_the_sandbox_code_is_not_graded_at_all(tmp_path, monkeypatch):
    write(tmp_path, [doubling(0)], [(0, "    return 2 * x\n")])
    monkeypatch.setenv("PATH", "/nowhere")
    sandbox_available.cache_clear()
    with refused("bwrap", "apt-get install"):
        grades(tmp_path, "functions")
    sandbox_available.cache_clear()
    assert not (tmp_path / "grades.json").exists()


# --- the end of a text --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mark", ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "</s>", "<end_of_turn>", "<|end|>"]
)
def test_text_after_an_end_that_is_written_out_is_not_graded(tmp_path, mark):
    """Servers may show special tokens, and some go on after them."""
    turn = f"{mark}\n<|im_start|>user\nAnother: "
    completions = [
        f"\\boxed{{6}}{turn}\\boxed{{7}}",
        f"\\boxed{{7}}{turn}\\boxed{{6}}",
        f"{turn}\\boxed{{6}}",
    ]
    write(tmp_path, [chain(1)], [(0, text) for text in completions])
    assert grades(tmp_path, "chains")["problems"]["chains/test/1"]["passed"] == [True, False, False]


def test_the_end_of_a_thought_is_not_the_end_of_the_response(tmp_path):
    text = "<|channel|>analysis<|message|>\\boxed{7}?<|end|><|start|>assistant<|channel|>final<|message|>"
    write(tmp_path, [chain(1)], [(0, text + "\\boxed{6}<|return|>\\boxed{7}")])
    assert grades(tmp_path, "chains")["problems"]["chains/test/1"]["passed"] == [True]


def test_a_mark_that_the_prompt_speaks_of_is_no_end(tmp_path):
    problem = {**chain(1), "prompt": "What does `</s>` mean? Add 5 to 1.\n"}
    write(tmp_path, [problem], [(0, "`</s>` ends a text: \\boxed{6}<|im_end|>\\boxed{7}")])
    assert grades(tmp_path, "chains")["problems"]["chains/test/1"]["passed"] == [True]


# --- input --------------------------------------------------------------------------------------------------


def test_problems_without_samples_are_an_error_or_listed(tmp_path):
    write(tmp_path, [chain(number) for number in range(6)], [(1, "\\boxed{6}"), (3, "\\boxed{0}")])
    with refused(tmp_path / "samples.jsonl", "4 of 6", "chains/test/0", "chains/test/5", "--only-present"):
        grades(tmp_path, "chains")
    result = grades(tmp_path, "chains", only_present=True)
    assert result["missing"] == [f"chains/test/{number}" for number in (0, 2, 4, 5)]
    assert result["metrics"]["pass@1"] == 0.5
    assert set(result["problems"]) == {"chains/test/1", "chains/test/3"}


@pytest.mark.parametrize(
    ("lines", "facts"),
    [
        ('{"completion": "7"}', ("samples.jsonl:1", "task_id")),
        ('{"task_id": "chains/test/0"}', ("samples.jsonl:1", "completion")),
        ('{"task_id": "chains/test/0", "completion": 7}', ("samples.jsonl:1", "completion")),
        (
            '{"task_id": "other", "completion": ""}',
            ("samples.jsonl:1", "task_id", "'other'", "problems.jsonl"),
        ),
        ("", ("samples.jsonl",)),
        ("{", ("samples.jsonl:1", "JSON")),
    ],
)
def test_unusable_samples_are_named(tmp_path, lines, facts):
    write_jsonl(tmp_path / "problems.jsonl", [chain(0)])
    (tmp_path / "samples.jsonl").write_text(lines)
    with refused(*facts):
        grades(tmp_path, "chains")


WRONG = [{"prompt": ["1+1?"]}, {"task_id": ["0"]}, {"level": "Level 5"}, {"answer": None}]


@pytest.mark.parametrize("wrong", WRONG)
def test_problems_of_a_model_to_sample_have_a_prompt_of_text(tmp_path, wrong):
    write_jsonl(tmp_path / "problems.jsonl", [chain(0), chain(1) | wrong])
    with refused("problems.jsonl:2", *wrong):
        get_task("chains").load(tmp_path / "problems.jsonl")


@pytest.mark.parametrize(
    ("task", "row", "facts"),
    [
        ("chains", {"prompt": "1+1?"}, ("'answer'",)),
        ("functions", {"prompt": "def f():"}, ("'canonical_solution'",)),
        ("gsm8k", {"prompt": "1+1?"}, ("'answer'", "gsm8k as published")),
        ("gsm8k", {"question": "1+1?"}, ("'answer'", "gsm8k as published")),
        ("dapo", {"prompt": [{"role": "system", "content": "1+1?"}], "answer": 2}, ("dapo", "user")),
        ("mbpp", {"text": "Add.", "test_list": []}, ("mbpp as published",)),
        ("eurus-code", {"prompt": "Add.", "reward_model": {"ground_truth": "7"}}, ("eurus-code",)),
    ],
)
def test_unusable_problems_are_named(tmp_path, task, row, facts):
    write_jsonl(tmp_path / "problems.jsonl", [{"task_id": "0", **row}])
    write_jsonl(tmp_path / "samples.jsonl", [{"task_id": "0", "completion": "2"}])
    with refused("problems.jsonl:1", *facts):
        grades(tmp_path, task)


def test_an_unknown_task_is_named_with_the_valid_ones(tmp_path):
    with refused("'chain'", "chains, functions, locks, programs, gsm8k"):
        grades(tmp_path, "chain")


def test_both_judges_take_programs_of_the_testbed_as_they_stand(tmp_path):
    pytest.importorskip("evalplus", reason="evalplus is not installed")
    texts = ["    return 2 * x\n", "    return 2 * x\n ]", "    return 2 * x\nraise ValueError\n"]
    write(tmp_path, [doubling(0)], [(0, text) for text in texts])
    result = grades(tmp_path, "functions")
    assert result["problems"]["functions/test/0"]["passed"] == [True, False, False]
    assert result["disagreements"] == []


def test_verdicts_of_infrastructure_are_no_numbers(tmp_path, monkeypatch):
    """A sandbox that fails midway must not become a score."""
    from troll.tasks.verifiers import code

    write(tmp_path, [doubling(0)], [(0, "    return 2 * x\n")])
    lost = code.CodeVerdict(False, False, "infrastructure", "lost")
    monkeypatch.setattr(code, "verify_code", lambda records, texts, **_: [lost] * len(texts))
    monkeypatch.setattr(evalplus_check, "evalplus_verdicts", lambda *_, **__: [EvalplusVerdict(True, True)])
    monkeypatch.setattr("troll.tasks.sandbox.pool.sandbox_available", lambda: (True, ""))
    with refused("sandbox", "functions/test/0", "lost"):
        grades(tmp_path, "functions")


# --- public data sets ---------------------------------------------------------------------------------------


def graded(tmp_path, task, samples, **settings):
    """Grades (task_id, completion) pairs of a public data set."""
    write_jsonl(tmp_path / "s.jsonl", [{"task_id": name, "completion": text} for name, text in samples])
    settings = {"only_present": True, **settings}
    grade(task, tmp_path / "s.jsonl", None, tmp_path / "g.json", **settings)
    return read_json(tmp_path / "g.json")


MATH_SETS = [name for name, item in DATA_SETS.items() if item.kind == "math" and name != "eurus-math"]


@pytest.mark.parametrize("task", MATH_SETS)
def test_every_mathematics_set_is_graded_by_name(tmp_path, real_data, task):
    problems = load(task).problems[:3]
    samples = [(p.task_id, f"\\boxed{{{p.answer}}}") for p in problems]
    samples.insert(1, (problems[0].task_id, "\\boxed{-98765}"))
    result = graded(tmp_path, task, samples)
    assert result["task"] == task and len(result["missing"]) == len(load(task).problems) - 3
    assert [row["passed"] for row in result["problems"].values()] == [[True, False], [True], [True]]
    assert result["problems"][problems[0].task_id]["status"] == ["passed", "wrong"]
    assert result["metrics"]["pass@1"] == pytest.approx(2.5 / 3)
    assert result["metrics"]["official/pass@1"] == pytest.approx(2.5 / 3) and not result["disagreements"]
    assert [row["official"] for row in result["problems"].values()] == [[True, False], [True], [True]]
    assert (
        result["data"]["substitute"] is (task in ("dapo", "omni-math")) and len(result["data_sha256"]) == 64
    )


def test_row_numbers_do_for_ids(tmp_path, real_data):
    answers = [problem.answer for problem in load("math500").problems[:2]]
    result = graded(tmp_path, "math500", [(1, f"\\boxed{{{answers[1]}}}"), ("0", "\\boxed{}")])
    assert {name: row["passed"] for name, row in result["problems"].items()} == {"0": [False], "1": [True]}


def test_all_problems_must_have_samples_unless_told_otherwise(tmp_path, real_data):
    with refused("29 of 30", "61, 62", "--only-present"):
        graded(tmp_path, "aime24", [("60", "")], only_present=False)
    with refused("task_id", "'x'", "aime24 (test)"):
        graded(tmp_path, "aime24", [("x", "")])
    with refused("task chains", "--problems FILE"):
        graded(tmp_path, "chains", [("x", "")])


@needs_sandbox
@pytest.mark.parametrize("task", ["humaneval", "humaneval+", "mbpp", "mbpp+"])
def test_every_code_set_is_graded_by_name(tmp_path, real_data, task):
    first, second = load(task).problems[:2]
    name = second.record["entry_point"]
    samples = [
        (first.task_id, first.answer),
        (second.task_id, f"```python\ndef {name}(*_):\n    return 'no'\n```"),
        (second.task_id, second.answer),
        (second.task_id, "    return ("),
    ]
    result = graded(tmp_path, task, samples)
    rows = result["problems"]
    assert rows[first.task_id]["passed"] == [True]
    assert rows[second.task_id]["status"] == ["wrong", "passed", "crash"]
    assert result["metrics"]["pass@1"] == pytest.approx(2 / 3)
    assert ("base/pass@1" in result["metrics"]) is task.endswith("+")
    assert result["disagreements"] == []


@needs_sandbox
def test_a_problem_outside_the_test_split_is_found_in_the_whole_set(tmp_path, real_data):
    problem = load("mbpp", "train").problems[0]
    result = graded(tmp_path, "mbpp", [(problem.task_id, problem.answer)])
    assert result["problems"]["601"]["passed"] == [True] and result["data"]["split"] == "all"


@needs_sandbox
def test_partial_credit_is_reported_beside_success(tmp_path):
    rows = []
    for number in range(2):
        tests = {"inputs": ["1\n", "2\n", "3\n"], "outputs": ["2\n", "3\n", "4\n"], "entry_point": ""}
        rows.append({"task_id": str(number), "prompt": "Add one.", "canonical_solution": "", **tests})
    write_jsonl(tmp_path / "problems.jsonl", [{**row, "scored_tests": 2} for row in rows])
    programs = {
        "all": "print(int(input()) + 1)",
        "scored": "print({1: 2, 2: 3}[int(input())])",
        "one": "print(3)",
    }
    answers = {name: f"```python\n{program}\n```" for name, program in programs.items()}
    samples = [("0", answers["all"]), ("0", answers["scored"]), ("1", answers["one"]), ("1", programs["all"])]
    lines = [{"task_id": name, "completion": text} for name, text in samples]
    write_jsonl(tmp_path / "samples.jsonl", lines)
    result = grades(tmp_path, "eurus-code")
    assert [row["reward"] for row in result["problems"].values()] == [[1.0, 1.0], [0.5, 0.0]]
    # Success is all tests, with a program that stands outside of a block found as ever.
    assert [row["passed"] for row in result["problems"].values()] == [[True, False], [False, True]]
    assert result["metrics"]["pass@1"] == 0.5 and result["metrics"]["reward"] == (1.0 + 0.25) / 2
    write_jsonl(tmp_path / "problems.jsonl", rows)
    assert "reward" not in grades(tmp_path, "eurus-code")["metrics"]


def test_gsm8k_with_hashes_is_graded_by_the_strict_filters(tmp_path):
    fields = {"prompt": "?", "problem": "?", "solution": "so", "answers": "####"}
    rows = [{**fields, "task_id": str(n), "answer": str(n)} for n in (7, 1000)]
    write_jsonl(tmp_path / "problems.jsonl", rows)
    samples = [("7", "so\n#### 7"), ("7", "\\boxed{7}"), ("1000", "#### 1,000"), ("1000", "so 1000")]
    lines = [{"task_id": name, "completion": text} for name, text in samples]
    write_jsonl(tmp_path / "samples.jsonl", lines)
    result = grades(tmp_path, "gsm8k")
    for field in ("passed", "official"):
        assert [row[field] for row in result["problems"].values()] == [[True, False], [True, False]]
    assert result["official"]["metric"] == "exact_match,strict-match" and result["disagreements"] == []
    write_oracle(get_task("gsm8k"), tmp_path / "problems.jsonl", tmp_path / "samples.jsonl")
    assert grades(tmp_path, "gsm8k")["metrics"]["pass@1"] == 1.0


def test_problems_with_two_forms_of_answers_are_refused(tmp_path):
    rows = [{"task_id": str(n), "prompt": "?", "answer": "2"} for n in range(3)]
    rows[2]["answers"] = "####"
    write_jsonl(tmp_path / "problems.jsonl", rows)
    write_jsonl(tmp_path / "samples.jsonl", [{"task_id": "0", "completion": "2"}])
    with refused("problems.jsonl:3: answers: '####'", "the first problem has 'boxed'"):
        grades(tmp_path, "gsm8k")


def test_a_file_as_published_is_read_too(tmp_path, real_data):
    rows = [{"question": "1+1?", "answer": "so\n#### 2"}, {"question": "500*2?", "answer": "so\n#### 1,000"}]
    write_jsonl(tmp_path / "problems.jsonl", rows)
    write_jsonl(tmp_path / "samples.jsonl", [{"task_id": i, "completion": "\\boxed{1000}"} for i in range(2)])
    result = grades(tmp_path, "gsm8k")
    assert [row["passed"] for row in result["problems"].values()] == [[False], [True]]


@pytest.mark.parametrize("task", ["gsm8k", "math500", "aime24", "omni-math"])
def test_prompt_and_answer_are_enough(tmp_path, task):
    answers = ["2", 3, 4.0, -5]  # a number may be written as one
    rows = [
        {"task_id": str(number), "prompt": "?", "answer": answer} for number, answer in enumerate(answers)
    ]
    write_jsonl(tmp_path / "problems.jsonl", rows)
    boxes = [f"\\boxed{{{answer}}}" for answer in (2, 3, 4, -5)]
    samples = [{"task_id": str(number), "completion": box} for number, box in enumerate(boxes)]
    write_jsonl(tmp_path / "samples.jsonl", samples)
    assert grades(tmp_path, task)["metrics"] == {"pass@1": 1.0, "official/pass@1": 1.0, "disagreements": 0}
    loaded = get_task(task).load(tmp_path / "problems.jsonl")
    assert [problem.answer for problem in loaded] == ["2", "3", "4", "-5"]


def test_a_chat_as_published_is_read_too(tmp_path):
    chats = [[{"role": "user", "content": f"1+{number}?"}] for number in range(2)]
    rows = [{"prompt": chat, "reward_model": {"ground_truth": "2"}} for chat in chats]
    write_jsonl(tmp_path / "problems.jsonl", rows)
    write_jsonl(
        tmp_path / "samples.jsonl", [{"task_id": i, "completion": f"\\boxed{{{i}2}}"} for i in range(2)]
    )
    result = grades(tmp_path, "dapo")
    assert [row["passed"] for row in result["problems"].values()] == [[True], [False]]


@needs_sandbox
@pytest.mark.parametrize("name", testbed.WORDY_TASKS)
def test_generated_tasks_are_graded_by_their_kind_without_an_entry_of_their_own(name, tmp_path):
    write_problems({"name": name, "test": 3}, tmp_path)
    problems, samples = tmp_path / "test.jsonl", tmp_path / "samples.jsonl"
    write_oracle(get_task(name), problems, samples)
    grade(name, samples, problems, tmp_path / "grades.json")
    found = read_json(tmp_path / "grades.json")
    assert found["metrics"] == {"pass@1": 1.0}
    assert len(found["problems"]) == 3


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_it_is_the_share_of_subsets_with_a_right_sample(flags, data):
    k = data.draw(st.integers(1, len(flags)))
    subsets = list(combinations(flags, k))
    expected = sum(any(subset) for subset in subsets) / len(subsets)
    assert pass_at_k(len(flags), sum(flags), k) == pytest.approx(expected)


def test_large_counts_stay_exact():
    assert pass_at_k(10_000, 1, 5_000) == pytest.approx(0.5)
    assert pass_at_k(10_000, 0, 10_000) == 0.0
    assert pass_at_k(10_000, 9_999, 2) == 1.0


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4), (0, 0, 1)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(ValueError):
        pass_at_k(n, c, k)


def test_problems_count_alike_whatever_their_samples():
    assert mean_pass_at_k([(1, 1), (9, 0)], 1) == 0.5


def test_reported_ks():
    assert [reported_ks(n) for n in (1, 4, 8, 32)] == [[1], [1, 4], [1, 8], [1, 8, 32]]
