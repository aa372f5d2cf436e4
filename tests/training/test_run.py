"""Whole runs: the same seed gives the same numbers, interrupted or not."""

import json
import subprocess
import time
from types import SimpleNamespace

import pytest
import yaml
from refusals import error_of
from run_cases import command, metrics, weights

from troll.analysis.data.runs import read_directories
from troll.analysis.data.summaries import per_run, stopped_runs
from troll.common.digests import digest_of_json
from troll.common.files import write_json
from troll.evaluation.grading import grade
from troll.evaluation.sampling import sample
from troll.tasks.prompts import encode
from troll.tasks.registry import get_task
from troll.training.prompts import load_policy_tokenizer

pytestmark = pytest.mark.slow


@pytest.fixture
def train(configure, guessing_base, run_data, tmp_path):
    """Trains a run in a directory of this name, and returns the directory."""

    def trained(name, *estimator, **settings):
        out = configure(tmp_path / name, *estimator, **settings)
        subprocess.run(command(out, guessing_base, run_data), check=True)
        return out

    return trained


# Those of ppo-max contain what grpo's show.
@pytest.mark.parametrize(
    "estimator", ["ppo-max", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("grpo", "dapo"))]
)
def test_equal_seeds_give_equal_runs_and_a_killed_run_goes_on(
    train, configure, guessing_base, run_data, tmp_path, estimator
):
    whole = train("whole", estimator, rollout_batches=6)
    killed = configure(tmp_path / "killed", estimator, rollout_batches=6)
    assert len(metrics(whole)) == 6 * 4
    assert sum(row["grad_norm"] > 0 for row in metrics(whole)) > 12, "too little was learnt to prove anything"
    assert any(row.get("clip_fraction", 0) > 0 for row in metrics(whole))
    firsts = [row for row in metrics(whole) if "success" in row]
    generated = [row["generated_samples"] for row in firsts]
    if estimator == "grpo":
        assert generated == [16 * (n + 1) for n in range(6)]
    elif estimator == "ppo-max":
        assert all("critic/loss" in row for row in metrics(whole))
        assert len({row["kl_coefficient"] for row in firsts}) == 6, "the coefficient did not adapt"
    else:
        spent = [now - before for now, before in zip(generated, [0, *generated], strict=False)]
        assert spent == [20 * row["dynamic_sampling_batches"] for row in firsts]
        assert max(spent) > 20 and all("overlong_penalty" in row for row in firsts)

    began = time.time()
    process = subprocess.Popen(command(killed, guessing_base, run_data))
    path = killed / "metrics.jsonl"
    deadline = time.monotonic() + 300
    # Past a checkpoint, and in the middle of a rollout batch: lines after the checkpoint must be dropped.
    while not path.exists() or len(path.read_text().splitlines()) < 10:
        assert process.poll() is None, (killed / "log").read_text()[-2000:]
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.kill()  # where it was forked from a warm server, this kills what was forked
    process.wait()
    ended = time.time()
    assert not (killed / "manifest.json").exists()
    lines_then = len(path.read_text().splitlines())
    if not list((killed / "trainer").glob("checkpoint-*/complete.json")) or lines_then >= 24:
        pytest.fail("the kill came at a moment that proves nothing")

    resumed = subprocess.run(
        command(killed, guessing_base, run_data), check=True, capture_output=True, text=True
    )
    first = int(resumed.stderr.split("step ")[1].split("/")[0])
    assert first > 4, "the run began again instead of going on"
    assert metrics(killed) == metrics(whole)
    assert weights(killed) == weights(whole)

    manifests = [json.loads((out / "manifest.json").read_text()) for out in (whole, killed)]
    for key in ("config", "seeds", "digests", "versions", "constraint_check"):
        assert manifests[0][key] == manifests[1][key], key
    assert began < manifests[1]["started_at"] < ended, "a resumed run began when it first began"
    machine = manifests[0]["hardware"]  # without it nobody could tell why another machine rounds otherwise
    assert machine["capability"] in ("DEFAULT", "AVX2", "AVX512") and machine["blas"]
    # The constraint check is about the policy's steps: it has none while the critic warms up.
    assert manifests[0]["constraint_check"]["steps"] == (22 if estimator == "ppo-max" else 24)
    assert manifests[0]["constraint_check"]["worst_kl_violation"] <= 1e-5
    assert not (whole / "trainer").exists()


