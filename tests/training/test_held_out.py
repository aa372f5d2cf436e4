"""Validation on named data sets: greedy, beside the training that it must not change."""

import subprocess

import pytest
import run_cases
from refusals import error_of
from run_cases import command, metrics

from troll.common.files import read_json, read_jsonl
from troll.evaluation.grading import grade
from troll.evaluation.sampling import sample
from troll.tasks.registry import get_task

pytestmark = pytest.mark.slow
NAME = "validation_success/chains"


def greedy_success(checkpoint, problems, out):
    """As after training: sampled by the evaluation's engine, graded from a file."""
    chosen = get_task("chains").load(problems)
    settings = {"samples_per_problem": 1, "temperature": 0.0, "max_new_tokens": 12}
    sample(checkpoint, chosen, out=out / "samples.jsonl", **settings)
    grade("chains", out / "samples.jsonl", problems, out / "grades.json")
    return read_json(out / "grades.json")["metrics"]["pass@1"]


def test_greedy_validation_is_that_of_the_checkpoint_and_changes_no_other_number(
    configure, guessing_base, run_data, tmp_path
):
    settings = {"rollout_batches": 5, "validate_every": 2, "learning_rate": 3e-3}
    plain = configure(tmp_path / "plain", **settings)
    held_out = configure(tmp_path / "held-out", validate_on={"chains": 8}, **settings)
    for out in (plain, held_out):
        subprocess.run(command(out, guessing_base, run_data), check=True)
    rows = metrics(held_out)
    found = {row["step"]: row.pop(NAME) for row in rows if NAME in row}
    # In the line after each validation, as the success on the validation split; in the last line at the end.
    assert list(found) == [row["step"] for row in rows if "validation_success" in row] == [1, 9, 17, 20]
    assert rows == metrics(plain) and run_cases.weights(held_out) == run_cases.weights(plain)
    problems = run_data / "suites/chains/test.jsonl"
    ends = [greedy_success(place, problems, tmp_path) for place in (guessing_base, held_out / "checkpoint")]
    assert [found[1], found[20]] == pytest.approx(ends)
    assert len(set(found.values())) > 1, "the success never changed, which proves nothing"


def test_a_run_without_a_validation_split_validates_on_its_data_sets(
    configure, guessing_base, run_data, tmp_path
):
    out = configure(tmp_path / "run", rollout_batches=2, validate_every=1, validate_on={"chains": 8})
    text = (out / "run.yaml").read_text()
    assert text.count("validation: 8") == 1
    (out / "run.yaml").write_text(text.replace("validation: 8", "validation: 0"))
    subprocess.run(command(out, guessing_base, run_data), check=True)
    rows = [row for row in read_jsonl(out / "metrics.jsonl") if NAME in row]
    assert [row["step"] for row in rows] == [1, 5, 8] and "validation_success" not in rows[0]


def test_a_run_that_validates_needs_the_problems(configure, guessing_base, run_data, tmp_path):
    out = configure(tmp_path / "run", rollout_batches=2, validate_on={"math500": 8})
    failed = subprocess.run(command(out, guessing_base, run_data), capture_output=True, text=True)
    error_of(failed, "suites/math500/test.jsonl", alone=False)
