import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import synthetic
import yaml
from refusals import refused
from synthetic import claim
from test_decision import judged as decided

from troll.analysis.claims.decision import PairedDifferences, Side, decide
from troll.analysis.claims.ledger import (
    findings,
    to_folded_markdown,
    to_markdown,
    to_short_markdown,
    write_claims,
)
from troll.analysis.claims.packaged import claims_file
from troll.analysis.claims.verdicts import ClaimVerdict, judge, read_claims
from troll.analysis.claims.wording import span, why
from troll.analysis.data.runs import read_directories
from troll.analysis.data.settings import first_experiments
from troll.analysis.render.html import write_page
from troll.common.numerics import NUMERICS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """Of 60 problems troll solves 15 more than clip in gentle and 15 fewer in stale; 3 seeds."""
    counts = {("clip", "gentle"): 30, ("troll", "gentle"): 45, ("clip", "stale"): 30, ("troll", "stale"): 15}
    return synthetic.read_solved(tmp_path_factory.mktemp("results") / "testbed", counts, batches=4)


def verdict(known, **changes):
    return judge([claim(**changes)], known.runs, known.items)[0]


GENTLE, STALE = {"condition": ["gentle"]}, {"condition": ["stale"]}


# Every seed differs from clip by the same 15 problems, so intervals have no width.
CASES: list[tuple[dict[str, object], str]] = [
    ({"where": GENTLE}, "supported everywhere"),
    ({"where": GENTLE, "margin": 0.1}, "supported everywhere"),
    ({"where": GENTLE, "margin": 0.25}, "inconclusive"),
    ({"where": GENTLE, "margin": 0.5}, "the contrary holds"),
    ({"where": STALE}, "the contrary holds"),
    ({"where": STALE, "direction": "lower"}, "supported everywhere"),
    ({"where": GENTLE, "direction": "lower"}, "the contrary holds"),
    ({}, "depends on condition"),
    ({"where": GENTLE, "direction": "equivalent", "margin": 0.5}, "supported everywhere"),
    ({"where": GENTLE, "direction": "equivalent", "margin": 0.05}, "the contrary holds"),
    ({"where": GENTLE, "least_seeds": 4}, "inconclusive"),
    ({"where": {"model": ["Qwen3-*"]}}, "not run"),
    ({"trust_region": "gspo-clip"}, "not run"),
    ({"baseline": "gspo-clip"}, "not run"),
    ({"metric": "mean/nothing"}, "not run"),
    ({"baseline": "base", "where": GENTLE}, "supported everywhere"),
    ({"metric": "max_drawdown", "direction": "lower", "where": STALE}, "supported everywhere"),
    ({"metric": "late_kl", "direction": "lower"}, "supported everywhere"),
    ({"metric": "late_kl", "direction": "lower", "relative": True, "margin": 0.5}, "supported everywhere"),
    ({"metric": "auc", "baseline": 0.4, "where": GENTLE}, "supported everywhere"),
    ({"metric": "auc", "baseline": 0.9, "where": GENTLE}, "the contrary holds"),
    ({"metric": "pass@4", "baseline": 0.5, "where": GENTLE}, "supported everywhere"),
    ({"metric": "pass@4", "relative": True, "where": GENTLE}, "supported everywhere"),
    ({"metric": "pass@9", "baseline": 0.5, "where": GENTLE}, "not run"),
    ({"metric": "mean/nothing", "baseline": 0.9}, "not run"),
    ({"metric": "mean/kl_to_old", "direction": "lower"}, "supported everywhere"),
    ({"trust_region": "t*l", "where": GENTLE}, "supported everywhere"),
]
HOURS = {"metric": "hours", "relative": True, "direction": "equivalent", "margin": 0.1}


def on_gpus(runs, count):
    """The tidy table of runs that had so many GPUs each."""
    first = runs.drop_duplicates("run_id")
    return pd.concat([runs, first.assign(source="manifest", metric="gpus", value=float(count))])


