"""Settings of rules and estimators: what their annotations allow, and the one line that refuses the rest."""

import math
from typing import Annotated, Any, Literal, Optional, Union

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field
from refusals import check_facts, refused

from troll.algorithms.advantages import ESTIMATORS, make_estimator
from troll.algorithms.ranges import Count, Limit, NotNegative, Positive, Share
from troll.algorithms.registry import Entry, Registry
from troll.algorithms.trust_regions import TRUST_REGIONS, make_trust_region
from troll.common.errors import UserError
from troll.common.explain import takes
from troll.common.settings import settings_of

NUMBERS = [
    (registry.kind, name, key)
    for registry in (TRUST_REGIONS, ESTIMATORS)
    for name, info in registry.items()
    for key, setting in info.settings.items()
    if takes(setting.annotation, setting.metadata).startswith(("a number", "an integer"))
]
MAKE = {"trust region": make_trust_region, "estimator": make_estimator}


@pytest.mark.parametrize(
    ("name", "setting", "value", "facts"),
    [
        ("troll", "kl_bound", -1, (">= 0",)),
        ("troll", "kl_bound", math.nan, (">= 0",)),
        ("troll", "regression_weight", -0.1, (">= 0",)),
        ("troll", "regression_weight", math.inf, (">= 0",)),
        ("clip", "dual_clip", 0.5, ("> 1",)),
        ("clip", "dual_clip", 1, ("> 1",)),
        ("clip", "epsilon_low", -0.2, (">= 0",)),
        ("gspo-clip-tight", "epsilon_high", -3e-4, (">= 0",)),
        ("cispo", "ratio_max", True, (">= 0",)),
        ("sapo", "temperature_negative", 0.0, ("> 0",)),
        ("dppo-topk-kl", "threshold_low", None, (">= 0",)),
        ("quatro-recon-gradient", "log_weight", "men", ("mean", "'sum'", "token")),
        ("kl-penalty", "adaptive", "no", ()),
        ("kl-penalty", "target_kl", 0, ("> 0",)),
        ("troll-adaptive", "rate", 1.0, ("> 1",)),
        ("troll-adaptive", "schedule_steps", 2.5, ("> 0",)),
        ("grpo", "epsilon", -1e-6, ("> 0",)),
        ("reinforce++", "gamma", 1.01, ("[0, 1]",)),
        ("ppo-max", "lam", -0.1, ("[0, 1]",)),
        ("ppo-max", "reward_clip", 0, ("> 0",)),
        ("ppo-max", "reward_norm", "men", ("mean-std", "'std'", "none")),
        ("gae", "whitened", 1, ()),
    ],
)
def test_what_trust_regions_and_estimators_refuse(name, setting, value, facts):
    kind = "trust region" if name in TRUST_REGIONS else "estimator"
    with refused(f"{kind} {name!r}", setting, repr(value), *facts):
        MAKE[kind](name, **{setting: value})


@pytest.mark.parametrize(
    ("rule", "settings", "facts"),
    [
        ("icepop", {"ratio_min": 6.0, "ratio_max": 1.0}, ("ratio_min", "6.0", "ratio_max", "1.0")),
        ("icepop", {"ratio_min": 6.0}, ("ratio_min", "6.0", "ratio_max", "5.0")),
        ("clip-cov", {"covariance_min": 6}, ("covariance_min", "6.0", "covariance_max", "5.0")),
        ("bapo", {"ratio_min": 0.9}, ("ratio_min", "0.9", "ratio_min_last", "0.8")),
        ("bapo", {"ratio_max_last": 1.1}, ("ratio_max", "1.2", "ratio_max_last", "1.1")),
    ],
)
def test_settings_that_contradict_each_other_are_refused(rule, settings, facts):
    with refused(f"trust region {rule!r}", *facts):
        TRUST_REGIONS.complete(rule, settings)
    wide = {"ratio_min": 0.5, "ratio_max": 0.5} if rule == "icepop" else {}  # equal ones are no contradiction
    assert wide.items() <= TRUST_REGIONS.complete(rule, wide).items()


def test_a_number_that_yaml_reads_as_text_gets_a_hint():
    with refused("troll", "kl_bound", "'5e-2'", ">= 0", "text"):
        make_trust_region("troll", kl_bound="5e-2")
    with refused("troll", "kl_bound", "'small'", ">= 0") as error:
        make_trust_region("troll", kl_bound="small")
    assert "text" not in str(error.value)


@pytest.mark.parametrize(("kind", "name", "key"), NUMBERS)
def test_no_setting_takes_nan_text_or_a_flag(kind, name, key):
    for value in (math.nan, "0.1", True, [0.1]):
        with refused(name, key, value if value is math.nan else repr(value)):
            MAKE[kind](name, **{key: value})


def test_bounds_of_a_moving_bound_agree():
    with refused("troll-adaptive", "kl_bound", "2.0"):
        TRUST_REGIONS.complete("troll-adaptive", {"kl_bound": 2.0})  # so that `troll check` refuses it too
    with refused("troll-adaptive", "kl_bound_min", "0.1", "kl_bound_max", "0.01"):
        make_trust_region("troll-adaptive", kl_bound_min=0.1, kl_bound_max=0.01)
    with refused("kl_bound", "2.0", "[0.001, 1]"):
        make_trust_region("troll-adaptive", kl_bound=2.0)


