"""Runs that are killed, stopped or fail go on, and end as if nothing had been."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import run_cases
import torch
from datasets import Dataset
from peft import LoraConfig
from refusals import error_of, refused
from trainer_cases import PROMPTS, SeededGRPOTrainer, parameters

from troll.algorithms.advantages import ESTIMATORS
from troll.algorithms.trust_regions import TRUST_REGIONS
from troll.tasks.sandbox.pool import sandbox_available
from troll.training.config import TrustRegionConfig
from troll.training.resumable import STATE
from troll.training.trainer import TrustRegionTrainer

HERE = Path(__file__).parent
# Twenty kills on a machine that has the time; a run takes about two seconds more for each.
KILLS = int(os.environ.get("TROLL_TEST_KILLS", "4"))


def script(name, *arguments, prefix=()):
    """Runs a script of this directory; what it says on its line RESULT."""
    environment = os.environ | {"PYTHONPATH": f"{HERE}:{HERE.parents[1]}", "HF_HUB_OFFLINE": "1"}
    command = [*prefix, sys.executable, str(HERE / name), *map(str, arguments)]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=580)
    assert finished.returncode == 0, finished.stderr[-3000:]
    line = next(line for line in finished.stdout.splitlines() if line.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT "))


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_as_an_uninterrupted_one(
    guessing_base, run_data, configure, tmp_path
):
    # Validations and checkpoints do not fall together: a result may wait for the line after a checkpoint.
    batches = 8 + 3 * KILLS
    settings = {"rollout_batches": batches, "checkpoint_every": 2, "validate_every": 3, "checkpoints_kept": 3}
    settings["validate_on"] = {"chains": 8}
    whole, killed = (configure(tmp_path / name, **settings) for name in ("whole", "killed"))
    kills = script("killed_runs.py", whole, killed, guessing_base, run_data, KILLS, 5)
    # A machine that is slow to kill may find the run complete before the last one.
    assert 2 * len(kills) >= KILLS, f"the run was complete after {len(kills)} kills"
    assert max(kill["checkpoints"] - kill["unfinished"] for kill in kills) <= 3 + 1
    rows = run_cases.metrics(killed)
    assert rows == run_cases.metrics(whole) and len(rows) == batches * 4
    assert batches % 3 and "validation_success" in rows[-1], "transformers validates after the last step, too"
    for name in ("validation_success", "validation_success/chains"):
        assert sum(name in row for row in rows) == batches // 3 + 2
    assert run_cases.weights(killed) == run_cases.weights(whole)


@pytest.fixture(scope="module")
def failures(guessing_base, run_data, repository, tmp_path_factory):
    """What runs did that were stopped or failed, and what they did then; see failing_runs.py."""
    if not sandbox_available()[0]:
        pytest.skip(f"no bubblewrap, which gives this test a small file system: {sandbox_available()[1]}")
    directory = tmp_path_factory.mktemp("failing")
    names = ("whole", "damaged", "warned", "ended", "early", "full", "memory", "gpu", "nan")
    small = ["bwrap", "--dev-bind", "/", "/", "--size", "12000000", "--tmpfs", str(directory / "full")]
    for name in names:
        settings = {"rollout_batches": 6, "checkpoints_kept": 3, "validate_every": 2}
        run_cases.write_run(repository, directory / name, **settings)
    # The small file system hides what is there: the run file goes in through a name of its own.
    small += ["--ro-bind", str(directory / "whole/run.yaml"), str(directory / "full/run.yaml")]
    return script("failing_runs.py", directory, guessing_base, run_data, prefix=small)


def error_lines(found):
    return [line for line in found["terminal"].splitlines() if line.startswith("error: ")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["damaged", "warned", "ended", "early", "full", "memory", "gpu", "nan"])
def test_a_run_goes_on_after_anything_as_if_nothing_had_been(failures, name):
    assert failures[name]["again"] == 0, failures[name]["said_again"][-2000:]
    assert failures[name]["equal"]


@pytest.mark.slow
def test_damaged_checkpoints_are_named_and_an_older_one_is_taken(failures):
    found = failures["damaged"]
    assert len(found["checkpoints"]) == 3
    warnings = [line for line in found["said_again"].splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 2
    assert f"checkpoint-{found['checkpoints'][2]} is damaged (the contents of optimizer.pt" in warnings[0]
    assert f"checkpoint-{found['checkpoints'][1]} is damaged (model.safetensors has 1000 bytes" in warnings[1]
    first = int(found["said_again"].split(": step ")[1].split("/")[0])
    assert first > found["checkpoints"][0]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "before"), [("warned", 6), ("ended", 10), ("early", 0)])
def test_a_signal_stops_a_run_where_a_rollout_batch_ends(failures, name, before):
    found = failures[name]
    assert found["status"] == 75
    assert found["lines"] % 4 == 0 and before <= found["lines"] < 24
    assert found["checkpoints"][-1:] == ([found["lines"]] if before else [])
    assert "stopped by" in found["said"] and "Traceback" not in found["said"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("full", "no space left on the disk; free some"),
        ("memory", "memory ran out; increase training.micro_batches or decrease training.micro_batch_tokens"),
        ("gpu", "memory ran out (CUDA out of memory); increase training.micro_batches or"),
        ("nan", "; training stopped, the last checkpoint is intact. A smaller learning_rate may help"),
    ],
)
def test_a_failure_is_one_line_and_leaves_good_checkpoints(failures, name, message):
    found = failures[name]
    assert found["status"] == 1
    (line,) = error_lines(found)
    assert message in line and "Traceback" not in found["said"]
    assert found["checkpoints"] and found["unfinished"] == 0


def test_a_directory_that_cannot_be_written_is_one_line(configure, tmp_path):
    if not sandbox_available()[0]:
        pytest.skip(f"no bubblewrap, which makes a directory read-only for root: {sandbox_available()[1]}")
    out = configure(tmp_path / "run")
    command = run_cases.command(out, tmp_path, tmp_path)
    prefix = ["bwrap", "--dev-bind", "/", "/", "--ro-bind", str(out), str(out)]
    arguments = [part for part in command if part not in ("--log", str(out / "log"))]
    result = subprocess.run([*prefix, *arguments], capture_output=True, text=True)
    assert error_of(result, "Read-only file system").startswith(f"{out}/")


CRITIC = {"learning_rate": 1e-3, "warmup_steps": 1}
ADAPTIVE = {
    "kl-penalty": {"trust_region_settings": {"target_kl": 1e-9}},
    "troll-adaptive": {"trust_region_settings": {"kl_bound": 0.05, "target": 0.5}},
    "kl-stop": {"trust_region_settings": {"kl_bound": 1e-6}},
}
GAE = {"estimator": "gae", "critic": CRITIC}
DEMONSTRATIONS = [{"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]}] * 3


def kl(applied_to):
    return {"applied_to": applied_to, "coefficient": 0.1, "target": 1e-6, "horizon": 32}


# What a run may be given beside a rule and an estimator: options of the trainer, and of GRPOConfig.
OPTIONS = {
    "lag": ({"policy_lag": 1}, {}),
    "lag of the anchor": ({"policy_lag": 2, "trust_region_anchor": "sampler"}, {}),
    "kl in the reward": ({**GAE, "regulariser": kl("reward")}, {}),
    "kl in the loss": ({"regulariser": kl("loss")}, {"num_iterations": 2}),
    "kl of trl": ({}, {"beta": 0.3}),
    "moving reference": (
        {},
        {"beta": 0.3, "sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 0.5},
    ),
    "dynamic sampling": ({"estimator": "grpo", "dynamic_sampling": {}}, {}),
    "overlong": ({"estimator": "grpo", "overlong": {"buffer": 5}}, {}),
    "demonstrations": ({"pretraining": {"coefficient": 0.1}, "pretraining_rows": DEMONSTRATIONS}, {}),
    "long prompts": ({"max_prompt_tokens": 2}, {}),
    "token budget": ({"micro_batch_tokens": 45}, {}),
    "shared prompts": ({"share_prompts": True, "micro_batch_tokens": 45}, {"beta": 0.3}),
    "constant tail": ({"tail": "constant", "keep": 4, "dropped_mass": 0.1}, {}),
    "aggregation": ({"aggregation": "seq-mean-token-sum-norm"}, {}),
    "passes": ({"trust_region": "kl-penalty", **ADAPTIVE["kl-penalty"]}, {"num_iterations": 2}),
    "steps across batches": ({"trust_region": "m2po"}, {"gradient_accumulation_steps": 3}),
    "epochs with a rest": (
        {**GAE},
        {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4, "steps_per_generation": 3},
    ),
    "adaptive entropy": (
        {},
        {
            "use_adaptive_entropy": True,
            "entropy_target": 10.0,
            "entropy_coef": 0.01,
            "entropy_coef_delta": 0.01,
            "entropy_coef_max": 1.0,
        },
    ),
    "adapters": ({**GAE, "peft_config": LoraConfig(r=4, target_modules=["q_proj"])}, {}),
    "validation": (
        {
            "eval_dataset": Dataset.from_dict({"prompt": PROMPTS}),
            "regulariser": kl("loss"),
            "eval_loss": True,
        },
        {"eval_strategy": "steps", "eval_steps": 1, "num_generations_eval": 1},
    ),
    "logs between checkpoints": ({}, {"logging_steps": 2}),
    "a schedule": ({}, {"lr_scheduler_type": "linear", "warmup_steps": 2}),
    "masked": ({}, {"mask_truncated_completions": True}),
    "filters": ({}, {"top_entropy_quantile": 0.5, "off_policy_mask_threshold": 0.1}),
    "dropout": ({}, {}),
}
METHODS = {
    **{
        f"{rule}, {estimator}": (
            {"trust_region": rule, "estimator": estimator, **ADAPTIVE.get(rule, {})},
            # It stops at the second step of a batch at the soonest.
            {"steps_per_generation": 4} if rule == "kl-stop" else {},
        )
        for number, rule in enumerate(TRUST_REGIONS)
        for estimator in [list(ESTIMATORS)[number % len(list(ESTIMATORS))]]
    },
    **OPTIONS,
}


def method(name):
    ours, config = METHODS[name]
    needs_values = "estimator" in ours and ESTIMATORS[ours["estimator"]].needs_values
    return {"trust_region": "clip"} | ours | ({"critic": CRITIC} if needs_values else {}), config


def trained(make, name, resume=None):
    """Six steps of a method, two for each rollout batch; a checkpoint inside of the second."""
    ours, config = method(name)
    settings = {"per_device_train_batch_size": 4, "steps_per_generation": 2, "loss_type": "dapo"}
    settings |= {"save_strategy": "steps", "save_steps": 3, "eval_strategy": "no"}
    trainer = make(TrustRegionTrainer, steps=6, config=settings | config, **ours)
    if name == "dropout":
        for module in trainer.model.modules():
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = 0.2
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def learnt(trainer):
    """All that two runs have to have in common: weights, the method's state, and the log."""
    critic = trainer.critic and trainer.accelerator.unwrap_model(trainer.critic.model)
    rows = [
        {key: value for key, value in row.items() if "time" not in key and "per_second" not in key}
        for row in trainer.state.log_history
        if "train_runtime" not in row
    ]
    for row in rows:
        row.pop("loss", None) if trainer.args.logging_steps > 1 else None  # transformers' own begins anew
    values = torch.cat([p.detach().flatten() for p in critic.parameters()]).tolist() if critic else []
    return parameters(trainer).tolist(), values, trainer.method_state(), rows