def test_wall_clock_times_are_compared_only_where_each_run_has_a_gpu_to_itself(known):
    (alone,) = judge([claim(**HOURS)], on_gpus(known.runs, 1), known.items)
    assert alone.verdict == "supported everywhere"
    for runs in (known.runs, on_gpus(known.runs, 0)):
        (shared,) = judge([claim(**HOURS)], runs, known.items)
        assert shared.verdict == "not run"
        assert (
            shared.no_data_reason == "runs share processors, so that their wall-clock times are not compared"
        )


def test_verdicts(known):
    claims = [claim(id=f"c{index}", **changes) for index, (changes, _) in enumerate(CASES)]
    judged = judge(claims, known.runs, known.items)
    for one, (changes, expected) in zip(judged, CASES, strict=True):
        assert one.decision.label == expected, changes


def test_evidence_says_where_how_much_and_how_many(known):
    judged = verdict(known)
    assert [part.name for part in judged.decision.settings] == [
        "testbed / tiny / chains / gentle / grpo",
        "testbed / tiny / chains / stale / grpo",
    ]
    assert [part.effect for part in judged.decision.settings] == pytest.approx([0.25, -0.25])
    assert why(judged) == (
        "gentle +25.0, stale −25.0 points; holds in 1 of 2 settings, the contrary is shown in 1; on "
        "average over seeds it ends below its own base model in 1 of 2 settings on chains"
    )
    assert why(verdict(known, least_seeds=4)).startswith("3 seeds in 2 settings, the claim asks for 4; ")


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("stale", "not shown in any of 2 stale ones, chains / new"),
        ("lr1e-5 to lr1e-3", "not shown in any of 2 from lr1e-5 to lr1e-3, chains / new"),
    ],
)
def test_settings_that_do_not_show_a_claim_are_named_by_condition(condition, said):
    doubtful, shown = np.array([-0.05, 0.0, 0.2]), np.array([0.19, 0.2, 0.21])
    places = [
        ("chains", condition, doubtful),
        ("functions", condition, doubtful),
        ("chains", "new", doubtful),
    ]
    places += [("functions", "new", shown), ("sums", "new", shown), ("sums", "old", shown)]
    rest = {"model": "tiny", "estimator": "grpo", "method": "troll"}
    settings = [
        PairedDifferences(f"{task} / {name}", rest | {"task": task, "condition": name}, values)
        for task, name, values in places
    ]
    decision = decide(Side("higher", 0.0), settings, 3)
    assert decision.verdict == "supported on average"
    assert why(ClaimVerdict(claim(), decision)).endswith(said)


def test_settings_know_which_runs_they_are_compared_with(tmp_path):
    """Variants share the baseline's alone. A base model's samples have no seeds."""
    root = tmp_path / "testbed"
    dirs = [
        synthetic.write_run(root, task, method, "grpo", condition, seed, batches=2)
        for task, condition in (("chains", "gentle"), ("chains", "stale"), ("functions", "gentle"))
        for method in ("clip", "troll", "troll-k4")
        for seed in range(2)
    ]
    bases = [synthetic.write_base(root, task) for task in ("chains", "functions")]
    collected = read_directories(dirs, bases)

    def baselines(**changes):
        decision = verdict(collected, trust_region="troll*", **changes).decision
        assert all(one.seed_numbers == (0.0, 1.0) for one in decision.settings)
        return [one.baseline for one in decision.settings]

    found = baselines()
    assert len(found) == 6 and len(set(found)) == 3 and None not in found
    assert set(baselines(baseline="base")) == set(baselines(metric="auc", baseline=0.5)) == {None}


