import os
import re
import signal
import threading
from fractions import Fraction
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from troll.tasks.verifiers import math as verifier
from troll.tasks.verifiers.equality import equal_answers
from troll.tasks.verifiers.math import judge_math, last_boxed, math_rewards
from troll.tasks.verifiers.notation import is_scientific, plain
from troll.tasks.verifiers.numbers import number, same_number
from troll.tasks.verifiers.units import factor, quantity


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
    problems = [SimpleNamespace(answer="7", record={})] * len(completions)
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
    problems = [SimpleNamespace(answer=answer, record={}) for answer in answers]
    paid = [reward == 1.0 for reward in math_rewards(problems, texts)]
    assert dict(zip(DIFFERENT, paid, strict=True)) == {case: case[3] for case in DIFFERENT}


# Lines of a reference, right answers (✓), wrong ones (✗) and right ones that are not read (○), by kind.
ANSWERS = {
    "letters": r"""
\pi r^{2} h ✓ h\pi r^2 ✗ \pi r^{2}
\frac12 ab ✓ \frac{ab}{2} ✗ \frac12
p q r s ✓ pqrs ✗ p
5 ✗ 5t ✗ 5m ✗ 5 g ✗ 5s ✗ 5h ✗ 5c ✗ 5d ✗ 5l ✗ 5 o
6 ✗ 6 less ✗ 6 more
5t ✓ t5 ✗ 5
\frac{1}{m} t ✓ \frac tm ✓ \frac{t}{m} ✗ \frac1m
x^{2} t ✗ x^{2}
\frac{1}{2} m v^{2} ✓ \frac{m v^2}{2} ✗ \frac{1}{2} m
v t ✓ vt ✓ tv ✗ v
v ✗ v t
\frac{a}{b} c ✗ \frac{a}{b}
2 h ✗ 2
2 ✗ 2 bc
2 ab ✗ 2
e^{x} t ✗ e^{x}
\sqrt{2} g h ✗ \sqrt{2} g
\sqrt{2gh} ✗ \sqrt{2gh} t
12 ✗ 12 st
n^{2} ✗ n^{2} d
10 ✗ 10 by
3 ✗ 3 per
9 ✗ 9 th
\frac{3}{4} ✗ \frac{3}{4} o
7 ✗ 7 increase
a\cdot b\cdot c ✓ abc
v\cdot t ✓ vt
abc ✓ cba ✓ a\cdot b\cdot c
\frac{1}{2}gt^2 ✓ \frac{g t^{2}}{2}
2ab+c ✓ c+2ab
m g h ✓ mgh
""",
    "units": r"""
5 ✓ 5\text{ cm} ✓ 5 cm ✓ \$5 ✓ 5\text{ mph} ✓ 5厘米 ✓ 5\text{厘米} ✓ USD 5 ✓ 5 apples ✓ 5\ \mathrm{m}
5 ✓ 5\,\mathrm{kg\cdot m/s^2} ✓ 5.cm ✓ 5~\text{cm} ✓ \text{5 cm} ✓ \text{\$5} ✓ \$ 5 ✓ 5 $ ✓ 5\$ ✓ 5 km/h
5 ✓ 5\text{ m/s} ✓ 5 米 ✓ 5 个 ✓ 5度 ✓ 5名 ✓ 5\text{ meters per second} ✓ 5 \text{cm}^{2} ✗ 5\text{ hundred}
5 ✗ 5\text{ six} ✗ \$5\text{ or }\$6 ✗ 5x ✗ x5 ✗ 5 m/s ✗ 5\,m/s ✗ 5 percent
30 ✓ 30^\circ
15\mbox{ cm}^2 ✓ 15 ✓ 15\text{ square centimeters} ✗ 15\text{ cm}
864 \mbox{ inches}^2 ✓ 864
5.4 \text{ cents} ✓ 5.4
\$18.90 ✓ 18.9
\frac{270}7\text{ degrees} ✓ \frac{270}{7}
30^\circ ✓ 30 ✓ \frac{\pi}{6} ✓ 30\text{ degrees} ✓ \frac{\pi}{6}\text{ radians} ✓ 30度 ✗ 30\text{ radians}
30^\circ ✗ 0.5236\text{ rad}
5\text{ cm} ✓ 5 cm ✓ 5厘米 ✓ 50\text{ mm} ✓ 5\text{ centimeters} ✗ 5\text{ m} ✗ 5 m ✗ 5 mm ✗ 5米 ✗ 5 cm^2
5 cm ✓ 5\text{ cm} ✓ 5
99\pi \text{ square inches} ✓ 99\pi
99\pi ✓ 99\pi\text{ square inches}
25\,\text{km} ✓ 25 km
3 \mathrm{ft} / \mathrm{s} ✓ 3 ✓ 3\text{ ft/s} ✓ 3\text{ feet per second}
48 \mathrm{~km} / \mathrm{h} ✓ 48\text{ km/h} ✓ 48 km/h ✗ 48\text{ m/s}
1620 \mathrm{~mm}^{2} ✓ 1620\text{ mm}^2
5\text{ m} ✓ 5 m ✓ 500\text{ cm} ✓ x=5\text{ m}=500\text{ cm}
1\text{ hour} ✓ 60\text{ minutes}
\$5 ✓ 500\text{ cents} ✓ 5\text{ dollars} ✓ 5 USD ✗ 5\text{ cents}
\frac{3}{4}\pi\text{ inches} ✓ \frac{3\pi}{4}
5\sqrt2 ✓ 5\sqrt{2}\text{ cm}
\frac{\pi}{6} ✓ 30^\circ ✓ 30\text{ degrees} ✗ 30
575\text{ students} ✓ 575 ✓ 575 students
100\text{ square units} ✓ 100
25^{\circ} \mathrm{C} ✓ 25 ✓ 25°C ✓ 25\text{ degrees Celsius} ✓ 25^\circ ✗ 25^\circ F
18\text{ ways.} ✓ 18
12 ✓ 12元 ✓ 12个
30000 ○ 3万
15 ○ 15平方厘米
32.50 ✓ \text{\$}32.50 ✓ \textdollar 32.50
9\text{ a.m.} ✓ 9 ✗ 9\text{ p.m.}
5\text{ dollars} ✗ 5\text{ cents}
2\text{ hours} ✗ 2\text{ minutes}
5\text{ cm}^2 ✗ 5\text{ cm}^3
30\text{ radians} ✗ 30^\circ
5\text{ kg} ✗ 5\text{ pounds}
12\text{ square units} ✗ 12\text{ cubic units}
\sqrt2\text{ cm} ✗ \sqrt{2}\text{ m}
3 ✓ 3\text{ AM} ✗ 3万
-5 ✗ 5\text{ below}
5\text{ N} ○ 5\,\mathrm{kg\cdot m/s^2}
a ✗ a cm
x ✗ x m
10 ✓ 10 ft ○ 10\text{ years old} ✗ 10ft
10ft ✗ 10
2mg ✗ 2
2 ✗ 2 mg
\frac{1}{2}mv^2 ✓ \frac12 mv^2\text{ J}
\pi r^2 h ✓ \pi r^2 h\text{ cm}^3
s ✓ s
st ✗ s
kt ✗ k
n d ✗ n
1000 ✓ \$1,000
\$1,000 ✓ 1000
\$0.50 ✓ 50\text{ cents} ✓ 50¢
50\text{ cents} ✓ \$0.50 ✗ 0.50
-\$0.50 ✓ -0.5
-0.5 ✓ \$-0.50
60\text{ mph} ✓ 60 ✓ 60\text{ miles per hour} ✗ 60\text{ km/h}
5\text{ feet} ✓ 5\text{ ft} ✓ 60\text{ inches} ✗ 5'
2.5\text{ hours} ✓ 150\text{ min}
144 \mbox{ m}^3 ✓ 144\,m^3 ✓ 144\text{ cubic meters} ✓ 144\text{ m³} ✗ 144\text{ m²}
90\text{ square units} ✓ 90
0.25\,\text{ cm} ✓ \frac14\text{ cm}
12 \text{ gm} ✓ 12\text{ g} ✓ 12\text{ grams} ✗ 12\text{ kg}
7200 \mathrm{MB} ✓ 7.2\text{ GB}
50\% ✓ 50\text{ per cent}
6 ✓ 6\text{ units} ✗ 6\text{ less} ✗ 6\text{ less than x} ✗ 6\text{ units less}
3\text{ PM} ✗ 3\text{ AM}
""",
    "alternatives": r"""
12 ✓ x=12 ✓ x = 5+7 = 12 ✓ \{12\} ✓ \max(11,12) ✗ x = 1 \text{ or } x = 2 \text{ or } x=12
12 ✗ x = 11 \text{ and } x=12 ✗ x = 11 \lor x = 12 ✗ 11 = 12 ✗ 11 \text{ or } 12 ✗ x = 11 \vee x = 12
12 ✗ x=11; x=12 ✗ x=11, x=12 ✗ x_1=11, x_2=12 ✗ x = 11 \land x = 12 ✗ x = 11 \Rightarrow x = 12
12 ✗ 11 \Rightarrow 12 ✗ x=11 \implies x=12 ✗ x=11\text{ hence }x=12 ✗ x=11 x=12 ✗ x=11 or x=12
12 ✗ \text{either } 11 \text{ or } 12 ✗ 12 \text{ (or 11)} ✗ \begin{cases}x=11\\x=12\end{cases}
12 ✗ x=11\\x=12 ✗ 11 or 12 ✗ x=11 \quad x=12 ✗ x=11 \text{ } x=12 ✗ x\in\{11,12\} ✗ y=11, x=12
12 ✗ x=11 \text{ or } 12 ✗ 11 | 12 ✗ x = 11 \mid x = 12 ✗ \text{Answer } 11, \text{ no, } x=12
12 ✗ x=12 \text{ or } x=11 ✗ x=11\to x=12 ✗ x=11\therefore x=12 ✗ x=11, \text{ so } x=12 ✗ x=11 / x=12
12 ✗ x=11 & x=12 ✗ 11\neq x = 12 ✗ 12, \text{ or } 11 ✗ 12/11 ✗ 12 \cup 11 ✗ \text{12 or 11} ✗ 12 oder 11
12 ✗ 12\text{ oder }11 ✗ 12\text{ otherwise }11 ✗ 12 ; 11 ✗ 12|11 ✗ 12\,/\,11 ✗ 12\vee11 ✗ 11\oplus12
12 ✗ x=12\text{ (if) }x=11 ✗ 12=11 ✗ 12=x=11 ✗ x=12=11 ✗ 12\approx 11 ✗ x\approx 11=12 ✗ x=12, y=11
12 ✗ [11,12] ✗ (11,12) ✗ x=11\text{ or }12 ✗ \begin{array}{c}x=11\\x=12\end{array} ✗ x=11 x=12
12 ✗ x=11\newline x=12 ✗ x=11\cup x=12 ✗ x\ne 11, x=12 ✗ x=11, 12 ✗ x=11\quad\text{or}\quad x=12 ✗ 11<x=12
12 ✗ x=11+12 ✗ x=11\lor12 ✗ x=12\lor x=12 ✗ x=11\,\,\text{or}\,\,x=12 ✗ x=11\mathrm{~or~}x=12
12 ✗ x = 11 \operatorname{or} x=12 ✗ x = 11 \textbf{ or } x=12 ✗ x=11 OR x=12 ✗ x=11 ∨ x=12 ✗ x=11 \| x=12
12 ✗ x=11 或 x=12 ✗ x=11、x=12 ✗ x=11; 12
11 ✗ 12=x=11
p-q ✗ x=11=p-q
0 ✗ x=11 x=0 ✗ 0 = 11
3,5 ✓ x=3, x=2+3=5 ✗ x=11 x=3,5
m ✓ F=m ✗ x=11=m
(1,2) ✓ (x,y)=(2-1,2)=(1,2) ✗ A=(3,4)=(1,2) ✗ (x,y)=(3,4)=(1,2)
6 ✓ A=\frac12 bh=\frac12(3)(4)=6
2l+2w ✓ P=2(l+w)=2l+2w
3 \pm 2 \sqrt{2} ✓ 3 \pm 2 \sqrt{2} = y
\pi ✓ \pi = y
120 ✓ 5!=120
5 ✗ 5!=5
x=12 ✓ x=5+7=12 ✗ x=11 or x=12 ✗ x=11, x=12 ✗ x=11=12 ✗ x=12=11
\frac12 ✗ x=\frac13 \text{ or } x=\frac12
f(x)=x, f(x)=2-x ✓ f(x)=2-x, f(x)=x ✗ f(x)=2-x
1,2 ✓ x\in\{1,2\} ✓ (1,2) ✗ 2 ✗ 1,1,2 ✗ 1\text{ and }2\text{ and }3
1,2,12 ✓ x = 1 \text{ or } x = 2 \text{ or } x=12
11,12 ✓ x = 11 \lor x = 12 ✓ 12 or 11 ✓ x_1=12, x_2=11 ✓ x=11\quad\text{or}\quad x=12
11,12 ✓ x=11\mathrm{~or~}x=12 ✓ x = 11 \textbf{ or } x=12 ✓ x=11 ∨ x=12 ✓ x=11 或 x=12 ✓ 11、12 ✓ x=11，x=12
\{11,12\} ✓ x=11 \text{ and } x=12
x=11 or x=12 ✓ x=12,x=11
f(x)=x,f(x)=-x ✓ f(x)=x\text{ or }f(x)=-x
12\text{ and }13 ✓ 13,12
7, -2, \text{ and } -5 ✓ -5,-2,7
2\pm\sqrt3 ✓ x=2+\sqrt3 \text{ or } x=2-\sqrt3
2+\sqrt3, 2-\sqrt3 ✓ x=2\pm\sqrt3
1\pm\sqrt{19} ✓ x=1+\sqrt{19}, x=1-\sqrt{19}
(1,2),(2,1) ✓ (x,y)=(2,1)\text{ or }(1,2) ✓ x=1,y=2 \text{ or } x=2,y=1
x=\frac12 ✗ x=\frac13=\frac12
no solution ✓ \text{no solution}
\text{no solution} ✗ \emptyset
1,2,3 ✓ 1,2\text{ and }3 ✓ 1,2,\text{ and }3 ✗ 1,2
\{1,2,3\} ✓ 1,2,3
(1,2] ✓ 1<x\le2
""",
    "names": r"""
x=1,y=2 ✓ (1,2) ✓ y=2,x=1 ✓ (x,y)=(1,2) ✓ x=1 \text{ and } y=2 ✓ \begin{cases}x=1\\y=2\end{cases} ✓ 1,2
x=1,y=2 ✗ (2,1) ✗ y=1,x=2 ✗ a=1,b=2 ✗ x=1 ✗ 2,1 ✗ X=1,Y=2
(1,2) ✓ y=2,x=1 ✓ x=1,y=2 ✓ (x,y)=(1,2) ✓ (y,x)=(2,1) ✓ x=1\text{ and }y=2 ✓ y=2\text{ and }x=1 ✗ y=1,x=2
(1,2) ✗ x=2,y=1 ✗ (x,y)=(2,1) ✗ x=1 ✗ (y,x)=(1,2)
(1,2,3) ✓ z=3,x=1,y=2 ✗ x=1,z=2,y=3
a=1,b=2,c=3 ✓ 1,2,3 ✗ 3,2,1
\angle BEA_1=90,\angle AEB_1=90 ✓ 90,90
f(n)=n, g(n)=1 ✓ g(n)=1,f(n)=n ✗ f(n)=1,g(n)=n
X ✗ x
Mm ✗ m^2
MR=SRMC ✓ SRMC=MR
E ✗ e
ab ✗ AB
x=5 ✗ y=5
\Gamma ✗ \gamma
12 ✗ 5\text{ 7}
x ✓ \frac{x^2}{x}
(3, \frac{\pi}{2}) ✓ r=3,\theta=\frac{\pi}{2} ✓ \theta=\frac{\pi}{2}, r=3 ✗ \theta=3, r=\frac{\pi}{2}
(1,2),(3,4) ✓ (x,y)=(3,4),(1,2) ✓ (x,y)=(3,4)\text{ or }(x,y)=(1,2) ✓ x=1,y=2; x=3,y=4 ✗ (x,y)=(4,3),(1,2)
(1,2),(3,4) ✗ x=1,y=2
1,2 ✓ x=1,y=2
x=1 ✓ 1 ✗ y=1
1 ✓ y=1 ○ 2^{10} \bmod 11 = 1
A=1 ✗ a=1
a=2, a=-6-4 \sqrt{2} ✓ 2,-6-4\sqrt2 ✗ a=-6-4\sqrt2
k=3 ✓ 3
AB=5 ✓ 5
5 ✓ AB=5 ✓ |AB|=5 ✓ [ABC]=5 ✓ \text{Area} = 5 ✓ \text{Area of }ABC = 5\text{ cm}^2 ✓ $5$
\frac12 ✓ P(X=1)=\frac12 ✓ \Pr[A|B]=1/2
10 ✓ \binom{5}{2}=10
2 ✗ 2^{10} \bmod 11 = 1
y=2x+1 ✓ 2x-y+1=0 ✓ y-1=2x ✗ y=2x+2 ✗ x=2y+1
R ✗ r
\Omega ✗ \omega
F=ma ✓ F=am ✗ f=ma
""",
    "angles": r"""
\sin30^\circ ✗ \sin 30
\sin30 ✗ \sin 30^\circ
1 ✓ \tan45^\circ ✓ \sin 90^{\circ} ✓ \sin 90\degree
\frac{\sqrt2}{2} ✓ \sin 45^\circ
\frac{1}{2} ✓ \cos 60^{\circ} ✓ \cos(60°) ✗ \cos 60
\sin 18^\circ ✓ \cos 72^\circ
(45^{\circ}, 60^{\circ}) ✓ (45,60) ✓ (\frac{\pi}{4},\frac{\pi}{3})
90^{\circ},60^{\circ} ✓ 60,90 ✓ 60^\circ, 90^\circ
45^\circ ✓ \angle A=180^\circ-135^\circ=45^\circ ✓ \theta = 45^\circ ✓ \arctan 1=45^\circ ✓ \arctan 1
\sin 60^\circ ✓ \frac{\sqrt3}{2}
\frac{\sqrt3}{2} ✓ \sin(60^\circ) ✓ \sin{60^\circ}
\frac{1}{4} ✓ \sin^2 30^\circ
2 ✓ 4\sin30^{\circ}
2\sin 10^\circ ✓ 2\sin(10^\circ) ✓ 2\sin\frac{\pi}{18} ✗ 2\sin 10
\tan^{-1}(2) ✓ \arctan 2
180^\circ - x ✓ 180-x
90^\circ-\alpha ✓ 90^\circ - \alpha
0 ✓ \cos\frac{\pi}{2} ✗ \cos 90
""",
    "inequalities": r"""
2<x<3 ✓ 3>x>2 ✓ 2<x,x<3 ✗ 3>=x>2 ✗ 2<y<3 ✗ 3<x<2 ✗ 2<x
(-\infty,1)\cup(3,\infty) ✓ x<1 or x>3 ✓ x<1\text{ or }x>3 ✗ x<1\text{ or }x\ge3
x<1 or x>3 ✓ (-\infty,1)\cup(3,\infty) ✓ x>3, x<1
x<1\text{ or }x>3 ✓ x>3 or x<1 ✗ x<1
x>3 ✓ x>3\text{ or }x>4 ✗ x<1 \text{ or } x>3
(2,3) ✓ x>2 and x<3
1<x<2 ✓ 2>x>1 ✓ x>1 and x<2 ✓ x>1, x<2 ✓ 1<x\text{ and }x<2 ✗ x<1 or x>2
x\le -1\text{ or }x\ge1 ✓ (-\infty,-1]\cup[1,\infty) ✓ |x|\ge1
(-\infty,-1]\cup[1,\infty) ✓ x\in(-\infty,-1]\cup[1,\infty) ○ x\in(-\infty,-1]\text{ or }x\in[1,\infty)
a<x<b ✓ b>x>a ✗ a>x>b
{n\leq k\leq\lceil\tfrac32n\rceil} ✓ n\leq k\leq\left\lceil\frac{3n}{2}\right\rceil ✗ n\leq k\leq\frac{2n}{3}
n\le k\le\frac{3}{2}n ✓ n\leq k\leq\frac{3n}{2} ✓ \frac{3n}{2}\ge k\ge n ✗ k\le n\le\frac{3n}{2}
""",
    "products": r"""
7 ✗ (3)(4) ✗ 3(4) ✗ 3{4}
12 ✓ (3)(4) ✓ 3(4) ✗ 3{4}
-12 ✓ (-3)(4)
18 ✓ 3\binom{4}{2}
9 ✗ 3\binom{4}{2}
\frac52 ✓ 2\frac12
-\frac52 ✓ -2\frac12
2\frac12 ✓ 5/2
3 ✓ 2\frac32
\frac72 ✗ 2\frac32 ✗ 3(\frac12)
10 ✓ 4\frac{1}{2}+5\frac12
""",
    "typesetting": r"""
E_{1},E_{2} ✓ \textcolor{red}{E_{1},E_{2}}
e^{-1} ✓ \frac{1}{\mathrm e} ✓ \frac{1}{\text{e}} ✓ 1/\mathrm{e}
\frac{9}{4} ✓ 2 1/4 ✓ 2\ 1/4
-\frac{9}{4} ✓ -2 1/4
2\frac14 ✓ 2 1/4
2/4 ✗ 2 1/4
5 ✓ \textcolor{red}{5} ✓ {\color{red}5} ✓ \color{red}{5} ✓ \underline{5} ✓ \underline{\underline{5}}
5 ✓ \bf 5 ✓ {\bf 5} ✓ `5` ✓ \text{5} ✓ **5** ✓ \colorbox{yellow}{5} ✓ \ensuremath{5} ✓ \mathrm{5}
5 ✓ \Large 5 ✓ \overline{AB}=5 ✓ \phantom{4}5 ✓ \rm 5 ✓ \mathtt{5} ✓ \textnormal{5}
5 ✓ \fcolorbox{red}{white}{5} ✓ \color[rgb]{1,0,0}{5} ✓ \(5\) ✓ *5* ✗ \cancel{5} ✗ \underbrace{2+3}_{5}
5 ✗ \mathbb{5} ✗ \sout{5} ✗ \cancel{4}5 ✗ \overline{5} ✗ \overset{!}{5} ✗ **5 ✗ "5"
\frac{3}{4} ✓ \text{3/4} ✓ \mathbf{\frac{3}{4}} ✓ \textcolor{blue}{\frac34}
57 ✗ 5\text{7}
11_2 ✓ 11_{\text{two}} ✓ 11_\text{two} ✓ 11_{two} ✓ (11)_2 ✓ 11\text{ (base 2)} ✓ 11_{\mathrm{two}}
11_2 ✓ 11_{(2)} ✓ 11_2 ✗ 11_{\text{three}}
\text{no} ✗ on
\text{odd} ✓ odd ✓ \text{Odd}
\text{(E)} ✓ E ✓ \text{E}
\text{even} ✗ \text{odd}
10 ✓ \sum_{k=1}^{4} k = 10
M_1 ✗ m_1
A_1 ✗ A ✗ A_2 ✗ a_1
e^2 ✓ \mathrm{e}^2
e ✓ \mathrm e
i ✓ \mathrm i
\frac{7}{3} ✓ 2\text{ }1/3 ✓ 2 1/3 ✓ 2\tfrac{1}{3} ✓ 2+\frac13 ✓ 2⅓
\frac{2}{3} ✗ 2 1/3
3/4 ✓ `3/4` ✓ \frac{\textcolor{red}{3}}{4}
x+1 ✓ \textcolor{red}{x}+\textcolor{blue}{1}
1011_2 ✓ 1011_{\text{ two}} ✓ (1011)_{\text{two}} ✓ 1011_{\text{base }2} ✓ 1011 ✗ 1011_{10} ✗ 11
{11111001110_8} ✓ \displaystyle {11111001110_8} ✗ \displaystyle {11111001110_2}
52_8 ✓ n=52_8 ✓ n=52_{\text{eight}} ✗ n=52_9
-1./3 ✓ x=-1./3
e^{23110} ✗ e^{23110}+1
10^{100} ✗ 10^{100}+1
\pi ✗ \pi+10^{-60}
""",
    "right values with more around them": r"""
-2 ✗ x \not = -2 ✗ \not -2 ✗ \infty = -2 ✗ \infty -2 ✗ x=!=-2 ✗ 2 - - -2
130 ✗ 1^\circ30.0 ✗ ^\circ130 ✗ \text{ million} 130 ✗ 130+\infty ✗ 130\approx \text{ cm}
10 ✗ {5}{2}=10 ✗ {5}{2} ✗ {10}1 ✗ \mathbf{10}1 ✗ 1. 0 ✗ 10^1^1 ✗ 10+0i+\infty ✗ (10 ✗ 10)
10 ✗ =10 ✗ 10= ✗ 1{0} ✗ 10\text{} 1 ✗ 5+5\% ✗ 10_{11} ✗ 10\hat{} ✗ \hat{10}
\frac{9}{2} ✗ P' \not = \frac{9}{2} ✗ P\ne\frac{9}{2} ✗ \frac{9}{2°}0 ✗ 4\frac{1}{2}1
\frac{9}{2} ✗ \frac{9}{2}\text{ dozen}
(8,3,-1) ✗ (8,=3,-1) ✗ (8,,3,-1) ✗ (8,3,-1 ✗ (8,3,-1)) ✗ (8,3),-1 ✗ 8,(3,-1) ✗ (8,3,-1)1
(8,3,-1) ✗ (8,3,-1),(8,3,-1)
(-\infty,4) ✗ (\pi-\infty,4) ✗ (-2\infty,4) ✗ (-\infty,4)\cup(3,4) ✗ (-\infty,4)\cap(3,5) ✗ (-\infty,4]
\text{B, E, G} ✗ \text{B, E,^[ G} ✗ \text{B, E} ✗ \text{B, E, G, H}
2<x<3 ✗ 2<x ✗ x<2<3 ✗ 2<3 ✗ 2\le x<3 ✗ x\in[2,3)
""",
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_rewards_tell_right_answers_from_wrong_ones(kind):
    rows = [
        (reference.strip(), answer.strip(), mark == "✓")
        for line in ANSWERS[kind].strip().splitlines()
        for reference, *rest in [re.split("([✓✗○])", line)]
        for mark, answer in zip(rest[::2], rest[1::2], strict=True)
    ]
    statuses = judge_math(
        [row[0] for row in rows], [rf"\boxed{{{row[1]}}}" for row in rows], standard="reward"
    )
    found = [status == "passed" for status in statuses]
    assert [row for row, passed in zip(rows, found, strict=True) if passed != row[2]] == []


@given(
    st.integers(-(10**9), 10**9), st.integers(1, 10**4), st.integers(1, 999), st.sampled_from([1, 7, 1000])
)
def test_numbers_are_read_exactly(top, bottom, other, scale):
    value, sign = Fraction(top, bottom), "-" if top < 0 else ""
    whole, rest = divmod(abs(top), bottom)
    forms = {
        f"{top}/{bottom}": value,
        f"{sign}\\frac{{{abs(top) * scale}}}{{{bottom * scale}}}": value,
        f"{top - other} \\cdot \\frac{{1}}{{{bottom}}} + {other}/{bottom}": value,
        f"({top})({other}) / ({other * bottom})": value,
        f"{sign}{whole} \\tfrac{{{rest}}}{{{bottom}}}": value,
        f"{top:,}.{other:03}": top + (-1 if top < 0 else 1) * Fraction(other, 1000),
        f"{top}.{other:03}\\times 10^{{-2}}": (top + (-1 if top < 0 else 1) * Fraction(other, 1000)) / 100,
        f"{sign}0.\\overline{{{other:03}}}": Fraction(other, -999 if sign else 999),
        f"{top}.{other:03}\\%": (top + (-1 if top < 0 else 1) * Fraction(other, 1000)) / 100,
        f"2^{{{other % 50}}} \\div {bottom}": Fraction(2 ** (other % 50), bottom),
    }
    assert {form: number(plain(form)) for form in forms} == forms


NO_NUMBERS = (
    *("", "x", "1 2", "1{2}", "{1}{2}", "5+3%", "2^{1/2}", "2^3^2", "(1", "1)", "1,2", "1//2", "1-", "1/0"),
    *("½½", "１", "1_000", "5!", "%", r"\frac{1}", r"\sqrt{4}", "9^{9^{9}}", "10^{40000}", "9" * 301),
    *("(" * 290, "(" * 145 + "1" + ")" * 145 + "x", r"\frac{1}{" * 30),
)


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_what_is_not_one_number_is_none(text):
    assert number(text) is None


@pytest.mark.parametrize(
    ("unit", "into", "expected"),
    [
        ("cm", "m", Fraction(1, 100)),
        ("km/h", "m/s", Fraction(5, 18)),
        ("mile/hour", "miles per hour", Fraction(1)),
        ("square centimeters", "m^2", Fraction(1, 10000)),
        ("cm^3", "cm^2", None),
        ("minutes", "m", None),
        ("square units", "cm^2", Fraction(1)),
        ("cubic units", "cm^2", None),
        ("cents", r"\$", Fraction(1, 100)),
        ("parsecs", "m", None),
        ("parsecs", "", Fraction(1)),
    ],
)
def test_units_convert_exactly_or_contradict(unit, into, expected):
    assert factor(unit, into) == expected


def test_no_verdict_depends_on_what_was_judged_before():
    """sympy has one object for relations that are equal, whichever comes first."""
    chain, other, turned = r"n\le k\le\frac{3}{2}n", r"n\le k\le\frac{3n}{2}", r"\frac{3n}{2}\ge k\ge n"
    for answer in (other, turned, other, other, turned, turned):
        assert equal_answers(chain, answer), answer
        assert equal_answers(answer, chain), answer


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
JUNK = (
    *(
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
        "囧",
    ),
    *("\\\\6", "~6", ";6", ":6", " 6", ",6", "e1", "x", "\\%"),
    *("\\foo", "\\neq", "\\to", "\\not", "\\times", "\\pm"),
)


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
        same_number(one, other), is_scientific(one), quantity(plain(one), like=plain(other))
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


@pytest.fixture
def pool(monkeypatch):
    """A pool of one process of its own."""
    pool = verifier._Pool(1)
    monkeypatch.setattr(verifier, "_pool", lambda: pool)
    yield pool
    pool.close()


def test_a_comparison_that_hangs_is_cut_off_and_the_others_are_judged(pool, monkeypatch):
    assert judge_math(["1"], [r"\boxed{\frac{2}{2}}"]) == ["passed"]
    (worker,) = pool._workers
    os.kill(worker._process.pid, signal.SIGSTOP)  # stands for a process that waits for something, for ever
    original = verifier.Worker.send

    def send(self, *arguments):
        original(self, *arguments)
        if self is worker:
            self.deadline = 0.0  # its time is over, and that of others is not

    monkeypatch.setattr(verifier.Worker, "send", send)
    boxes = [r"\boxed{\frac{4}{2}}", r"\boxed{\frac{6}{3}}", r"\boxed{\frac{6}{4}}"]
    statuses = judge_math(["2", "2", "2"], boxes)
    assert sorted(statuses) in (["passed", "timeout", "wrong"], ["passed", "passed", "timeout"])


def test_a_busy_machine_turns_no_right_answer_into_a_timeout(pool):
    judge_math(["1"], [r"\boxed{\frac{2}{2}}"])
    pid = pool._workers[0]._process.pid
    os.kill(pid, signal.SIGSTOP)  # it gets no core for longer than the time that it has
    threading.Timer(1.0, os.kill, (pid, signal.SIGCONT)).start()
    assert judge_math(["2"], [r"\boxed{\frac{4}{2}}"], timeout_s=0.5) == ["passed"]


def test_a_computation_without_end_is_cut_off_by_its_cpu_time(pool):
    boxes = [r"\boxed{(10^{9})!}", r"\boxed{\frac{4}{2}}"]
    assert judge_math(["1", "2"], boxes, timeout_s=1.0) == ["timeout", "passed"]


def test_a_worker_that_dies_is_replaced_and_only_its_item_is_lost(pool, monkeypatch):
    judge_math(["1"], [r"\boxed{\frac{2}{2}}"])
    os.kill(pool._workers[0]._process.pid, signal.SIGSTOP)
    original = verifier.Worker.send

    def send(self, *arguments):
        original(self, *arguments)
        if len(asked) == 0:
            self._process.kill()
        asked.append(arguments)

    asked = []
    monkeypatch.setattr(verifier.Worker, "send", send)
    statuses = judge_math(["3", "3"], [r"\boxed{\frac{6}{2}}", r"\boxed{\frac{9}{3}}"])
    assert sorted(statuses) == ["crash", "passed"]


def test_each_pair_is_judged_once(pool, monkeypatch):
    asked = []
    original = verifier.Worker.send
    monkeypatch.setattr(verifier.Worker, "send", lambda self, *a: (asked.append(a[0]), original(self, *a)))
    for _ in range(2):
        assert judge_math(["5"] * 3, [r"\boxed{\frac{10}{2}}"] * 3) == ["passed"] * 3
    assert asked == [[verifier.TIMEOUT_S, "evaluation", "5", r"\frac{10}{2}"]]


def test_a_missing_math_verify_names_what_to_install(pool, monkeypatch, tmp_path):
    (tmp_path / "math_verify.py").write_text("raise ImportError('no math_verify')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with refused("math-verify", "pip install"):
        judge_math(["5"], [r"\boxed{\frac{10}{2}}"])


def test_a_process_that_starts_too_late_is_not_taken_for_a_missing_package(pool, monkeypatch):
    monkeypatch.setattr(verifier, "_START_S", 0.0)
    with refused("math-verify", "0 seconds"):
        judge_math(["5"], [r"\boxed{\frac{10}{2}}"])


def test_unequal_lengths_are_refused():
    with pytest.raises(ValueError):
        judge_math(["1"], [])
