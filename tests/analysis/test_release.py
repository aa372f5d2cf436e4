"""What may be released: runs whose source anyone can look up."""

from pathlib import Path

import pandas as pd
import pytest

from troll.analysis.data.provenance import RELEASED_BEFORE, check_clean
from troll.analysis.report.readme import provenance
from troll.common.errors import UserError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def made(runs: pd.DataFrame, commits: dict[str, str]) -> pd.DataFrame:
    """Single rows of two runs with these commits."""
    rows = runs[runs["trust_region"] != "base"].drop_duplicates("run_id").head(len(commits))
    return rows.assign(run_id=list(commits), git_commit=list(commits.values()))


@pytest.mark.parametrize("commit", [f"{COMMIT}-dirty", ""])
def test_a_run_from_source_in_no_commit_is_refused_in_one_line(runs: pd.DataFrame, commit: str) -> None:
    with pytest.raises(UserError) as caught:
        check_clean(made(runs, {"a": COMMIT, "b": commit}), Path("results/mine"))
    assert str(caught.value) == (
        "results/mine: 1 of 2 runs, b among them, were made from source that is in no commit, and cannot be "
        "released; commit it, and make them again"
    )


def test_commits_and_what_was_released_before_the_rule_pass(runs: pd.DataFrame) -> None:
    check_clean(made(runs, {"a": COMMIT, "b": RELEASED_BEFORE[0]}), Path("x"))


def test_the_readme_tells_where_runs_come_from(runs: pd.DataFrame) -> None:
    (line,) = provenance(made(runs, {"a": COMMIT, "b": f"{COMMIT}-dirty"}))
    assert line.startswith(
        "- `results/testbed`: 2 runs, 1 at commit `0123456` and 1 at commit `0123456` with changes that were "
        "not committed; "
    )