def test_a_run_that_stands_in_two_experiments_counts_once(known):
    tables = (known.runs, known.items)

    def twice(change, **changed):
        again = [frame.assign(experiment="again", **change) for frame in tables]
        again[0] = synthetic.record(again[0], again[0]["seed"].notna(), **changed)
        both = [pd.concat(pair, ignore_index=True) for pair in zip(tables, again, strict=True)]
        return judge([claim(where=GENTLE)], *both)[0]

    assert len(twice({}).decision.settings) == 1, "the same runs"
    assert len(twice({"git_commit": "0" * 40}).decision.settings) == 1, "another program, the same seeds"
    assert len(twice({"numerics": 0}).decision.settings) == 1, "as where a version changed other rules"
    assert len(twice({}, **{"training.learning_rate": 0.5}).decision.settings) == 2, "another configuration"
    assert len(twice({"digest_data": "0" * 64}).decision.settings) == 2, "other data"
    first, rest = ([frame[frame["seed"].isin(seeds)] for frame in tables] for seeds in ([0], [0, 1, 2]))
    rest = [frame.assign(experiment="again") for frame in rest]
    both = [pd.concat(pair, ignore_index=True) for pair in zip(first, rest, strict=True)]
    (setting,) = judge([claim(where=GENTLE)], *both)[0].decision.settings
    assert setting.seeds == 3, "the seeds of both, each once"


def test_another_batch_size_is_no_further_setting_but_its_runs_count(known):
    trained = known.runs["seed"].notna()
    small, large, faster = (
        synthetic.record(
            known.runs, trained, **{"training.responses_per_prompt": size, "training.learning_rate": rate}
        )
        for size, rate in ((8, 1e-4), (16, 1e-4), (16, 1e-3))
    )

    def settings(*tables, **changed):
        runs = [table.assign(experiment=f"e{number}") for number, table in enumerate(tables)]
        runs[-1] = runs[-1].assign(**changed)
        items = [known.items.assign(experiment=f"e{number}") for number in range(len(tables))]
        return judge([claim(where=GENTLE)], *map(pd.concat, (runs, items)))[0].decision.settings

    float32 = synthetic.record(large, trained, **{"training.mixed_precision": False})
    (joined,) = settings(small, float32)
    assert joined.seeds == 6
    (joined,) = settings(small, large)
    assert joined.seeds == 6 and joined.name.startswith("e0 and e1 / ")
    assert len(settings(small, faster)) == 2 == len(settings(small, large, digest_data="0" * 64))


def test_a_retired_claim_is_listed_with_its_reason_and_counted_nowhere(known):
    claims = [claim(id="kept", sentence="Kept", where=GENTLE)]
    claims += [claim(id="gone", sentence="Gone", where=GENTLE, retired="the duel answers it")]
    judged = judge(claims, known.runs, known.items)
    before, _, listed = to_markdown(judged).partition("1 claim retired, which no count includes:\n\n")
    assert before.startswith("1 claim: 1 supported everywhere.") and "Gone" not in before
    assert listed.startswith("- Gone (`gone`): the duel answers it. Its runs: supported everywhere, +25.0")
    assert "the duel answers it" in to_folded_markdown(judged)
    table, _, listed = to_short_markdown(judged).partition("1 claim retired, which no count includes:\n\n- ")
    assert "Gone" not in table and listed.startswith("Gone (`gone`): the duel answers it.")
    assert findings(judged)[-1] == (
        "Of 1 claim with runs: 1 supported everywhere. "
        "1 retired claim is not counted: 1 supported everywhere."
    )


@pytest.mark.parametrize(
    ("here", "there", "same"),
    [
        ({"training.validate_every": 5}, {"training.validate_every": 9}, True),
        ({"training.optimizer": "adamw"}, {"training.optimizer": "sgd"}, False),
        ({"training.keep": 64}, {"training.keep": 64.0}, True),
        ({"training.keep": 64}, {"training.keep": "64"}, False),
        ({"training.schedule": [1, 2]}, {"training.schedule": [2, 1]}, False),
        ({}, {"training.schedule": [2, 1]}, True),
        ({"estimator.settings.epsilon": None}, {"estimator.settings.epsilon": 0.1}, True),
        ({}, {"training.reward": "mine.py:reward"}, False),
        ({"training.mixed_precision": False}, {}, False),
        ({}, {"model.initializer_range": 0.1}, False),
        ({}, {"model.hub": None, "model.supervised": {"steps": 700}}, True),
        ({"model.wheel": {"a": 1}}, {"model.wheel": {"a": 1}, "model.supervised": {"steps": 9}}, False),
        ({"model.adapter": {"directory": "here", "sha256": "0"}}, {}, False),
        ({}, {"training.epochs": 20}, True),
        ({"training.share_prompts": True}, {}, True),
        ({}, {"thinking": "on"}, False),
        ({"files_sha256.reward": "0"}, {"files_sha256.reward": "1"}, False),
        ({"files_sha256.reward": "0"}, {}, False),
    ],
)
def test_runs_are_the_same_that_agree_in_all_settings_but_those_of_watching(known, here, there, same):
    """What only one records, as a later version may, is no disagreement unless defaults are left out."""
    trained = known.runs["seed"].notna()
    first, second = (synthetic.record(known.runs, trained, **settings) for settings in (here, there))
    both = pd.concat([first, second.assign(experiment="again")], ignore_index=True)
    runs = sorted(set(known.runs.loc[trained, "run_id"]))
    assert {first_experiments(both)["again", run] for run in runs} == {"testbed" if same else "again"}
    assert {first_experiments(both)["testbed", run] for run in runs} == {"testbed"}


