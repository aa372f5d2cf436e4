import os
import signal
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from troll.common.errors import UserError
from troll.tasks.verifiers import math as verifier
from troll.tasks.verifiers.math import judge_math, last_boxed, math_rewards
from troll.tasks.verifiers.notation import contradicts, is_scientific, respelled, same_number


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so \boxed{7}.", "7"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {7}", "7"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{7} and \boxed{8", "7"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\fbox{9}", "9"),
        (r"\boxed{}", ""),
        (r"\boxed7", None),
        ("boxed{7}", None),
        ("7", None),
        ("", None),
        ("\\boxed{" * 500, None),
    ],
)
def test_last_box(text, content):
    assert last_boxed(text) == content


@given(st.text(r"\{}boxed 1", max_size=40))
def test_last_box_is_balanced_and_in_the_text(text):
    content = last_boxed(text)
    if content is not None:
        assert content in text
        plain = content.replace("\\\\", "").replace("\\{", "").replace("\\}", "")
        assert plain.count("{") == plain.count("}")


@given(st.integers(-(10**20), 10**20), st.integers(-(10**20), 10**20), st.sampled_from(["", "+", "00", " "]))
def test_integers_are_compared_as_integers(answer, other, prefix):
    if prefix and other < 0:
        prefix = ""
    assert judge_math(
        [str(answer)], [rf"\boxed{{{prefix}{answer}}}"] if answer >= 0 else [rf"\boxed{{{answer}}}"]
    ) == ["passed"]
    expected = "passed" if answer == other else "wrong"
    assert judge_math([str(answer)], [rf"\boxed{{{prefix}{other}}}"]) == [expected]


def test_integers_and_missing_boxes_need_no_process(monkeypatch):
    monkeypatch.setattr(verifier, "_pool", lambda: pytest.fail("math-verify was asked"))
    completions = [r"\boxed{7}", r"\boxed{8}", "7", r"\boxed{}", r"\boxed{ }", r"\boxed{7", "", r"\boxed{07}"]
    problems = [SimpleNamespace(answer="7")] * len(completions)
    assert math_rewards(problems, completions) == [1.0, 0, 0, 0, 0, 0, 0, 1.0]


RIGHT = [
    (r"\frac{1}{2}", r"0.5"),
    (r"\frac{1}{2}", r"\dfrac12"),
    ("x^2", r"x \cdot x"),
    (r"(1,2)", r"(1, 2)"),
    (r"\sqrt{8}", r"2\sqrt{2}"),
    ("1000", "1,000"),
    ("10", r"\$10"),
    ("10", r"$10$"),
    ("10", r"10\text{ cm}"),
    (r"\{1,2\}", r"\{2,1\}"),
    ("7", "3+4"),
]
WRONG = [
    (r"\frac{1}{2}", "0.51"),
    ("x^2", "x^3"),
    ("(1,2)", "(2,1)"),
    ("7", "7 or 8 or 9"),
    ("7", r"\text{seven}"),
    ("7", "}{"),
    ("7", "8$ or $7"),
    ("7", "\\{7, 8\\}"),
    ("7", "^" * 300),
    ("7", "import os"),
]


@pytest.mark.parametrize("standard", ["evaluation", "reward"])
def test_what_is_no_integer_goes_through_math_verify(standard):
    pairs = RIGHT + WRONG
    answers, texts = [answer for answer, _ in pairs], [rf"so \boxed{{{box}}}" for _, box in pairs]
    statuses = judge_math(answers, texts, standard=standard)
    assert statuses[: len(RIGHT)] == ["passed"] * len(RIGHT)
    assert "passed" not in statuses[len(RIGHT) :]


# What math-verify as published says, which evaluation keeps, and what is paid for.
DIFFERENT = [
    ("(1,2)", r"\{1,2\}", True, False),
    (r"[0,\infty)", r"[0,\infty]", True, False),
    ("5", r"\neq 5", True, False),
    ("5", "6=5", True, False),
    ("10", r"10\%", True, False),
    (r"\frac{1}{3}", "0.3333333", True, False),
    ("5", "5²", True, False),
    ("12", r"5\quad7", True, False),
    (r"2^{-1990}", r"1.1\times10^{-30}", True, False),
    (r"\frac{3}{4}", r"75\%", False, True),
    (r"50\%", "0.5", False, True),
    ("(1,2)", r"\bigl(1,2\bigr)", False, True),
    (r"(1,2)\cup(3,4)", r"(1,2)\bigcup(3,4)", False, True),
    (r"[0,\infty)", r"x\ge 0", False, True),
    (r"\frac{1}{3}", r"0.\overline{3}", False, True),
    ("4i", r"4\mathrm{i}", False, True),
]


