"""What a claim may name; and a ledger of two files, of which both are written or none."""

import re

import pytest
import synthetic
import yaml
from refusals import refused
from test_decision import judged

from troll.analysis.claims.decision import Decision
from troll.analysis.claims.fields import MATH_EVAL_MEAN
from troll.analysis.claims.ledger import write_claims
from troll.analysis.claims.verdicts import ClaimVerdict, judge, read_claims
from troll.analysis.data.runs import read_directories
from troll.analysis.data.summaries import per_run
from troll.analysis.data.tidy import GROUP
from troll.analysis.metrics import SUMMARIES


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    root = tmp_path_factory.mktemp("results") / "testbed"
    dirs = [
        synthetic.write_run(root, "functions", method, "grpo", "gentle", seed, batches=2)
        for method in ("clip", "troll")
        for seed in range(3)
    ]
    return read_directories(dirs, [synthetic.write_base(root, "functions")])


def refusal(directory, text, *facts):
    """The message for a claims file with `synthetic.CLAIM` changed by these lines of YAML."""
    path = directory / "claims.yaml"
    path.write_text(yaml.safe_dump([synthetic.CLAIM | yaml.safe_load(text)]))
    with refused(path, "claim c", *facts) as error:
        read_claims([path])
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("baseline: .nan", ("baseline", "nan", "2^31")),
        ("baseline: -.inf", ("baseline", "-inf", "2^31")),
        ("baseline: 1.0e+300", ("baseline", "1e+300")),
        ("baseline: nan", ("baseline", "'nan'", "2^31")),
        ("baseline: [clip]", ("baseline", "['clip']")),
        ("baseline: null", ("baseline", "None")),
        ("baseline: true", ("baseline", "True")),
        ('baseline: "0.5"', ("baseline", "0.5", "'0.5'")),
        ("baseline: 1e-7", ("baseline", "1.0e-07", "'1e-7'")),
        ("{baseline: 0, relative: true}", ("baseline 0",)),
        ("{baseline: -0.5, relative: true}", ("baseline -0.5",)),
        ("margin: .inf", ("margin", "inf", ">= 0")),
        ("margin: .nan", ("margin", "nan", ">= 0")),
        ("margin: true", ("margin", "True", ">= 0")),
        ("across: {setting: staleness, statistic: slope, share: .nan}", ("across.share", "nan")),
        ("across: {setting: keep, statistic: slope}", ("across.setting", "'keep'")),
    ],
)
def test_impossible_numbers_are_refused(tmp_path, text, facts):
    refusal(tmp_path, text, *facts)


def test_what_a_message_says_to_write_is_a_number(tmp_path):
    (written,) = re.findall(r"\d\.\d+e-\d+", refusal(tmp_path, "baseline: 1e-7"))
    (tmp_path / "claims.yaml").write_text(
        yaml.safe_dump([synthetic.CLAIM | yaml.safe_load(f"baseline: {written}")])
    )
    assert read_claims([tmp_path / "claims.yaml"])[0].baseline == 1e-7


@pytest.mark.parametrize(
    ("metric", "meant"),
    [
        ("Entropi", "entropy"),
        ("Entropy", "entropy"),
        ("pass@x", "pass@1"),
        ("pass@0", "pass@1"),
        ("pass@-1", "pass@1"),
        ("pass@1.5", "pass@1"),
        ("pass@²", "pass@1"),
        ("pass@08", "pass@8"),
        ("pass8", "pass@8"),
        (f"pass@{'9' * 5000}", ""),
        ("math50/pass@1", "math500/pass@1"),
        ("math-evl/pass@1", "math-eval/pass@1"),
        ("math-eval/pass@8", "math-eval/pass@1"),
        ("success", "mean/success"),
        ("maen/kl_to_old", "mean/kl_to_old"),
        ("mean/", ""),
        ("mean/ ", ""),
        ("status/", ""),
        ("seed", ""),
        ("", ""),
    ],
)
def test_an_unknown_metric_is_refused_and_the_nearest_named(tmp_path, metric, meant):
    facts = [repr(meant)] if meant else []
    refusal(tmp_path, yaml.safe_dump({"metric": metric}), "metric", repr(metric), "pass@k", *facts)


