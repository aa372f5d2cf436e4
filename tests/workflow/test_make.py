"""What the Makefile decides by itself: how many cores there are, and which tests a rule of one's own has."""

import os
import subprocess

import pytest
from refusals import check_facts


@pytest.fixture
def make(repository, tmp_path):
    """Runs make in a checkout whose Python says what it is called with."""

    def run(*words, **environment):
        return subprocess.run(
            ["make", "-f", repository / "Makefile", *words],
            cwd=tmp_path,
            env={"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", **environment},
            capture_output=True,
            text=True,
        )

    for name, text in (
        (".venv/bin/python", 'echo "TROLL_CONTRACT=$TROLL_CONTRACT"; printf "%s\\n" "$@"'),
        (".venv/bin/troll", 'printf "%s\\n" "$@"'),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    for name in ("pyproject.toml", "envs/constraints.txt", "envs/requirements.txt", "envs/setup.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".venv/.ready").touch()  # last: newer than what it is made from
    return run


@pytest.mark.parametrize(("given", "cores"), [((), "all"), (("CORES=2",), "2")])
def test_results_take_all_cores_or_those_that_are_given(make, given, cores):
    said = make("results", *given).stdout.splitlines()
    assert said[said.index("--cores") + 1] == cores


@pytest.mark.parametrize(("value", "repeated"), [("1", True), ("0", False), ("", False)])
def test_released_runs_are_repeated_only_where_that_is_asked_for(make, value, repeated):
    assert ("--repeat" in make("results", f"REPEAT={value}").stdout.splitlines()) == repeated


@pytest.mark.parametrize("words", [[], ["rule=my_rules.py:soft_wall"], ["RULE="]])
def test_a_contract_without_a_rule_is_refused(make, words):
    result = make("contract", *words, TROLL_CONTRACT="clip")
    assert result.returncode and not result.stdout
    check_facts(result.stderr.splitlines()[0], "error", "make contract RULE=my_rules.py:soft_wall")


@pytest.mark.parametrize("rule", ["my_rules.py:soft_wall", "bad/c.py:weiß", 'it\'s "here"/my rules.py:l'])
def test_the_contract_is_tested_whatever_the_rule_is_called(make, rule):
    said = make("contract", f"RULE={rule}").stdout.splitlines()
    assert said[0] == f"TROLL_CONTRACT={rule}"
    assert said[said.index("-k") + 1] == "own_rule"