@pytest.mark.parametrize(
    ("model", "same"),
    [
        ({"model.supervised.steps": 700, "model.hub": None}, True),
        ({"model.supervised.steps": 700, "model.hub": "someone/model"}, False),
        ({}, False),
    ],
)
def test_weights_that_another_processor_rounded_make_no_other_run_but_those_of_a_hub_do(known, model, same):
    trained = known.runs["seed"].notna()
    first = synthetic.record(known.runs, trained, **model)
    again = first.assign(experiment="again", digest_base_model="0" * 64)
    owners = first_experiments(pd.concat([first, again], ignore_index=True))
    found = {owners["again", run] for run in set(known.runs.loc[trained, "run_id"])}
    assert found == {"testbed" if same else "again"}


def test_ledger_files(tmp_path, known):
    table = tmp_path / "all.parquet"
    table.write_bytes(b"x")
    judged = judge(
        [claim(history=["asked first"]), claim(id="d", trust_region="gspo")], known.runs, known.items
    )
    paths = write_claims(judged, known.runs, [table], tmp_path / "claims")
    text = paths[0].read_text()
    assert text.splitlines()[0] == "2 claims: 1 depends, 1 not run."
    assert "| S (`c`) | **depends on condition** | gentle +25.0, stale −25.0 points; holds in 1 of 2" in text
    assert "- history: asked first" in text
    missing = "1 claim that these runs cannot judge, and what is missing:"
    assert text.endswith(f"{missing}\n\n- S (`d`): missing: runs of gspo and clip\n")
    ledger = json.loads(paths[1].read_text())
    assert ledger["inputs"]["all.parquet"].startswith("2d711642")
    assert ledger["numerics"] == [NUMERICS] and ledger["digests"]["data"] == ["d" * 64]
    assert [entry["verdict"] for entry in ledger["claims"]] == ["depends on condition", "not run"]
    assert ledger["claims"][0]["evidence"][0]["seeds"] == 3
    assert ledger["claims"][0]["levels"] == {"gentle": 0.25, "stale": -0.25}
    first = [path.read_bytes() for path in paths]
    assert [
        path.read_bytes() for path in write_claims(judged, known.runs, [table], tmp_path / "claims")
    ] == first


def test_the_projects_own_claims_are_valid_and_mostly_not_run(known):
    claims = read_claims([claims_file("default")])
    judged = {one.claim.id: one for one in judge(claims, known.runs, known.items)}
    assert judged["better-final-success-qwen3-dapo"].verdict == "not run"
    assert judged["testbed-stale-better"].verdict == "the contrary holds"
    missing = {name for name, one in judged.items() if one.verdict == "not run"}
    assert missing == {name for name in judged if not name.startswith("testbed")} | {
        "testbed-bound-matters-little",
        "testbed-stale-clip-ranges-below-troll",
        "testbed-small-k-suffices",
        "testbed-small-time-overhead",  # the synthetic runs measure no processor seconds
    }
    assert all(f"(`{name}`): " in to_markdown(list(judged.values())) for name in missing)