@pytest.mark.parametrize(
    "metric",
    [
        *("pass@1", "pass@64", "base/pass@8", "math500/pass@1", "humaneval+/base/pass@1"),
        *("official/pass@1", "gsm8k/official/pass@4"),
        *("mean/critic/loss", "mean/a_rules_own", "status/truncated"),
        *(*SUMMARIES, MATH_EVAL_MEAN),
    ],
)
def test_what_runs_may_have_is_a_metric(metric):
    assert synthetic.claim(metric=metric).metric == metric


def test_every_summary_of_a_run_is_a_metric(known):
    summaries = set(per_run(known.runs)) - {*GROUP, "run_id", "seed", "mixed"}
    assert summaries >= set(SUMMARIES) - {"batch_cpu_s", "peak_gib"}, "two that these runs do not have"
    for metric in summaries:
        synthetic.claim(metric=metric)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("{at_equal_kl: true, baseline: base}", ("baseline base", "at_equal_kl")),
        ("{across: {setting: staleness, statistic: slope}, baseline: 0.5}", ("baseline 0.5", "across")),
        ("{at_equal_kl: true, baseline: 0.5}", ("baseline 0.5", "at_equal_kl")),
        ("{across: {setting: staleness, statistic: slope}, baseline: base}", ("baseline base", "across")),
        ("{across: {setting: staleness, statistic: slope}, relative: true}", ("relative", "across")),
        ("{across: {setting: staleness, statistic: slope}, at_equal_kl: true}", ("at_equal_kl", "across")),
        (
            "{across: {setting: staleness, statistic: usable}, metric: late_kl}",
            ("metric late_kl", "usable", "pass@k"),
        ),
        ("{across: {setting: policy_lag, statistic: usable}}", ("across policy_lag", "slope")),
    ],
)
def test_fields_that_do_not_go_together_are_told_without_what_is_right(tmp_path, text, facts):
    refusal(tmp_path, text, *facts)


def verdict(claim, *, levels=None):
    decision = judged(0.2, spread=0.1)
    if levels:
        decision = Decision("depends", decision.settings, (True,), (False,), None, "task", levels)
    return ClaimVerdict(claim, decision)


def test_of_the_two_files_both_are_written_or_none(tmp_path, known):
    claim = synthetic.claim()
    unreadable = claim.model_copy(update={"margin": float("nan")})  # no claims file can say so
    with refused("JSON", error=ValueError):
        write_claims([verdict(unreadable)], known.runs, [], tmp_path / "claims")
    assert not list(tmp_path.iterdir())
    before = [
        path.read_bytes() for path in write_claims([verdict(claim)], known.runs, [], tmp_path / "claims")
    ]
    with refused("JSON", error=ValueError):
        write_claims([verdict(unreadable)], known.runs, [], tmp_path / "claims")
    assert [(tmp_path / name).read_bytes() for name in ("claims.md", "claims.json")] == before
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("taken", ["claims.md", "claims.json"])
def test_a_place_that_cannot_be_written_keeps_the_other_file_out(tmp_path, known, taken):
    (tmp_path / taken).mkdir()
    with refused(tmp_path / taken, "directory"):
        write_claims([verdict(synthetic.claim())], known.runs, [], tmp_path / "claims")
    assert [path.name for path in tmp_path.iterdir()] == [taken]


def test_a_mean_that_is_no_number_is_null(tmp_path, known):
    one = verdict(synthetic.claim(), levels={"chains": float("inf"), "functions": 0.5})
    (_, path) = write_claims([one], known.runs, [], tmp_path / "claims")
    assert yaml.safe_load(path.read_text())["claims"][0]["levels"] == {"chains": None, "functions": 0.5}


def test_a_claim_about_any_k_up_to_the_samples_is_judged(known):
    """The table of runs has pass@1 and pass@8 alone."""
    for changes in ({"baseline": 0.0}, {"relative": True}, {"baseline": "base", "relative": True}):
        claim = synthetic.claim(metric="pass@4", **changes)
        (one,) = judge([claim], known.runs, known.items)
        assert [setting.seeds for setting in one.decision.settings] == [3], changes