def test_epochs_end_a_run_before_its_last_rollout_batch(train):
    out = train("run", rollout_batches=20, epochs=1, validate_every=0)
    assert len(metrics(out)) == 32 / 4 * 4, "32 problems are 8 rollout batches of 4, each with 4 steps"


def test_a_second_process_waits_for_the_first_and_leaves_its_result(
    configure, guessing_base, run_data, tmp_path
):
    out = configure(tmp_path / "run", rollout_batches=2)
    first, second = (
        subprocess.Popen(command(out, guessing_base, run_data), stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    )
    said = [process.communicate(timeout=300)[1] for process in (first, second)]
    assert first.returncode == second.returncode == 0, said
    waiting = [text for text in said if "another process is writing here" in text]
    assert len(waiting) == 1 and "step " not in waiting[0], said
    assert len(metrics(out)) == 2 * 4


def test_a_checkpoint_of_another_configuration_is_not_resumed(train):
    out = train("run", rollout_batches=2)
    first = metrics(out)
    # As if it had been interrupted: a complete checkpoint is there, but the run is now another one.
    (out / "manifest.json").unlink()
    stale = out / "trainer" / "checkpoint-4"
    stale.mkdir(parents=True)
    mark = {"config": "0" * 64, "method": {}, "files": {}}
    write_json(stale / "complete.json", mark | {"itself": digest_of_json(mark)})
    train("run", rollout_batches=2, learning_rate=0.01)
    assert len(metrics(out)) == len(first) == 8
    assert metrics(out)[-1]["loss"] != first[-1]["loss"]


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (lambda out: (out / "run.yaml").unlink(), ("run.yaml",)),
        (lambda out: (out / "run.yaml").write_text("- 1"), ("run.yaml",)),
        (
            lambda out: (out / "run.yaml").write_text(
                (out / "run.yaml").read_text().replace("prompts_per_batch: 4", "prompts_per_batch: 400")
            ),
            ("prompts_per_batch", 400, "task chains", 32),
        ),
    ],
)
def test_mistakes_are_one_line_and_name_the_log(configure, guessing_base, run_data, tmp_path, change, facts):
    out = configure(tmp_path / "run")
    change(out)
    result = subprocess.run(command(out, guessing_base, run_data), capture_output=True, text=True)
    error_of(result, out / "log", *facts)
    assert not (out / "manifest.json").exists()


def test_run_files_hold_everything(configure, tmp_path):
    config = yaml.safe_load((configure(tmp_path / "run") / "run.yaml").read_text())
    assert {"experiment", "run_id", "seed", "seeds", "training", "trust_region", "estimator"} <= config.keys()


def test_a_critic_learns_from_groups_of_one(train):
    batch = {"responses_per_prompt": 1, "prompts_per_batch": 16, "rollout_batches": 2}
    rows = metrics(train("run", "ppo-max", **batch, validate_every=1))
    assert len(rows) == 8 and "critic/explained_variance" in rows[4]
    assert all(row["grad_norm"] > 0 for row in rows[2:])


def test_precision_and_checkpointing_are_what_the_run_says(configure, tmp_path, monkeypatch):
    """On GPUs alone; the defaults stay out of the configuration, and so out of its digest."""
    from troll.experiment.files import read_run_file
    from troll.training.run import trainer_config

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("troll.training.run.TrustRegionConfig", lambda **options: SimpleNamespace(**options))
    config = read_run_file(configure(tmp_path / "run") / "run.yaml")
    assert not {"mixed_precision", "gradient_checkpointing"} & config.model_dump()["training"].keys()
    for value in (True, False):
        of_run = config.training.model_copy(
            update={"mixed_precision": value, "gradient_checkpointing": value, "gpus": 1}
        )
        found = trainer_config(config.model_copy(update={"training": of_run}), tmp_path)
        assert (found.bf16, found.gradient_checkpointing) == (value, value)