def test_rewards_ask_for_the_exact_value_and_evaluation_is_math_verify_as_published():
    answers, texts = [case[0] for case in DIFFERENT], [rf"\boxed{{{case[1]}}}" for case in DIFFERENT]
    published = [status == "passed" for status in judge_math(answers, texts)]
    assert dict(zip(DIFFERENT, published, strict=True)) == {case: case[2] for case in DIFFERENT}
    problems = [SimpleNamespace(answer=answer) for answer in answers]
    paid = [reward == 1.0 for reward in math_rewards(problems, texts)]
    assert dict(zip(DIFFERENT, paid, strict=True)) == {case: case[3] for case in DIFFERENT}


@pytest.mark.parametrize("standard", ["evaluation", "reward"])
def test_references_in_scientific_notation_are_numbers(standard):
    right = [
        r"4.5\times10^{33}",
        r"4.5 \cdot 10^{33}\text{ erg}",
        "4.5E33",
        "4.5×10³³",
        r"E=4.5\times10^{33}",
    ]
    wrong = ["148.5e", "4.5", r"4.5\times10^{32}", r"4.6\times10^{33}", "0"]
    texts = [rf"\boxed{{{box}}}" for box in right + wrong]
    statuses = judge_math(["4.5e33"] * len(texts), texts, standard=standard)
    assert statuses == ["passed"] * len(right) + ["wrong"] * len(wrong)
    small = ["4.5e-34", r"6.63\times10^{-34}"]
    assert judge_math(small, [r"\boxed{1\times10^{-34}}"] * 2, standard=standard) == ["wrong"] * 2


# A parser may pass over each of them; a reader would not take it with 5 for 5.
JUNK = [
    "²",
    "½",
    "@",
    "#",
    "%",
    "&",
    "?",
    "_",
    "_2",
    "^",
    "^2",
    "/",
    "<",
    ">",
    "!",
    "!=",
    "'",
    '"',
    "|",
    "*",
    "個",
]
JUNK += [
    "\\\\6",
    "~6",
    ";6",
    ":6",
    " 6",
    ",6",
    "e1",
    "\\foo",
    "\\neq",
    "\\to",
    "\\not",
    "\\times",
    "\\pm",
    "x",
    "\\%",
]


def test_junk_beside_a_number_is_not_passed_over():
    boxes = {box for junk in JUNK for box in (f"{junk}5", f"5{junk}", f"5{junk}5", f"x={junk}5")}
    texts = [rf"\boxed{{{box}}}" for box in sorted(boxes - {"5_25"})]  # that is 5, in base 25
    statuses = judge_math(["5"] * len(texts), texts, standard="reward")
    assert [text for text, status in zip(texts, statuses, strict=True) if status == "passed"] == []


@pytest.mark.parametrize(
    "answer", [r"\frac{1}{3}", "5", r"50\%", "4.5e33", r"\text{odd}", "(1,2)", r"x\ge 0", "%%"]
)
@given(text=st.text(r"\{}()[]^_%$.,=+-e0123 frac", max_size=12))
def test_reading_notations_never_fails(answer, text):
    for one, other in ((answer, text), (text, answer)):
        same_number(one, other), is_scientific(one), contradicts(respelled(one), respelled(other))
    assert same_number(text, text) in (True, None)


@pytest.mark.parametrize(
    "unit",
    ["1", "1,", "0.3", r"\text{m}", r"\text{a}^1 ", "2 345 ", r"\frac", "e9", r"\quad ", "(", "^9", "9!"],
)
def test_answers_without_end_are_no_numbers_and_end_nothing(unit):
    for text in (unit * 400, unit * 5_000, f"{unit * 300}!", f"1e{'9' * 5}", f"0.{'3' * 6_000}..."):
        (verdict,) = judge_math([text], [rf"\boxed{{{text}7}}"], standard="reward")
        assert verdict in ("wrong", "timeout")  # by the speed of the machine


def test_the_last_box_takes_linear_time():
    assert last_boxed("\\boxed{" * 100_000) is None
    assert last_boxed("\\boxed{7}" + "\\boxed{" * 20_000) == "7"
    assert last_boxed("\\boxed{" * 10_000 + "7" + "}" * 10_000) == "7"
    assert last_boxed("\\boxed{{" * 10_000 + "\\boxed{7}" + "{" * 50_000) == "7"


def test_only_the_end_of_a_completion_without_end_is_searched():
    assert last_boxed("x" * 10**7 + r"\boxed{7}") == "7"
    assert last_boxed(r"\boxed{7}" + "x" * 10**6) is None


def test_it_works_outside_the_main_thread():
    found = []
    thread = threading.Thread(target=lambda: found.extend(judge_math(["2"], [r"\boxed{\frac{4}{2}}"])))
    thread.start()
    thread.join()
    assert found == ["passed"]


