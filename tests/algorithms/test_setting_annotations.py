"""What annotations of settings allow, however they are written; those that nobody can read are one line."""

import math
from typing import Annotated, Literal, Optional, Union

import pytest

from troll.algorithms.ranges import NotNegative, Range
from troll.algorithms.settings import Setting
from troll.algorithms.trust_regions import make_trust_region
from troll.common.errors import UserError

HEAD = """from typing import TYPE_CHECKING, Annotated, Literal, Optional, Union
from troll.algorithms.ranges import NotNegative, Range
from troll.algorithms.trust_regions import TokenLosses
if TYPE_CHECKING:
    from torch import Tensor
    from troll.algorithms.ranges import Positive
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def rule_with(annotation, tmp_path, *, lazy=False, default="1.0", **settings):
    """A rule in a file whose other parameters have names that only type checkers know."""
    head = f"from __future__ import annotations\n{HEAD}" if lazy else HEAD
    policy = "Tensor" if lazy else '"Tensor"'
    (tmp_path / "mine.py").write_text(
        f"{head}\ndef f(new: {policy}, old: {policy}, advantages, mask, *, a: {annotation} = {default})"
        " -> TokenLosses:\n    return TokenLosses(advantages)\n"
    )
    return make_trust_region("mine.py:f", **settings)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    "annotation", ["NotNegative", "'NotNegative'", "Optional['NotNegative']", "Annotated[float, Range(0.0)]"]
)
def test_text_is_read_as_the_annotation_that_it_means(tmp_path, annotation, lazy):
    assert rule_with(annotation, tmp_path, lazy=lazy, a=0.5).settings == {"a": 0.5}
    with pytest.raises(UserError, match="a is -1, must be a number >= 0"):
        rule_with(annotation, tmp_path, lazy=lazy, a=-1)


@pytest.mark.parametrize("annotation", ["'Positive'", "'a number'", "Optional['Positive']"])
def test_an_annotation_that_cannot_be_read_is_one_line(tmp_path, annotation):
    with pytest.raises(UserError, match=r"register\('mine.py:f'\): setting 'a': cannot read its") as error:
        rule_with(annotation, tmp_path)
    assert "TYPE_CHECKING" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("annotation", "inside", "outside", "meaning"),
    [
        (Optional[float], [None, 1, 0.5], ["x", math.nan, True], "a number, or none"),  # noqa: UP045
        (Union[float, str], [1, "x"], [None, [1], True], "a number or text"),  # noqa: UP007
        (int | float | None, [1, 1.5, None], ["x"], "an integer or a number, or none"),
        (Literal["a", None], ["a", None], ["b"], "one of 'a', or none"),
        (Literal[1, 2], [1, 2], [True, 3, "1", None], "one of 1, 2"),
        (Literal["auto"] | NotNegative, ["auto", 0], [-1, "none"], "one of 'auto' or a number >= 0"),
        (Annotated[float | None, Range(0.0)], [None, 0], [-1], "a number >= 0, or none"),
        (Literal[True, "auto"], [True, "auto"], [1, False], "one of True, 'auto'"),
        (list[float], [[1.0], "x", None], [], "anything"),
        (float | list[float], [[1.0], 1, "x"], [], "anything"),
    ],
)
def test_unions_and_literals(annotation, inside, outside, meaning):
    setting = Setting.of(annotation, inside[0])
    assert [value for value in inside if not setting.allows(value)] == []
    assert [value for value in outside if setting.allows(value)] == []
    assert setting.meaning == meaning