@pytest.mark.parametrize(
    ("rows", "largest", "processes"), [(90, 512, 4), (1024, 512, 4), (1000, 64, 2), (1, 8, 4), (7, 2, 3)]
)
def test_hardly_any_problem_is_validated_twice(rows, largest, processes):
    from accelerate.data_loader import BatchSamplerShard
    from torch.utils.data import BatchSampler

    from troll.training.run import even_batch

    size = even_batch(rows, largest, processes)
    batches = BatchSampler(range(rows), size, drop_last=False)
    parts = [list(BatchSamplerShard(batches, processes, place)) for place in range(processes)]
    read = [row for part in parts for batch in part for row in batch]
    assert size <= largest and set(read) == set(range(rows))
    assert len(read) - rows < len(parts[0]) * processes


DIVERGES = """
from troll.algorithms.trust_regions import TokenLosses, log_ratio

CALLS = []


def diverges(new, old, advantages, mask, *, good={good}):
    CALLS.append(1)
    scale = 1.0 if len(CALLS) <= good else float("nan")
    return TokenLosses(-advantages * log_ratio(new, old).exp() * scale)
"""


@pytest.mark.parametrize("good", [0, 6])
def test_a_loss_that_is_not_finite_is_an_error_or_a_run_that_solves_nothing(
    configure, guessing_base, run_data, tmp_path, good
):
    rule = tmp_path / "mine.py"
    rule.write_text(DIVERGES.replace("{good}", str(good)))
    outs = [configure(tmp_path / name) for name in ("stop", "zero")]
    for out in outs:
        run = yaml.safe_load((out / "run.yaml").read_text())
        run["trust_region"] |= {"rule": f"{rule}:diverges", "settings": {}}
        (out / "run.yaml").write_text(yaml.safe_dump(run))
    if good:
        stopped = subprocess.run(command(outs[0], guessing_base, run_data), capture_output=True, text=True)
        error_of(stopped, "loss", "nan", "step", alone=False)
        assert not (outs[0] / "manifest.json").exists()

    counted = outs[1]
    subprocess.run([*command(counted, guessing_base, run_data), "--not-finite", "zero"], check=True)
    manifest = json.loads((counted / "manifest.json").read_text())
    lines = metrics(counted)
    assert manifest["not_finite"] == lines[-1]["step"] == len(lines) < 8 * 4
    assert not (counted / "checkpoint").exists() and not (counted / "trainer").exists()
    problems = get_task("chains").load(run_data / "test.jsonl")
    sample(
        counted / "checkpoint",
        problems,
        samples_per_problem=2,
        max_new_tokens=4,
        out=counted / "samples.jsonl",
    )
    grade("chains", counted / "samples.jsonl", run_data / "test.jsonl", counted / "grades.json")
    tidy = read_directories([counted])
    assert len(tidy.items) == len(problems) and (tidy.items["n"] == 2).all()
    assert (tidy.items["c"] == 0).all()
    assert stopped_runs(tidy.runs) == {manifest["run_id"]}
    assert per_run(tidy.runs)[["auc", "final"]].to_numpy().tolist() == [[0.0, 0.0]]


def test_problems_with_long_prompts_are_omitted_or_cut_and_counted(train, guessing_base, run_data, tmp_path):
    """With `cut`, training goes on with the end of each prompt, and no problem is missing."""
    problems = get_task("chains").load(run_data / "train.jsonl")
    lengths = sorted(len(ids) for ids in encode(load_policy_tokenizer(guessing_base), problems))
    limit = lengths[16]
    settings = {"rollout_batches": 1, "validate_every": 0, "max_prompt_tokens": limit}
    found = {}
    for how in ("omit", "cut"):
        out = train(how, long_prompts=how, **settings)
        found[how] = json.loads((out / "manifest.json").read_text())
    longer = sum(length > limit for length in lengths)
    assert 0 < longer == found["omit"]["overlong_train"] == found["cut"]["cut_train"]
    assert "overlong_train" not in found["cut"]
    said = [(tmp_path / how / "log").read_text() for how in found]
    assert f"omitted because their prompts have more than {limit} tokens" in said[0]
    assert f"lose the start of their prompts, which have more than {limit} tokens" in said[1]