def test_short_ledger_shows_what_was_judged_and_counts_the_rest(known):
    judged = judge([claim(id="n", trust_region="gspo"), claim()], known.runs, known.items)
    assert to_short_markdown(judged).splitlines() == [
        "| Claim | Verdict | Why |",
        "| --- | --- | --- |",
        f"| S | **depends on condition** | {why(judged[1])} |",
        "",
        "1 further claim: **not run**.",
    ]
    assert to_short_markdown(judged[:1]) == "1 further claim: **not run**.\n"


def test_ledger_tells_differences_in_their_units(known):
    claims = [
        claim(where=GENTLE, margin=0.03),
        claim(id="k", metric="late_kl", direction="lower", where=GENTLE),
        claim(id="h", **HOURS, where=GENTLE),
    ]
    text = to_markdown(judge(claims, on_gpus(known.runs, 1), known.items))
    assert "**c** (pass@1, troll minus clip; claimed: higher, margin 3 points)" in text
    assert "/ grpo: +25.0 [+25.0, +25.0] points, 3 seeds" in text
    assert re.search(r"/ grpo: −0\.0\d+ \[−0\.0\d+, −0\.0\d+\] nats, 3 seeds", text)
    assert "/ grpo: 0.0 [0.0, 0.0] %, 3 seeds" in text


def test_one_seed_is_inconclusive_and_has_no_interval(known):
    few = known.runs[known.runs["seed"] == 0]
    (one,) = judge([claim(metric="late_kl", where=GENTLE)], few, known.items[known.items["seed"] == 0])
    assert one.verdict == "inconclusive"
    assert why(one).startswith("1 seed in 1 setting, the claim asks for 3; ")
    text = to_markdown([one])
    assert "nats, no interval, 1 seed" in text and "nan" not in text


def test_the_complete_report_folds_numbers_and_what_was_not_run(known):
    judged = judge([claim(), claim(id="n", trust_region="gspo")], known.runs, known.items)
    text = to_folded_markdown(judged)
    assert text.index("depends on condition") < text.index("<summary>Numbers</summary>")
    assert text.index("Numbers</summary>") < text.index("<summary>1 claim that these runs cannot judge")
    assert text.count("<details>") == 2 and "- S (`n`): missing: runs of gspo and clip" in text


def test_no_runs_at_all_is_not_run(known):
    assert judge([claim()], known.runs.iloc[:0], known.items.iloc[:0])[0].verdict == "not run"


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("a: 1", ("list", "dict")),
        ("[", ("YAML",)),
        ("- {id: c}", ("claim c", "sentence")),
        ("- 3", ("claim 0", 3)),
    ],
)
def test_broken_files_are_named(tmp_path, text, facts):
    path = tmp_path / "claims.yaml"
    path.write_text(text)
    with refused(path, *facts):
        read_claims([path])


def test_misspelt_fields_and_double_ids_are_refused(tmp_path):
    entry = claim().model_dump()
    mine, other = tmp_path / "mine.yaml", tmp_path / "other.yaml"
    mine.write_text(yaml.safe_dump([entry]))
    assert read_claims([mine])[0] == claim()
    other.write_text(yaml.safe_dump([entry]))
    with refused(other, "claim c"):
        read_claims([mine, other])
    other.write_text(yaml.safe_dump([entry | {"margine": 1}]))
    with refused(other, "claim c", "margine", "'margin'"):
        read_claims([other])
    other.write_text(yaml.safe_dump([entry | {"direction": "better"}]))
    with refused(other, "claim c", "direction", "'better'", "'lower'"):
        read_claims([other])
    other.write_text(yaml.safe_dump([entry | {"place": "P"}]))
    with refused(other, "claim c", "'place'"):
        read_claims([other])
    with refused(tmp_path / "none.yaml"):
        read_claims([tmp_path / "none.yaml"])


def test_a_former_id_still_names_its_claim_and_cannot_be_taken(tmp_path):
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump([claim(aliases=["old"]).model_dump(), claim(id="old").model_dump()]))
    with refused(path, "claim old"):
        read_claims([path])
    path.write_text(yaml.safe_dump([claim(aliases=["old"]).model_dump()]))
    (one,) = read_claims([path])
    assert "called old before" in to_markdown([ClaimVerdict(one, decided(0.2, spread=0.1))])


