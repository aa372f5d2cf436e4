"""Names of a rule's metrics: what the trainer logs itself is refused, and none of that is forgotten."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from policy_cases import make_case
from refusals import refused

import troll.training
from troll.algorithms.trust_regions import TRUST_REGIONS, TokenLosses, TrustRegion
from troll.algorithms.trust_regions.metrics import RESERVED_BEGINNINGS, RESERVED_METRICS
from troll.training import callbacks, diagnostics

TRAINING = Path(troll.training.__file__).parent


def call(name):
    """A rule that reports one metric of this name."""
    case = make_case()

    def rule(new, old, advantages, mask):
        return TokenLosses(new.log_probs, {name: new.log_probs})

    return TrustRegion(replace(TRUST_REGIONS["pg"], name="odd", function=rule), {})(
        case.new, case.old, case.advantages, case.mask
    )


@pytest.mark.parametrize(
    "name",
    ["entropy", "kl", "step", "loss", "reward", "ratio", "kept_mass_min", "eval_reward", "completions/mine"],
)
def test_a_metric_that_would_overwrite_or_get_lost_is_refused(name):
    with refused("trust region 'odd'", repr(name), *RESERVED_METRICS, *RESERVED_BEGINNINGS):
        call(name)


@pytest.mark.parametrize("name", ["pull", "clip_fraction", "kl_to_old", "entropy_of_mine"])
def test_other_names_are_the_rules_own(name):
    case, metrics = make_case(), call(name).metrics
    assert metrics[name].equal(case.new.log_probs.detach().masked_fill(case.mask == 0, 0.0))


def test_all_that_the_trainer_logs_is_reserved():
    logged = {*callbacks._RENAMED, *callbacks._RENAMED.values(), *callbacks._DROPPED}
    for names in (diagnostics._LARGEST, diagnostics._SMALLEST, diagnostics._RENAMED):
        logged |= set(names.values())
    for path in TRAINING.glob("*.py"):
        logged |= set(re.findall(r'(?:_report\(|_metrics\["train"\]\[)"([^"]+)"', path.read_text()))
        for added in re.findall(r"diagnostics\.add\(\s*{(.*?)}", path.read_text(), re.DOTALL):
            logged |= set(re.findall(r'"(\w+)":', added))
    assert {"update_skipped", "kl_to_reference", "success", "entropy", "kept_tokens"} <= logged
    assert [n for n in logged if n not in RESERVED_METRICS and not n.startswith(RESERVED_BEGINNINGS)] == []
