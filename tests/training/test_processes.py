"""Two processes: they learn what one learns, stay the same, and nobody waits for anybody forever."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import run_cases
import torch
from refusals import error_of, refused
from safetensors.torch import load_file
from two_processes import ALIKE, train_alike

from troll.common.errors import Stopped
from troll.training.launch import CONFIGS, launch_command, numbers_of_gpus

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def stopped(tiny_base, run_data, repository, tmp_path_factory):
    """A run that `troll` launches in two processes, and that a signal stops: where, and how it ended."""
    out = tmp_path_factory.mktemp("two")
    changes = {"gpus": 2, "rollout_batches": 6, "checkpoint_every": 1, "validate_on": {"chains": 8}}
    run_cases.write_run(repository, out / "stopped", **changes)
    shutil.copytree(out / "stopped", out / "run")
    launched = subprocess.Popen(
        run_cases.command(out / "stopped", tiny_base, run_data),
        env=os.environ | {"HF_HUB_OFFLINE": "1", "TROLL_ALLOW_CPU": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 200
    while launched.poll() is None and not (out / "stopped/metrics.jsonl").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    launched.send_signal(signal.SIGUSR1)
    said = launched.communicate(timeout=200)[1]
    left = [path.name for path in (out / "stopped").iterdir()]
    rows = run_cases.metrics(out / "stopped") if "metrics.jsonl" in left else []
    return SimpleNamespace(out=out, status=launched.returncode, said=said, left=left, rows=rows)


@pytest.fixture(scope="module")
def two(stopped, tiny_base, run_data):
    """What two processes ended with, by method, and where; the stopped run goes on in them."""
    out = stopped.out
    command = [sys.executable, str(HERE / "two_processes.py"), str(tiny_base), str(out), str(run_data)]
    environment = os.environ | {"PYTHONPATH": f"{HERE}:{HERE.parents[1]}", "HF_HUB_OFFLINE": "1"}
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert finished.returncode == 0, finished.stderr[-3000:]
    line = next(line for line in finished.stdout.splitlines() if line.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT ")), out


@pytest.mark.slow
def test_the_critic_is_wrapped_like_the_policy_and_equal_everywhere(two):
    found = two[0]["ppo"]
    assert found["processes"] == 2 and found["moved"] > 1e-4
    assert found["policy_differs"] == 0.0 and found["critic_differs"] == 0.0
    assert found["wrapped"] == "DistributedDataParallel"
    assert found["restored"]
    assert found["generated"] == 4 * 32


@pytest.mark.slow
def test_two_processes_solve_every_problem_of_a_validation_once(two):
    # Each row's reward is another power of two.
    assert two[0]["greedy"] == pytest.approx((2**7 - 1) / 7, abs=0)


@pytest.mark.slow
def test_dynamic_sampling_fills_the_parts_of_all_processes(two):
    found = two[0]["dapo"]
    assert found["moved"] > 1e-4 and found["policy_differs"] == 0.0
    # 32 samples and 8 greedy responses in each batch that was sampled, at least once for each of four.
    assert found["generated"] % 40 == 0 and found["generated"] >= 4 * 40
    assert found["restored"]


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ALIKE))
def test_two_processes_learn_what_one_learns(two, tiny_base, tmp_path, name):
    alone = train_alike(tiny_base, tmp_path, name, 1)
    found, out = two[0][name], two[1]
    assert len(found["rows"]) == len(alone["rows"]) == 9
    assert max(row["kl_to_old"] for row in alone["rows"]) > 1e-4, "too little was learnt to prove anything"
    for here, there in zip(alone["rows"], found["rows"], strict=True):
        names = [key for key in here if key != "step_time" and not key.startswith("profiling")]
        assert {"loss", "grad_norm", "kl_to_old", "kl_to_old_max"} <= set(names)
        for key in names:
            if here[key] is None:  # a variance that one batch of returns does not have
                assert there[key] is None, (key, here["step"])
                continue
            assert there[key] == pytest.approx(here[key], rel=2e-3, abs=2e-6, nan_ok=True), (
                key,
                here["step"],
            )
    for key, value in alone["constraint_check"].items():
        assert found["constraint_check"][key] == pytest.approx(value, rel=2e-3, abs=1e-6), key
    ours, theirs = (load_file(place / "checkpoint-9/model.safetensors") for place in (tmp_path, out / name))
    start = load_file(tiny_base / "model.safetensors")
    assert ours.keys() == theirs.keys()
    moved = torch.cat([(ours[key] - start[key]).flatten() for key in ours])
    apart = torch.cat([(ours[key] - theirs[key]).flatten() for key in ours])
    assert apart.norm() < 2e-3 * moved.norm()


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ALIKE))
def test_processes_score_in_equally_many_passes(two, name):
    # The weights of a sharded model are gathered in each pass, for which all processes have to be there.
    found = two[0][name]
    assert found["scored"] > (3 if "micro_batch_tokens" in ALIKE[name] else 0) and not found["scored_differs"]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["head", "critic"])
def test_a_sharded_model_gives_learns_and_saves_what_a_whole_one_does(two, part):
    found = two[0]["sharded"]
    assert found[part] < 1e-5 and found[f"{part}_gradients"] < 1e-4
    assert found[f"{part}_saved"] < 1e-4


@pytest.mark.slow
def test_a_whole_run_of_two_processes_is_written_once(two):
    out = two[1] / "run"
    rows = run_cases.metrics(out)
    assert [row["step"] for row in rows] == list(range(1, 25))
    assert rows[4]["generated_samples"] == 2 * 16
    assert json.loads((out / "manifest.json").read_text())["constraint_check"]["steps"] == 24
    assert (out / "checkpoint/model.safetensors").exists() and not (out / "trainer").exists()


@pytest.mark.slow
def test_a_launched_run_is_warned_and_saves(stopped):
    assert stopped.status == Stopped.status, stopped.said
    assert "2 processes: stopped by SIGUSR1; the same command resumes" in stopped.said
    assert "Traceback" not in stopped.said
    assert 0 < len(stopped.rows) < 24 and "manifest.json" not in stopped.left


@pytest.mark.slow
def test_a_launched_run_goes_on_as_if_nothing_had_been(two, stopped):
    ended, left_alone = (two[1] / name for name in ("stopped", "run"))
    assert (ended / "manifest.json").exists()
    assert run_cases.metrics(ended)[: len(stopped.rows)] == stopped.rows
    assert run_cases.metrics(ended) == run_cases.metrics(left_alone)
    assert run_cases.weights(ended) == run_cases.weights(left_alone)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="there may be enough of them here")
def test_a_run_for_more_gpus_than_there_are_is_refused(configure, tiny_base, run_data, tmp_path):
    out = configure(tmp_path / "run", gpus=2)
    result = subprocess.run(run_cases.command(out, tiny_base, run_data), stderr=subprocess.PIPE, text=True)
    error_of(result, "training.gpus", 2, alone=False)


def test_every_configuration_is_one_that_accelerate_understands():
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    assert numbers_of_gpus() == [1, 2, 4, 8]
    for gpus in numbers_of_gpus():
        path = str(CONFIGS / f"gpus{gpus}.yaml")
        config = load_config_from_file(path)
        assert config.num_processes == gpus and config.mixed_precision == "bf16"
        arguments = launch_command_parser().parse_args(["--config_file", path, "-m", "troll.cli"])
        arguments, *_ = _validate_launch_command(arguments)
        assert arguments.num_processes == gpus
        if gpus > 1:
            assert arguments.use_fsdp and arguments.fsdp_version == 2
            assert arguments.fsdp_state_dict_type == "SHARDED_STATE_DICT"


def test_the_number_of_gpus_chooses_the_configuration():
    from accelerate.commands.launch import launch_command_parser
    from torch.distributed.run import get_args_parser

    ours = ["--log", "a log", "job", "train", "run.yaml", "--base", "base", "--data", "data"]
    command = launch_command(4, ours, cuda=True)
    assert command[:3] == [sys.executable, "-m", "accelerate.commands.launch"]
    found = launch_command_parser().parse_args(command[3:])
    assert found.config_file == str(CONFIGS / "gpus4.yaml")
    assert found.module and [found.training_script, *found.training_script_args] == ["troll.cli", *ours]
    assert found.mixed_precision is None  # the file's
    command = launch_command(4, ours, cuda=True, mixed_precision=False)
    assert launch_command_parser().parse_args(command[3:]).mixed_precision == "no"
    command = launch_command(2, ours, cuda=False)
    assert command[:3] == [sys.executable, "-m", "torch.distributed.run"]
    found = get_args_parser().parse_args(command[3:])
    assert found.nproc_per_node == "2" and found.standalone
    assert found.module and [found.training_script, *found.training_script_args] == ["troll.cli", *ours]
    with refused("3 GPUs", "1, 2, 4, 8"):
        launch_command(3, ours, cuda=True)
