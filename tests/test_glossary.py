"""The glossary names what is in the code, and the code does not call it anything else."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in (ROOT / "docs/glossary.md").read_text().splitlines()
    if line.startswith("| ")
][2:]


@pytest.fixture(scope="module")
def names() -> set[str]:
    """Every identifier of the package and its workflow."""
    files = [*(ROOT / "troll").rglob("*.py"), *(ROOT / "workflow/rules").glob("*.smk")]
    return {
        name
        for path in files
        for name in re.findall(r"(?<![\w-])\w+(?![\w-])", path.read_text(encoding="utf-8"))
    }


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_term_has_the_name_of_the_glossary_and_no_other(row: list[str], names: set[str]) -> None:
    term, meaning, used, unused = row
    assert meaning and used, term
    assert not {*re.findall(r"`(\w+)`", used)} - names, f"{term}: the name in the glossary is not in the code"
    assert not {*re.findall(r"`(\w+)`", unused)} & names, f"{term}: call it by the name in the glossary"


def test_terms_are_in_the_glossary_once() -> None:
    terms = [row[0] for row in ROWS]
    assert len(terms) == len(set(terms)) >= 25
