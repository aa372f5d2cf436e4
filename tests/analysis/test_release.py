"""What may be released: runs whose source anyone can look up."""

from pathlib import Path

import pandas as pd
import pytest

from troll.analysis.data.provenance import check_clean
from troll.analysis.report.readme import provenance
from troll.common.errors import UserError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def made(runs: pd.DataFrame, commits: dict[str, str], digests: str = "xyz") -> pd.DataFrame:
    """Single rows of some runs with these commits and digests of the source."""
    rows = runs[runs["trust_region"] != "base"].drop_duplicates("run_id").head(len(commits))
    columns = {"git_commit": list(commits.values()), "digest_source": list(digests[: len(commits)])}
    return rows.assign(run_id=list(commits), **columns)


@pytest.mark.parametrize("commit", [f"{COMMIT}-dirty", ""])
def test_a_run_from_source_in_no_commit_is_refused_in_one_line(runs: pd.DataFrame, commit: str) -> None:
    with pytest.raises(UserError) as caught:
        check_clean(made(runs, {"a": COMMIT, "b": commit}), Path("results/mine"))
    assert str(caught.value) == (
        "results/mine: 1 of 2 runs, b among them, were made from source that is in no commit, and cannot be "
        "released; commit it, and make them again"
    )


def test_a_checkout_with_other_changes_passes_where_a_commit_has_the_same_source(runs: pd.DataFrame) -> None:
    """As where the tables of results, which are tracked, were made again between two runs."""
    commits = {"a": COMMIT, "b": f"{COMMIT}-dirty", "c": ""}
    check_clean(made(runs, dict(list(commits.items())[:2]), "xx"), Path("x"))
    with pytest.raises(UserError, match="1 of 3 runs, c among them"):  # no repository: nobody can look
        check_clean(made(runs, commits, "xxx"), Path("x"))
    with pytest.raises(UserError, match="2 of 2 runs, a among them"):  # no commit has it
        check_clean(made(runs, {"a": f"{COMMIT}-dirty", "b": f"{COMMIT}-dirty"}, "xx"), Path("x"))
    (line,) = provenance(made(runs, commits, "xxx"))
    assert line.startswith(
        "- `results/testbed`: 3 runs: 1 at no known commit, 1 at commit `0123456` and 1 at commit "
        "`0123456` (with changes that were not committed, none of them to what runs are made from); "
    )


def test_the_readme_tells_where_runs_come_from(runs: pd.DataFrame) -> None:
    (line,) = provenance(made(runs, {"a": COMMIT, "b": f"{COMMIT}-dirty"}))
    assert line.startswith(
        "- `results/testbed`: 2 runs: 1 at commit `0123456` and 1 at commit `0123456` (with changes that "
        "were not committed); "
    )