# A rule without a controller has no state: by day, those that come with an estimator for the first time.
STATELESS = [name for name in list(TRUST_REGIONS)[len(list(ESTIMATORS)) :] if name not in ADAPTIVE]


def marked(name):
    """A method, at night only if nothing of it has a state that no other one has."""
    at_night = name not in OPTIONS and name.split(",")[0] in STATELESS
    return pytest.param(name, marks=pytest.mark.nightly) if at_night else name


def test_every_rule_with_a_state_is_made_to_adapt():
    adapt = [name for name, info in TRUST_REGIONS.items() if info.controller]
    # One that another test has made is in no module of the package.
    own = [name for name in adapt if TRUST_REGIONS[name].function.__module__.startswith("troll.")]
    assert set(own) == {*ADAPTIVE}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*map(marked, METHODS)])
def test_a_resumed_trainer_ends_as_an_uninterrupted_one(make, tmp_path, name, capsys):
    whole = trained(make, name)
    checkpoint = tmp_path / "TrustRegionTrainer" / "checkpoint-3"
    saved = json.loads((checkpoint / STATE).read_text())
    resumed = trained(make, name, str(checkpoint))
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert all(name == "dropout" and "before the first update" in line for line in warnings)
    for ours, theirs in zip(learnt(resumed), learnt(whole), strict=True):
        assert ours == theirs
    if method(name)[0]["trust_region"] in ADAPTIVE or "kl in the" in name:
        fresh = make(TrustRegionTrainer, **method(name)[0]).method_state()
        part = "controller" if "kl in the" in name else "trust_region"
        assert saved[part] != fresh[part], "nothing had adapted that could have been lost"


