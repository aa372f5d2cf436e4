import json
import re
from pathlib import Path

import numpy as np
import pytest
import synthetic
import yaml

from troll.analysis.claims import Claim, Judged, judge, read_claims
from troll.analysis.ledger import to_html, to_markdown, to_short_markdown, write_claims
from troll.analysis.runs import Collected, read_directories
from troll.errors import UserError

ROOT = Path(__file__).parents[2]


def claim(**changes: object) -> Claim:
    entry = {
        "id": "c",
        "sentence": "S",
        "place": "P",
        "method": "troll",
        "baseline": "clip",
        "metric": "pass@1",
        "direction": "higher",
    }
    return Claim.model_validate(entry | changes)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    """Of 60 problems troll solves 15 more than clip in gentle and 15 fewer in stale; 3 seeds."""
    root = tmp_path_factory.mktemp("results") / "testbed"
    solved = {("clip", "gentle"): 30, ("troll", "gentle"): 45, ("clip", "stale"): 30, ("troll", "stale"): 15}
    dirs = [
        synthetic.write_run(
            root,
            "chains",
            method,
            "grpo",
            condition,
            seed,
            batches=4,
            table=np.repeat(np.arange(60) < count, 8).reshape(60, 8),
        )
        for (method, condition), count in solved.items()
        for seed in range(3)
    ]
    base = synthetic.write_base(root, "chains", table=np.repeat(np.arange(60) < 20, 8).reshape(60, 8))
    return read_directories(dirs, [base])


def verdict(known: Collected, **changes: object) -> Judged:
    return judge([claim(**changes)], known.runs, known.items)[0]


GENTLE, STALE = {"condition": ["gentle"]}, {"condition": ["stale"]}


CASES: list[tuple[dict[str, object], str]] = [
    ({"where": GENTLE}, "supported"),
    ({"where": GENTLE, "margin": 0.1}, "supported"),
    ({"where": GENTLE, "margin": 0.25}, "inconclusive"),
    ({"where": GENTLE, "margin": 0.5}, "contradicted"),
    ({"where": STALE}, "contradicted"),
    ({"where": STALE, "direction": "lower"}, "supported"),
    ({"where": GENTLE, "direction": "lower"}, "contradicted"),
    ({}, "contradicted"),
    ({"where": GENTLE, "direction": "equivalent", "margin": 0.5}, "supported"),
    ({"where": GENTLE, "direction": "equivalent", "margin": 0.05}, "contradicted"),
    ({"where": GENTLE, "direction": "equivalent", "margin": 0.25}, "inconclusive"),
    ({"where": GENTLE, "least_seeds": 4}, "inconclusive"),
    ({"where": {"model": ["Qwen3-*"]}}, "not run"),
    ({"method": "gspo-clip"}, "not run"),
    ({"baseline": "gspo-clip"}, "not run"),
    ({"metric": "no such metric"}, "not run"),
    ({"baseline": "base", "where": GENTLE}, "supported"),
    ({"metric": "drop", "direction": "lower", "where": STALE}, "supported"),
    ({"metric": "kl", "direction": "lower"}, "supported"),
    ({"metric": "kl", "direction": "lower", "relative": True, "margin": 0.5}, "supported"),
    ({"metric": "area", "baseline": 0.4, "where": GENTLE}, "supported"),
    ({"metric": "area", "baseline": 0.9, "where": GENTLE}, "contradicted"),
    ({"metric": "no such metric", "baseline": 0.9}, "not run"),
    ({"metric": "mean/kl_to_old", "direction": "lower"}, "supported"),
    ({"method": "t*l", "where": GENTLE}, "supported"),
    ({"metric": "hours", "relative": True, "direction": "equivalent", "margin": 0.1}, "supported"),
]


def test_verdicts(known: Collected) -> None:
    claims = [claim(id=f"c{index}", **changes) for index, (changes, _) in enumerate(CASES)]
    judged = judge(claims, known.runs, known.items)
    for one, (changes, expected) in zip(judged, CASES, strict=True):
        assert one.verdict == expected, changes


def test_evidence_says_where_how_much_and_how_many(known: Collected) -> None:
    judged = verdict(known)
    assert [part.setting for part in judged.evidence] == [
        "testbed / tiny / chains / gentle / grpo",
        "testbed / tiny / chains / stale / grpo",
    ]
    assert [part.interval.estimate for part in judged.evidence] == pytest.approx([0.25, -0.25])
    assert judged.reason == "holds in 1 of 2 settings, shown wrong in 1"
    assert verdict(known, least_seeds=4).reason == "3 seeds in 2 settings, the claim asks for 4"