def test_a_rule_without_annotations_is_held_to_the_type_of_its_defaults():
    registry = Registry("rule")

    def rule(batch, *, number=1, flag=False, word="a", anything=None):
        """Nothing."""

    registry.add(Entry, "mine", rule, defaults={"number": 2})
    assert registry["mine"].settings["number"].default == 2
    registry.complete("mine", {"number": 0.5, "flag": True, "word": "b", "anything": [1]})
    for wrong in ({"number": "1"}, {"number": math.nan}, {"number": True}, {"flag": 1}, {"word": 1}):
        with refused("'mine'", *map(repr, wrong.values()), *wrong):
            registry.complete("mine", wrong)


def test_a_registration_is_held_to_the_same():
    registry = Registry("rule")

    def rule(batch, *, bound: Positive = 1.0, mode: Literal["a", "b"] = "a"):
        """Nothing."""

    def incomplete(batch, *, bound: Positive):
        """Nothing."""

    with refused("'mine'", "bound", "-1.0"):
        registry.add(Entry, "mine", rule, defaults={"bound": -1.0})
    with refused("'mine'", "'bond'", "bound, mode"):
        registry.add(Entry, "mine", rule, defaults={"bond": 1.0})
    with refused("'mean'", "token-mean"):
        registry.add(Entry, "mine", rule, defaults={}, aggregation="mean")
    with refused("'mine'", "'bound'"):
        registry.add(Entry, "mine", incomplete, defaults={})
    assert not registry and "mine" not in registry


def allows(annotation, value):
    def rule(batch, *, x: annotation = 1):
        """Nothing."""

    try:
        settings_of("rule", rule).completed("rule", {"x": value})
    except UserError as error:
        check_facts(str(error), "rule", "x")
        return False
    return True


@settings(deadline=None)
@given(st.floats(allow_nan=True), st.floats(-5, 5), st.floats(0, 5), st.booleans(), st.booleans())
def test_a_range_holds_what_its_ends_say(value, low, width, open_low, open_high):
    high = low + width
    ends = {"gt" if open_low else "ge": low, "lt" if open_high else "le": high}
    above = value > low if open_low else value >= low
    below = value < high if open_high else value <= high
    assert allows(Annotated[float, Field(**ends)], value) == (above and below)


HEAD = """from typing import TYPE_CHECKING, Annotated, Optional
from pydantic import Field
from troll.algorithms.ranges import NotNegative
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
    "annotation", ["NotNegative", "'NotNegative'", "Optional['NotNegative']", "Annotated[float, Field(ge=0)]"]
)
def test_text_is_read_as_the_annotation_that_it_means(tmp_path, annotation, lazy):
    assert rule_with(annotation, tmp_path, lazy=lazy, a=0.5).settings == {"a": 0.5}
    with refused("a", -1, ">= 0"):
        rule_with(annotation, tmp_path, lazy=lazy, a=-1)


@pytest.mark.parametrize("annotation", ["'Positive'", "'a number'", "Optional['Positive']"])
def test_an_annotation_that_cannot_be_read_is_one_line(tmp_path, annotation):
    with refused("mine.py:f", "'a'", "TYPE_CHECKING"):
        rule_with(annotation, tmp_path)


@pytest.mark.parametrize(
    ("annotation", "inside", "outside", "words"),
    [
        (Positive, [1e-300, 1, 1e300], [0, -1, math.inf], "a number > 0"),
        (NotNegative, [0, 0.0, 5], [-1e-300, math.inf], "a number >= 0"),
        (Limit, [0, 3, math.inf], [-1, -math.inf], "a number >= 0 or infinity"),
        (Share, [0, 0.5, 1], [-0.1, 1.1, math.inf], "a number in [0, 1]"),
        (Count, [1, 5], [0, 1.0], "an integer > 0"),
        (Annotated[float, Field(ge=0, lt=1)], [0, 0.999], [1, 1.0], "a number in [0, 1)"),
        (Annotated[float, Field(le=2)], [-1e300, 2], [2.1, -math.inf], "a number <= 2"),
        (float, [-1e300, 0], [math.inf, -math.inf], "a number"),
        (Optional[float], [None, 1, 0.5], ["x"], "a number, or none"),  # noqa: UP045
        (Union[float, str], [1, "x"], [None, [1]], "a number or text"),  # noqa: UP007
        (int | float | None, [1, 1.5, None], ["x"], "an integer or a number, or none"),
        (Literal["a", None], ["a", None], ["b"], "'a', or none"),
        (Literal[1, 2], [1, 2], [3, None], "one of 1, 2"),
        (Literal["auto"] | NotNegative, ["auto", 0], [-1, "none"], "'auto' or a number >= 0"),
        (Annotated[float | None, Field(ge=0)], [None, 0], [-1], "a number >= 0, or none"),
        (list[float], [[1.0], []], ["x", None], "a list of numbers"),
        (float | list[float], [[1.0], 1], ["x"], "a number or a list of numbers"),
        (Any, ["x", None, object()], [], "anything"),
    ],
)
def test_what_annotations_allow_and_how_it_is_said(annotation, inside, outside, words):
    assert [value for value in inside if not allows(annotation, value)] == []
    if words != "anything":
        outside = [*outside, math.nan, True, "1" if "text" not in words else [True]]
    assert [value for value in outside if words != "one of 1, 2" and allows(annotation, value)] == []
    assert takes(annotation) == words


def test_a_setting_may_have_the_name_of_a_method_but_not_a_hidden_one():
    def rule(batch, *, copy: Positive = 1.0, model_size: float = 2.0):
        """Nothing."""

    def hidden(batch, *, _x: float = 1.0):
        """Nothing."""

    assert settings_of("rule", rule).completed("rule", {"copy": 3}) == {"copy": 3, "model_size": 2.0}
    with refused("rule", "'_x'"):
        settings_of("rule", hidden)