def test_every_option_of_ours_is_tried():
    tried = {option for ours, _ in METHODS.values() for option in ours}
    own = {name for name in TrustRegionConfig.__annotations__ if not name.startswith("_")}
    assert own - tried == {"estimator_settings"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "missing"),
    [
        (lambda path: (path / STATE).unlink(), "trust region 'kl-penalty', constraint check, count of"),
        (lambda path: (path / "rollouts_0.pt").unlink(), "anew: rollout batch at hand"),
    ],
)
def test_a_checkpoint_that_lacks_something_is_one_warning(make, tmp_path, capsys, spoil, missing):
    trained(make, "kl-penalty, grpo")
    checkpoint = tmp_path / "TrustRegionTrainer" / "checkpoint-3"
    spoil(checkpoint)
    resumed = trained(make, "kl-penalty, grpo", str(checkpoint))
    (warning,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert f"{checkpoint}: " in warning and missing in warning
    assert resumed.state.global_step == 6
    # Rollout batches begin where they did: the third is sampled before step 5 and no other.
    assert [row["step"] for row in resumed.state.log_history if "reward" in row][-1] == 5


@pytest.mark.slow
def test_a_checkpoint_of_trl_and_one_of_another_rule_can_be_gone_on_from(make, tmp_path, capsys):
    saving = {"save_strategy": "steps", "save_steps": 2}
    make(SeededGRPOTrainer, steps=3, config=saving).train()
    theirs = tmp_path / "SeededGRPOTrainer" / "checkpoint-2"
    ours = make(TrustRegionTrainer, steps=4, config=saving, trust_region="troll-adaptive", estimator="grpo")
    ours.train(resume_from_checkpoint=str(theirs))
    assert "trust region 'troll-adaptive'" in capsys.readouterr().err
    other = make(TrustRegionTrainer, steps=4, trust_region="kl-penalty", estimator="grpo")
    other.train(resume_from_checkpoint=str(tmp_path / "TrustRegionTrainer" / "checkpoint-4"))
    said = capsys.readouterr().err
    assert "anew: trust region 'kl-penalty'\n" in said and other.generated_samples > ours.generated_samples


@pytest.mark.slow
@pytest.mark.parametrize("text", ["{", "[]", '{"trust_region": {}, "estimator": {}}'])
def test_a_state_that_is_none_is_refused_in_one_line(make, tmp_path, text):
    trained(make, "kl-penalty, grpo")
    checkpoint = tmp_path / "TrustRegionTrainer" / "checkpoint-3"
    (checkpoint / STATE).write_text(text)
    with refused(checkpoint / STATE):
        trained(make, "kl-penalty, grpo", str(checkpoint))


@pytest.mark.slow
def test_a_checkpoint_of_the_model_alone_has_no_state(make, tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 1, "save_only_model": True}
    make(TrustRegionTrainer, steps=1, config=saving, **GAE, trust_region="clip").train()
    names = {path.name for path in (tmp_path / "TrustRegionTrainer" / "checkpoint-1").iterdir()}
    assert "model.safetensors" in names
    assert not names & {STATE, "rollouts_0.pt", "critic.pt", "optimizer.pt"}


@pytest.mark.slow
def test_training_again_begins_with_a_rollout_batch(make):
    trainer = make(TrustRegionTrainer, steps=3, trust_region="clip")
    batches = []
    sample = trainer._sample_now
    trainer._sample_now = lambda inputs: batches.append(trainer.rollout_batch) or sample(inputs)
    trainer.train()  # ends inside of a batch of four steps
    trainer.train()
    assert batches == [0, 0]
