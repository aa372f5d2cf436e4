"""Further seeds: those of the file, and those that `make results` keeps in looks.json."""

import pytest
import yaml

from troll.common.errors import UserError
from troll.experiment.files import parse_experiment
from troll.experiment.looks import read_looks, with_further_seeds, write_looks

STALE = "tiny/chains/troll/grpo/stale"


@pytest.fixture
def testbed(repository):
    return yaml.safe_load((repository / "workflow/config/testbed.yaml").read_text())


def test_further_seeds_are_runs_of_their_setting_alone(testbed, tmp_path):
    plain = parse_experiment(testbed, "file")
    write_looks(tmp_path, {STALE: [4, 3], "tiny/gone/troll/grpo/stale": [3]}, [{"runs": 48}], "")
    more = with_further_seeds(plain, tmp_path)
    new = {run.run_id for run in more.runs()} - {run.run_id for run in plain.runs()}
    assert new == {f"{STALE}/seed3", f"{STALE}/seed4"}
    assert len(plain.runs()) == 48 and with_further_seeds(plain, tmp_path / "other") == plain
    assert read_looks(tmp_path)["looks"] == [{"runs": 48}]


def test_without_more_seeds_the_file_of_another_time_is_not_looked_at(testbed, tmp_path):
    write_looks(tmp_path, {STALE: [3]}, [], "")
    fixed = parse_experiment(testbed | {"more_seeds": None}, "file")
    assert with_further_seeds(fixed, tmp_path) is fixed


WRONG = ("[]", "{}", '{"further_seeds": {"a": ["x"]}}', '{"further_seeds": {"a": 3}}')


@pytest.mark.parametrize("content", WRONG)
def test_a_file_that_is_none_is_refused(tmp_path, content):
    (tmp_path / "looks.json").write_text(content)
    with pytest.raises(UserError, match=r"looks.json: further_seeds: expected lists of seeds by setting"):
        read_looks(tmp_path)


def test_mistakes_are_one_line(testbed):
    with pytest.raises(UserError, match=r"more_seeds\.most: looks go from the 3 of `seeds` to 2"):
        parse_experiment(testbed | {"more_seeds": {"most": 2}}, "file")
    with pytest.raises(UserError, match=r"^file: further_seeds: .*tiny/chains/trol/grpo/stale"):
        parse_experiment(testbed | {"further_seeds": {"tiny/chains/trol/grpo/stale": [3]}}, "file")