@pytest.mark.parametrize("metric", ["mean/nothing", "math500/pass@1", "pass@16"])
def test_a_metric_that_no_run_has_is_named(known, metric):
    (one,) = judge([claim(metric=metric)], known.runs, known.items)
    assert one.verdict == "not run" and why(one) == f"no run of troll has the metric {metric!r}"
    (other,) = judge([claim(metric=metric, trust_region="gspo")], known.runs, known.items)
    assert why(other) == "no runs of gspo and clip where the claim applies"


@pytest.mark.parametrize(
    ("metric", "effect", "told"),
    [
        ("peak_gib", 1.25, "+1.25 GiB"),
        ("peak", 0.0126, "+1.3 points"),
        ("math-eval/pass@1", 0.031, "+3.1 points"),
        ("entropy", 0.5, "+0.500 nats"),
    ],
)
def test_differences_are_told_in_the_unit_of_their_metric(metric, effect, told):
    assert span(ClaimVerdict(claim(metric=metric), decided(effect, spread=0))) == told


def test_a_sentence_cannot_break_a_table(known):
    judged = judge([claim(sentence="A | B\nC", source="x|y")], known.runs, known.items)
    (row,) = [line for line in to_markdown(judged).splitlines() if line.startswith("| A")]
    assert row.startswith(r"| A \| B C (`c`) |") and row.endswith(r"| x\|y |")
    assert r"| A \| B C |" in to_short_markdown(judged)


def test_a_note_cannot_bring_a_script_into_the_page(known, tmp_path):
    note = "a < b\n<script>alert(1)</script>"
    judged = judge([claim(note=note, where=GENTLE)], known.runs, known.items)
    write_page(tmp_path / "page.html", f"# Title\n\n{to_folded_markdown(judged)}", tmp_path)
    page = (tmp_path / "page.html").read_text()
    assert (
        "<script>alert" not in page and "&lt;script&gt;alert(1)&lt;/script&gt;" in page and "a &lt; b" in page
    )


def test_two_claims_files_of_one_name_keep_both_digests(known, tmp_path):
    paths = [tmp_path / name / "claims.yaml" for name in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        path.write_text(path.parent.name)
    write_claims(judge([claim()], known.runs, known.items), known.runs, paths, tmp_path / "claims")
    inputs = json.loads((tmp_path / "claims.json").read_text())["inputs"]
    assert sorted(inputs) == ["b/claims.yaml", "claims.yaml"] and len({*inputs.values()}) == 2


@pytest.mark.parametrize("value", [0.0, -0.4])
def test_nothing_is_so_many_percent_of_a_baseline_that_is_not_positive(known, value):
    runs = known.runs.copy()
    changed = (runs["metric"] == "summary/entropy") & (runs["trust_region"] == "clip") & (runs["seed"] == 0)
    runs.loc[changed, "value"] = value
    (one,) = judge([claim(metric="entropy", relative=True)], runs, known.items)
    assert one.decision.settings
    assert all(np.isfinite(setting.differences).all() for setting in one.decision.settings)
    assert all(0.0 not in setting.seed_numbers for setting in one.decision.settings)


@pytest.mark.parametrize(
    ("changes", "methods"),
    [
        ({"trust_region": "*l*", "baseline": "troll"}, ["clip", "clip"]),
        ({"trust_region": "t*", "baseline": "troll"}, []),
        ({"trust_region": "*", "baseline": "base"}, ["clip", "troll", "clip", "troll"]),
        ({"trust_region": "*", "baseline": 0.5}, ["clip", "troll", "clip", "troll"]),
    ],
)
def test_a_pattern_is_about_neither_the_baseline_nor_the_base_model(known, changes, methods):
    settings = verdict(known, direction="equivalent", margin=0.5, **changes).decision.settings
    assert [setting.coordinates["method"] for setting in settings] == methods
