"""The golden runs hold the version of the numbers: a source that computes otherwise has another one."""

import copy
import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from golden_values import (
    AGAIN,
    CHANGED,
    PATHS,
    difference,
    elsewhere,
    entries,
    far,
    outdated,
    recorded_for,
    refusal,
    text_of,
)

from troll.algorithms.advantages import ESTIMATORS
from troll.algorithms.trust_regions import TRUST_REGIONS
from troll.common.numerics import NUMERICS
from troll.common.processor import first_processor

RECORDED = recorded_for(first_processor().get("vendor_id", ""), NUMERICS)
WHOLE = [name for name, run in RECORDED["runs"].items() if "passed" in run]


def made(directory, *words):
    """Golden runs, made now, in one process that imports torch after the processor is prepared."""
    if outdated(RECORDED, NUMERICS):
        pytest.skip("the recorded runs are of another version of the numbers")
    out = directory / "golden.json"
    command = [sys.executable, str(Path(__file__).with_name("make.py")), str(out), *words]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        pytest.fail(f"the golden runs cannot be made: {ended.stderr.strip()[-2000:]}", pytrace=False)
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Those of golden.yaml: of each kind of rule, estimator, condition and task."""
    return made(tmp_path_factory.mktemp("few"), "few")


def difference_here(name, found):
    """As `difference`; where packages or processor are others, only what is more than rounding."""
    recorded = entries(RECORDED).get(name)
    line = difference(name, recorded, entries(found).get(name))
    reasons = elsewhere(RECORDED, found)
    if recorded and recorded.get("other"):
        reasons.append("recorded on a processor of another maker alone")
    if line is None or not line.startswith(CHANGED) or not reasons:
        return line
    warnings.warn(f"golden runs are compared to a tolerance only: {', '.join(reasons)}", stacklevel=1)
    return far(name, entries(RECORDED)[name], entries(found)[name])


def skip_what_was_not_made(name, found):
    for task, reason in found["left_out"].items():
        if f"of {task}" in name or f"on {task}" in name:
            pytest.skip(f"golden runs on {task} are not made here: {reason}")


def other_base_models(found):
    """Tasks whose base model differs, for which its own test fails already."""
    return [name.split()[-1] for name in found["models"] if difference_here(name, found)]


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED["models"])
def test_base_models_are_what_was_recorded(found, name):
    skip_what_was_not_made(name, found)
    if line := difference_here(name, found):
        pytest.fail(line, pytrace=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_runs_are_what_was_recorded(found, name):
    skip_what_was_not_made(name, found)
    if any(f"on {task}" in name for task in other_base_models(found)):
        pytest.skip("its base model differs already")
    if line := difference_here(name, found):
        pytest.fail(line, pytrace=False)


def fail_for_others(found, names):
    """Fails where one of these runs, of which not all numbers are kept, is not what was recorded."""
    if other_base_models(found):
        pytest.skip("a base model differs already")
    lines = [line for name in names if name not in WHOLE and (line := difference_here(name, found))]
    if lines:
        others = f"; {len(lines) - 1} other runs differ too" if lines[1:] else ""
        pytest.fail(f"{lines[0]}{others}", pytrace=False)


@pytest.mark.slow
def test_runs_under_other_conditions_give_what_was_recorded(found):
    others = [name for name in found["runs"] if name not in WHOLE]
    assert [name.rpartition(", ")[2] for name in others] == ["dapo", "constant-tail"]
    fail_for_others(found, others)


@pytest.mark.parametrize("registry", [TRUST_REGIONS, ESTIMATORS], ids=["rules", "estimators"])
def test_every_rule_and_estimator_is_recorded(registry):
    recorded = {word for name in RECORDED["runs"] for word in name.split()}
    # One that another test has made from text is in no module.
    own = [name for name, info in registry.items() if (info.function.__module__ or "").startswith("troll.")]
    missing = [name for name in own if name.replace("+", "p") not in recorded]
    assert len(own) >= 10 and not missing, f"{AGAIN}there is no run of {', '.join(missing)}"


@pytest.mark.slow
@pytest.mark.nightly  # each rule and estimator has references and contracts of its own
def test_all_other_rules_and_estimators_give_what_was_recorded(tmp_path):
    every = made(tmp_path)
    fail_for_others(every, dict.fromkeys([*RECORDED["runs"], *every["runs"]]))


def test_the_recorded_runs_are_of_this_version():
    if line := outdated(RECORDED, NUMERICS):
        pytest.fail(line, pytrace=False)


def test_the_records_of_both_makers_are_of_one_source_where_they_are_of_one_version():
    amd, intel = (json.loads(path.read_text()) for path in PATHS.values())
    assert [amd["made_with"]["maker"], intel["made_with"]["maker"]] == [*PATHS]
    if amd["numerics"] != intel["numerics"]:
        pytest.skip("one of them is of an older version of the numbers")
    alike = 0
    for name in entries(amd).keys() & entries(intel).keys():
        run, other = entries(amd)[name], entries(intel)[name]
        if (run["configuration"], run.get("logged")) != (other["configuration"], other.get("logged")):
            continue  # a default or a metric was changed on one machine: the other's own test says so there
        alike += 1
        assert far(name, run, other) is None and difference(name, run, other) is not None
    if not alike:
        pytest.skip("what is logged was changed on one machine: `make golden` on one of the other maker")


def test_an_outdated_record_gives_way_to_one_of_this_version():
    present = recorded_for("GenuineIntel", NUMERICS)
    assert present["numerics"] == NUMERICS
    assert recorded_for("of a maker that nobody knows", NUMERICS) == recorded_for("AuthenticAMD", NUMERICS)
    assert outdated(recorded_for("GenuineIntel", NUMERICS + 1), NUMERICS + 1)


def test_a_run_that_one_maker_lacks_is_compared_with_the_other_s(monkeypatch, tmp_path):
    for maker, names in (("AuthenticAMD", ["clip", "a new rule"]), ("GenuineIntel", ["clip"])):
        path = tmp_path / f"{maker}.json"
        path.write_text(json.dumps(FOUND | {"runs": dict.fromkeys(names, ENTRY)}))
        monkeypatch.setitem(PATHS, maker, path)
    assert recorded_for("AuthenticAMD", 3)["runs"] == {"clip": ENTRY, "a new rule": ENTRY}
    lacking = recorded_for("GenuineIntel", 3)
    assert lacking["runs"] == {"clip": ENTRY, "a new rule": ENTRY | {"other": True}}
    now = changed(0.51, "runs", "a new rule", "metrics", "kl_to_old", 1, of=lacking)
    assert refusal(lacking, now) is None


def values(name, metric):
    return [value for value in RECORDED["runs"][name]["metrics"][metric] if value is not None]


def test_in_every_recorded_run_something_is_learnt():
    assert len(WHOLE) == 8 and len(RECORDED["runs"]) > 40
    for name in RECORDED["runs"]:
        assert sum(norm > 0 for norm in values(name, "grad_norm")) >= 6, name
    for model in entries(RECORDED).values():
        assert "1" in "".join(model.get("passed", {"": "1"}).values())


@pytest.mark.parametrize("name", WHOLE)
def test_every_recorded_rule_acts(name):
    if name.startswith("kl-penalty"):  # the target is 1e-3: the coefficient doubles after the first batch
        assert values(name, "penalty_kl")[3] > 2e-3
    else:
        assert sum(value > 0.01 for value in values(name, "clip_fraction")) >= 3
    if "ppo-max" in name:
        assert min(values(name, "critic/loss")) > 0 and len(set(values(name, "kl_coefficient"))) == 2
    if "bapo" in name:
        assert len(set(values(name, "ratio_low_bound"))) > 1
    if "lagged" in name:
        fresh = [values(other, "kl_to_old")[4] for other in ("clip with grpo on chains", name)]
        assert fresh[0] < 1e-9 < 1e-4 < fresh[1], "the second batch was not sampled by an older policy"


def test_no_two_recorded_runs_are_equal_but_of_one_rule_with_two_names():
    by_weights = {}
    for name, run in RECORDED["runs"].items():
        by_weights.setdefault(run["digests"]["weights"], set()).add(name.split()[0])
    assert [names for names in by_weights.values() if len(names) > 1] == [{"none", "pg-is"}]


ENTRY = {
    "configuration": "c",
    "logged": "l",
    "metrics": {"kl_to_old": [0.0, 0.5, 0.01234], "loss": [0.0, None, 2.0]},
    "digests": {"all metrics": "m", "weights": "a"},
    "passed": {"chains/test/0": "010"},
}
FOUND = {
    "numerics": 3,
    "made_with": {"capability": "AVX2", "maker": "AuthenticAMD", "torch": "2"},
    "left_out": {},
    "models": {},
    "runs": {"clip on chains": ENTRY},
}


def changed(value, *path, of=ENTRY):
    result = copy.deepcopy(of)
    inner = result
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return result


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        (("metrics", "kl_to_old", 2), 0.01235, "step 3, kl_to_old: 0.01234 and 0.01235"),
        (("metrics", "kl_to_old", 1), 0.5000000000000001, "step 2, kl_to_old: 0.5 and 0.5000000000000001"),
        (("metrics", "loss", 0), -0.0, "step 1, loss: 0.0 and -0.0"),
        (("metrics", "loss"), [0.0, None], "step 3, loss: 2.0 and None"),
        (("digests", "all metrics"), "n", "all metrics: m and n"),
        (("digests", "weights"), "b", "weights: a and b"),
        (("passed", "chains/test/0"), "011", "chains/test/0: 010 and 011"),
    ],
)
def test_a_difference_is_one_line_that_says_where_and_what_to_do(path, value, where):
    now = changed(value, *path)
    assert difference("clip on chains", ENTRY, copy.deepcopy(ENTRY)) is None
    assert difference("clip on chains", ENTRY, now) == (
        "numbers changed: raise NUMERICS in troll/common/numerics.py and make the golden runs again "
        f"(make golden), or find the cause: clip on chains: {where}"
    )


def test_what_is_no_change_of_the_numbers_is_said_to_be_none():
    again = "make the golden runs again (make golden): "
    now = changed("d", "configuration")
    assert difference("clip", ENTRY, now) is None
    other = changed(0.6, "metrics", "kl_to_old", 1, of=now)
    assert (
        difference("clip", ENTRY, other) == f"{again}clip: its configuration changed, and with it its numbers"
    )
    more = changed(
        {**ENTRY["metrics"], "entropy": [1.0]}, "metrics", of=changed("n", "digests", "all metrics")
    )
    more["logged"] = "more"
    assert difference("clip", ENTRY, more) == (
        f"{again}clip: other metrics are logged, with equal numbers where both are"
    )
    assert difference("clip", None, ENTRY) == f"{again}clip: not recorded yet"
    assert difference("clip", ENTRY, None) == f"{again}clip: there is no such run any more"
    assert outdated(FOUND, 3) is None
    assert outdated(FOUND, 4) == f"{again}they are of version 3 of the numbers, and the source has 4"


def test_on_another_processor_only_more_than_rounding_counts():
    there = changed("AVX512", "made_with", "capability", of=FOUND)
    assert elsewhere(FOUND, FOUND) == [] and elsewhere(FOUND, there) == ["capability AVX512 instead of AVX2"]
    assert far("clip", ENTRY, changed(0.501, "metrics", "kl_to_old", 1)) is None
    assert far("clip", ENTRY, changed("b", "digests", "weights")) is None
    assert "step 2, kl_to_old: 0.5 and 0.6" in far("clip", ENTRY, changed(0.6, "metrics", "kl_to_old", 1))
    assert "step 2, loss: None and 1.0" in far("clip", ENTRY, changed(1.0, "metrics", "loss", 1))


def test_where_the_processor_is_another_the_runs_are_said_to_be_compared_loosely():
    name, path = "sapo with grpo on chains", ("runs", "sapo with grpo on chains", "metrics", "grad_norm", 0)
    norm = values(name, "grad_norm")[0]
    near, distant = (changed(norm * factor, *path, of=RECORDED) for factor in (1 + 1e-6, 1.1))
    assert difference_here(name, near).startswith(CHANGED)
    for found, allowed in ((near, True), (distant, False)):
        found["made_with"]["capability"] = "DEFAULT"
        with pytest.warns(UserWarning, match=r"DEFAULT.*AVX2"):
            assert (difference_here(name, found) is None) is allowed


def test_other_numbers_are_recorded_under_another_version_only():
    now = changed(0.6, "runs", "clip on chains", "metrics", "kl_to_old", 1, of=FOUND)
    assert refusal(FOUND, now).startswith("numbers changed: raise NUMERICS")
    for allowed in (
        changed(4, "numerics", of=now),
        changed("3", "made_with", "torch", of=now),
        changed("d", "runs", "clip on chains", "configuration", of=now),
        changed(ENTRY, "runs", "a new rule", of=FOUND),
        FOUND,
    ):
        assert refusal(FOUND, allowed) is None
    assert refusal(None, now) is None
    assert "AVX512" in refusal(None, changed("AVX512", "made_with", "capability", of=now))
    assert "no bwrap" in refusal(None, changed({"functions": "no bwrap"}, "left_out", of=now))
    assert "AuthenticAMD and GenuineIntel" in refusal(None, changed("ARM", "made_with", "maker", of=now))


def test_the_files_are_what_make_writes():
    for path in PATHS.values():
        assert path.read_text() == text_of(json.loads(path.read_text()))