def test_ledger_files(tmp_path: Path, known: Collected) -> None:
    table = tmp_path / "runs.parquet"
    table.write_bytes(b"x")
    judged = judge([claim(), claim(id="d", method="gspo")], known.runs, known.items)
    paths = write_claims(judged, known.runs, [table], tmp_path / "claims")
    text = paths[0].read_text()
    assert text.startswith("2 claims: 0 supported, 1 contradicted, 0 inconclusive, 1 not run.")
    assert "| S (`c`) | **contradicted** | holds in 1 of 2 settings, shown wrong in 1; −25.0 to +25" in text
    ledger = json.loads(paths[1].read_text())
    assert ledger["inputs"]["runs.parquet"].startswith("2d711642")
    assert ledger["digests"]["source"] == ["5" * 64]
    assert [entry["verdict"] for entry in ledger["claims"]] == ["contradicted", "not run"]
    assert ledger["claims"][0]["evidence"][0]["seeds"] == 3
    first = [path.read_bytes() for path in paths]
    assert [
        path.read_bytes() for path in write_claims(judged, known.runs, [table], tmp_path / "claims")
    ] == first


def test_the_projects_own_claims_are_valid_and_mostly_not_run(known: Collected) -> None:
    claims = read_claims([ROOT / "workflow/config/claims.yaml"])
    judged = {one.claim.id: one for one in judge(claims, known.runs, known.items)}
    assert judged["better-final-success-qwen3-dapo"].verdict == "not run"
    assert judged["testbed-stale-better"].verdict == "contradicted"
    missing = {name for name, one in judged.items() if one.verdict == "not run"}
    assert missing == {name for name in judged if not name.startswith("testbed")} | {
        "testbed-bound-matters-little",
        "testbed-clip-range-not-the-cause",
        "testbed-small-k-suffices",
    }
    assert to_markdown(list(judged.values())).count("**not run**") == len(missing)


def test_short_ledger_shows_what_was_judged_and_counts_the_rest(known: Collected) -> None:
    judged = judge([claim(id="n", method="gspo"), claim()], known.runs, known.items)
    assert to_short_markdown(judged).splitlines() == [
        "| Claim | Verdict | Why |",
        "| --- | --- | --- |",
        "| S | **contradicted** | holds in 1 of 2 settings, shown wrong in 1; −25.0 to +25.0 points |",
        "",
        "1 further claim of the ledger: **not run**.",
    ]
    assert to_short_markdown(judged[:1]) == "1 further claim of the ledger: **not run**.\n"


def test_ledger_tells_differences_in_their_units(known: Collected) -> None:
    claims = [
        claim(where=GENTLE, margin=0.03),
        claim(id="k", metric="kl", direction="lower", where=GENTLE),
        claim(id="h", metric="hours", relative=True, direction="equivalent", margin=0.1, where=GENTLE),
    ]
    text = to_markdown(judge(claims, known.runs, known.items))
    assert "**c** (pass@1, troll minus clip; claimed: higher, margin 3 points)" in text
    assert re.search(r"/ grpo: \+25\.0 \[\+1\d\.\d, \+3\d\.\d\] points, 3 seeds", text)
    assert re.search(r"/ grpo: −0\.0\d+ \[−0\.0\d+, −0\.0\d+\] nats, 3 seeds", text)
    assert "/ grpo: 0.0 [0.0, 0.0] %, 3 seeds" in text


def test_one_seed_is_inconclusive_and_has_no_interval(known: Collected) -> None:
    few = known.runs[known.runs["seed"] == 0]
    (one,) = judge([claim(metric="kl", where=GENTLE)], few, known.items[known.items["seed"] == 0])
    assert one.verdict == "inconclusive" and one.reason == "1 seed in 1 setting, the claim asks for 3"
    text = to_markdown([one])
    assert "nats, no interval, 1 seed" in text and "nan" not in text


def test_html_ledger_escapes_and_folds_away_what_was_not_run(known: Collected) -> None:
    judged = judge([claim(sentence="<S>"), claim(id="n", method="gspo")], known.runs, known.items)
    text = to_html(judged)
    assert "&lt;S&gt;" in text and "<S>" not in text
    assert text.index("contradicted") < text.index("1 claim not run here")
    assert text.count("<details>") == 2


def test_no_runs_at_all_is_not_run(known: Collected) -> None:
    assert judge([claim()], known.runs.iloc[:0], known.items.iloc[:0])[0].verdict == "not run"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1", "expected a list of claims, found dict"),
        ("[", "not YAML"),
        ("- {id: c}", r"claim c: sentence: Field required"),
        ("- 3", r"claim 0: claim: "),
    ],
)
def test_broken_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as error:
        read_claims([path])
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


def test_misspelt_fields_and_double_ids_are_refused(tmp_path: Path) -> None:
    entry = claim().model_dump()
    mine, other = tmp_path / "mine.yaml", tmp_path / "other.yaml"
    mine.write_text(yaml.safe_dump([entry]))
    assert read_claims([mine])[0] == claim()
    other.write_text(yaml.safe_dump([entry]))
    with pytest.raises(UserError, match="claim c comes twice"):
        read_claims([mine, other])
    other.write_text(yaml.safe_dump([entry | {"margine": 1}]))
    with pytest.raises(UserError, match="claim c: margine: Extra inputs"):
        read_claims([other])
    other.write_text(yaml.safe_dump([entry | {"direction": "better"}]))
    with pytest.raises(UserError, match="claim c: direction"):
        read_claims([other])
    with pytest.raises(UserError, match="no such file"):
        read_claims([tmp_path / "none.yaml"])