def test_a_comparison_that_hangs_is_cut_off_and_the_others_are_judged(monkeypatch):
    pool = verifier._Pool(1)
    monkeypatch.setattr(verifier, "_pool", lambda: pool)
    assert judge_math(["1"], [r"\boxed{\frac{2}{2}}"]) == ["passed"]
    (worker,) = pool._workers
    os.kill(worker._process.pid, signal.SIGSTOP)  # stands for a process that waits for something, for ever
    original = verifier._Worker.ask

    def ask(self, *arguments):
        original(self, *arguments)
        if self is worker:
            self.deadline = 0.0  # its time is over, and that of others is not

    monkeypatch.setattr(verifier._Worker, "ask", ask)
    boxes = [r"\boxed{\frac{4}{2}}", r"\boxed{\frac{6}{3}}", r"\boxed{\frac{6}{4}}"]
    statuses = judge_math(["2", "2", "2"], boxes)
    assert sorted(statuses) in (["passed", "timeout", "wrong"], ["passed", "passed", "timeout"])
    pool.close()


def test_a_busy_machine_turns_no_right_answer_into_a_timeout(monkeypatch):
    pool = verifier._Pool(1)
    monkeypatch.setattr(verifier, "_pool", lambda: pool)
    judge_math(["1"], [r"\boxed{\frac{2}{2}}"])
    pid = pool._workers[0]._process.pid
    os.kill(pid, signal.SIGSTOP)  # it gets no core for longer than the time that it has
    threading.Timer(1.0, os.kill, (pid, signal.SIGCONT)).start()
    assert judge_math(["2"], [r"\boxed{\frac{4}{2}}"], timeout_s=0.5) == ["passed"]
    pool.close()


def test_a_computation_without_end_is_cut_off_by_its_cpu_time(monkeypatch):
    pool = verifier._Pool(1)
    monkeypatch.setattr(verifier, "_pool", lambda: pool)
    boxes = [r"\boxed{(10^{9})!}", r"\boxed{\frac{4}{2}}"]
    assert judge_math(["1", "2"], boxes, timeout_s=1.0) == ["timeout", "passed"]
    pool.close()


def test_a_worker_that_dies_is_replaced_and_only_its_item_is_lost(monkeypatch):
    pool = verifier._Pool(1)
    monkeypatch.setattr(verifier, "_pool", lambda: pool)
    judge_math(["1"], [r"\boxed{\frac{2}{2}}"])
    os.kill(pool._workers[0]._process.pid, signal.SIGSTOP)
    original = verifier._Worker.ask

    def ask(self, *arguments):
        original(self, *arguments)
        if len(asked) == 0:
            self._process.kill()
        asked.append(arguments)

    asked = []
    monkeypatch.setattr(verifier._Worker, "ask", ask)
    statuses = judge_math(["3", "3"], [r"\boxed{\frac{6}{2}}", r"\boxed{\frac{9}{3}}"])
    assert sorted(statuses) == ["crash", "passed"]
    pool.close()


def test_each_pair_is_judged_once(monkeypatch):
    pool = verifier._Pool(1)
    monkeypatch.setattr(verifier, "_pool", lambda: pool)
    asked = []
    original = verifier._Worker.ask
    monkeypatch.setattr(verifier._Worker, "ask", lambda self, *a: (asked.append(a[1]), original(self, *a)))
    for _ in range(2):
        assert judge_math(["5"] * 3, [r"\boxed{\frac{10}{2}}"] * 3) == ["passed"] * 3
    assert asked == [("evaluation", "5", r"\frac{10}{2}")]
    pool.close()


def test_a_missing_math_verify_names_what_to_install(monkeypatch, tmp_path):
    (tmp_path / "math_verify.py").write_text("raise ImportError('no math_verify')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    pool = verifier._Pool(1)
    monkeypatch.setattr(verifier, "_pool", lambda: pool)
    with pytest.raises(UserError, match=r"math-verify.*pip install"):
        judge_math(["5"], [r"\boxed{\frac{10}{2}}"])
    pool.close()


def test_a_process_that_starts_too_late_is_not_taken_for_a_missing_package(monkeypatch):
    monkeypatch.setattr(verifier, "_START_S", 0.0)
    pool = verifier._Pool(1)
    monkeypatch.setattr(verifier, "_pool", lambda: pool)
    with pytest.raises(
        UserError, match=r"^math-verify: its process did not start within 0 seconds.*too busy"
    ):
        judge_math(["5"], [r"\boxed{\frac{10}{2}}"])
    pool.close()


def test_unequal_lengths_are_refused():
    with pytest.raises(ValueError):
        judge_math(["1"], [])
