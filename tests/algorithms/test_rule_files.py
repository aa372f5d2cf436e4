"""Trust regions in files of their own: found by path and function, told apart by content."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from policy_cases import make_case
from refusals import check_facts, refused

from troll.algorithms.advantages import make_estimator
from troll.algorithms.trust_regions import TRUST_REGIONS, make_trust_region
from troll.common.user_files import file_digest
from troll.experiment.experiment import resolve
from troll.experiment.files import parse_experiment

RULE = '''"""Rules of mine."""

from troll.algorithms.ranges import NotNegative
from troll.algorithms.trust_regions import TokenLosses, log_ratio


def soft_wall(new, old, advantages, mask, *, coefficient: NotNegative = 1.0):
    """Soft wall: a pull back that grows with the distance."""
    difference = log_ratio(new, old)
    return TokenLosses(-advantages * difference.exp() + 0.5 * coefficient * difference.square())


def helper(x):
    return x
'''


@pytest.fixture(autouse=True)
def rules(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_rules.py").write_text(RULE)
    return tmp_path / "my_rules.py"


def test_a_rule_in_a_file_is_a_trust_region_with_settings():
    rule = make_trust_region("my_rules.py:soft_wall", coefficient=0.5)
    assert rule.settings == {"coefficient": 0.5}
    case = make_case(seed=3)
    losses = rule(case.new, case.old, case.advantages, case.mask)
    difference = (case.new.log_probs - case.old.log_probs).double().clamp(-20, 20)
    expected = -case.advantages * difference.exp() + 0.25 * difference.square()
    mask = case.mask.bool()
    torch.testing.assert_close(losses.per_token[mask].double(), expected[mask], rtol=1e-5, atol=1e-6)
    with refused("coefficient", -1, ">= 0"):
        make_trust_region("my_rules.py:soft_wall", coefficient=-1)


@pytest.mark.parametrize(
    ("name", "text", "facts"),
    [
        ("no_rules.py:soft_wall", None, ("no_rules.py",)),
        ("my_rules.py:soft_walls", None, ("my_rules.py", "'soft_walls'", "'soft_wall'")),
        (
            "my_rules.py:helper",
            None,
            ("my_rules.py", "helper(x)", "(new, old, advantages, mask)"),
        ),
        ("bad.py:f", "def f(:\n", ("bad.py:1", "SyntaxError")),
        ("bad.py:f", "import math\n\nmath.nothing\n", ("bad.py:3", "AttributeError")),
        ("bad.py:f", "def f(new, old, advantages, mask, *, a): ...", ("bad.py:f", "'a'")),
        (
            "bad.py:f",
            "def f(new, old, advantages, mask, *, step_tokens=1): ...",
            ("bad.py", "f", "'step_tokens'"),
        ),
        (
            "bad.py:f",
            "def f(new, old, advantages, mask, context): ...",
            ("bad.py", "f(new, old, advantages, mask, context)"),
        ),
        (
            "bad.py:f",
            "def f(new, old, advantages, mask, other): ...",
            ("bad.py", "f(new, old, advantages, mask, other)"),
        ),
        (
            "bad.py:f",
            "def f(new, old, advantages, mask):\nreturn 1\n",
            ("bad.py:2", "IndentationError"),
        ),
        (
            "bad.py:f",
            "import sys\nsys.exit(3)\n",
            ("bad.py:2", "SystemExit", 3),
        ),
        (
            "bad.py:f",
            "raise SystemExit\n",
            ("bad.py:1", "SystemExit"),
        ),
        ("bad.py:f", "raise ValueError('a\\nb')\n", ("bad.py:1", "ValueError: a b")),
        ("bad.py:f", "x = 1\ny = '\udce9'\n", ("bad.py:2", "SyntaxError", "UTF-8")),
        # A ValueError before Python 3.11.4.
        (
            "bad.py:f",
            "x = 1\n\0\n",
            ("bad.py", "null bytes"),
        ),
        ("bad.py:f", "import no_such\n", ("bad.py:1", "ModuleNotFoundError", "no_such")),
        (
            "bad.py:f",
            "f = 3\n",
            ("bad.py", "f", "int", "def f(new, old, advantages, mask)"),
        ),
        ("bad.py:f", "class f: ...\n", ("bad.py", "f", "type")),
        ("bad.py:f", "x = 3\n", ("bad.py", "def f(new, old, advantages, mask)")),
        ("bad.py:", RULE, ("bad.py", "''", "soft_wall, helper")),
        ("bad.py", RULE, ("bad.py", "bad.py:my_function")),
        ("ba\0d.py:f", None, ("'ba\\x00d.py'",)),
    ],
)
def test_mistakes_are_one_line(rules, name, text, facts):
    if text is not None:
        (rules.parent / name.split(":")[0]).write_text(text, errors="surrogateescape")
    with refused(*facts):
        make_trust_region(name)


def test_what_is_no_file_is_refused_and_a_pipe_is_not_waited_for(tmp_path):
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    for call in (make_trust_region, file_digest):
        with refused("folder.py", "directory"):
            call("folder.py:f")
        with refused("pipe.py", "pipe"):
            call("pipe.py:f")


def test_an_interruption_while_a_file_runs_is_not_swallowed(rules):
    rules.write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        make_trust_region("my_rules.py:soft_wall")


def test_a_change_of_the_same_size_and_second_counts(rules, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for default in ("1.0", "2.0"):
        rules.write_text(RULE.replace("NotNegative = 1.0", f"NotNegative = {default}"))
        os.utime(rules, (1.7e9, 1.7e9))
        assert make_trust_region("my_rules.py:soft_wall").settings == {"coefficient": float(default)}


def test_a_changed_file_is_another_configuration(rules):
    data = {
        "experiment": "mine",
        "seeds": [0],
        "tasks": {"chains": {"train": 256, "validation": 4, "test": 4}},
        "models": {"tiny": {"vocabulary": 512}},
        "trust_regions": {"mine": {"rule": "my_rules.py:soft_wall"}, "clip": {"rule": "clip"}},
        "estimators": {"grpo": {"rule": "grpo"}},
        "conditions": {"stale": {"max_response_tokens": 48}},
    }

    def digests():
        experiment = parse_experiment(data, "x")
        return {
            run.trust_region: resolve(experiment, run).trust_region.file_sha256 for run in experiment.runs()
        }

    assert digests() == {"mine": hashlib.sha256(RULE.encode()).hexdigest(), "clip": None}
    rules.write_text(RULE + "\n# another\n")
    assert digests()["mine"] == hashlib.sha256((RULE + "\n# another\n").encode()).hexdigest()


def test_a_relative_path_is_the_file_that_it_names_now(tmp_path, monkeypatch):
    rule = "from troll.algorithms.trust_regions import TokenLosses\n\n\n"
    rule += (
        "def scaled(new, old, advantages, mask, *, factor={}):\n    return TokenLosses(factor * advantages)\n"
    )
    found = []
    for folder, factor in (("one", 1.0), ("two", 2.0)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "scaled.py").write_text(rule.format(factor))
        monkeypatch.chdir(tmp_path / folder)
        found.append(make_trust_region("scaled.py:scaled"))
    assert [one.settings["factor"] for one in found] == [1.0, 2.0]
    assert found[0].info is not found[1].info and TRUST_REGIONS["scaled.py:scaled"] is found[1].info
    (tmp_path / "two/scaled.py").unlink()
    with refused("scaled.py"):
        make_trust_region("scaled.py:scaled")
    assert not [name for name in TRUST_REGIONS if ".py:" in name], "those of the package alone are listed"


@pytest.mark.parametrize(
    "setting", ["name", "rule", "aggregation", "settings", "info", "controller", "defaults"]
)
def test_a_setting_may_have_any_name(rules, setting):
    head = "from troll.algorithms.trust_regions import TokenLosses\n\n\n"
    rules.write_text(
        f"{head}def mine(new, old, advantages, mask, /, *, {setting}: float = 1.0):\n"
        f"    return TokenLosses({setting} * advantages)\n"
    )
    case, rule = make_case(), make_trust_region("my_rules.py:mine", **{setting: 2.0})
    losses = rule(case.new, case.old, case.advantages, case.mask).per_token
    assert losses.equal(2.0 * case.advantages * case.mask)


@pytest.mark.parametrize(
    ("make", "rule", "setting"),
    [(make_trust_region, "clip", "epsilon_low"), (make_estimator, "grpo", "epsilon")],
)
def test_an_unknown_setting_is_one_line_whatever_its_name(make, rule, setting):
    for name in ("name", "self", "function", "nonsense"):
        with refused(rule, repr(name), setting):
            make(rule, **{name: 1})


@pytest.mark.parametrize(
    ("rule", "facts"),
    [
        ("my_rules.py:absent", ("my_rules.py", "'absent'", "soft_wall")),
        ("my_rules:soft_wall", ("'my_rules:soft_wall'", "troll")),
    ],
)
def test_the_contract_says_in_a_line_that_there_is_no_such_rule(rule, facts):
    contract = Path(__file__).with_name("test_trust_region_contract.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line", str(contract)]
    result = subprocess.run(
        command, env=os.environ | {"TROLL_CONTRACT": rule}, capture_output=True, text=True, check=False
    )
    (line,) = {line for line in result.stdout.splitlines() if line.startswith("error: ")}
    check_facts(line, *facts)
    assert result.returncode
    assert "UserError" not in result.stdout and "KeyError" not in result.stdout
