"""The wording of the messages that users meet most, each from the code that says it.

Other tests assert the facts of a message alone (`refusals.py`). A message says what is wrong, where, and what
would be right; to reword one of these means to change a line of the table.
"""

import errno
import fcntl
import os
import signal
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
import yaml
from refusals import check_facts
from trl import GRPOTrainer
from typer.testing import CliRunner

from troll.algorithms.trust_regions import TRUST_REGIONS
from troll.analysis.data.provenance import check_clean
from troll.cli.app import app, main
from troll.common import hub, machine_errors, signals
from troll.common.files import write_json
from troll.common.gpus import require_gpus
from troll.common.models import load_model
from troll.evaluation.engines.transformers import load_engine
from troll.experiment.experiment import resolve
from troll.experiment.files import read_experiment, write_run_file
from troll.experiment.settings import Training
from troll.operations.run import acquire_lock
from troll.tasks.datasets import load
from troll.tasks.registry import task_names
from troll.tasks.sandbox.plain_data import encode
from troll.tasks.sandbox.pool import run_batch
from troll.tasks.sandbox.program import Program
from troll.training.policy_loss import PolicyLoss
from troll.training.tracking import check_tracking
from troll.training.trl_parts import check_parts

RULE = "def my_rule(new, old, advantages, mask, *, bound=0.2):\n    pass\n"


class Offline:
    """A hub that cannot be reached."""

    def model_info(self, *_, **__):
        raise ConnectionError("no route to host")

    dataset_info = model_info


def raising(error):
    def function(*_, **__):
        raise error

    return function


def troll(*words):
    """Runs `troll` with these words."""
    result = CliRunner().invoke(app, words)
    raise result.exception or AssertionError(result.output)


def check(keys, value):
    """`troll check` of the experiment in which a key, such as ``training.keep``, has another value."""
    *parents, last = keys.split(".")
    data = block = yaml.safe_load(Path("my.yaml").read_text())
    for key in parents:
        block = block[key]
    block[last] = value
    Path("my.yaml").write_text(yaml.safe_dump(data))
    troll("check", "my.yaml")


def check_text(more):
    """`troll check` of the experiment with this at its end."""
    with Path("my.yaml").open("a") as file:
        file.write(more)
    troll("check", "my.yaml")


def check_rule(text, name="my_rule"):
    """`troll check` of a rule in a file with this text."""
    Path("rules.py").write_text(text)
    troll("check", "--rule", f"rules.py:{name}")


def gpus(cuda):
    """Two GPUs for a torch that was built for this CUDA and sees none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.version.cuda", cuda)
        patch.setattr("torch.__version__", "2.13.0+cpu")
        patch.setattr("torch.cuda.device_count", lambda: 0)
        require_gpus(2, "training.gpus")


def without(name, then):
    """Does something where a package is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, name, None)
        patch.setattr("importlib.util.find_spec", lambda _: None)
        then()


def older_trl():
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(GRPOTrainer, "_calculate_rewards")
        check_parts()


def mirrored(variable, then):
    """Does something where a mirror is named that is not there."""
    os.environ[variable] = "mirror"
    then()


def no_sandbox():
    os.environ["PATH"] = "/nowhere"
    run_batch([Program("def f(x): return x", "f", encode([[1]]))])


def failing(error):
    """A failure of the machine while a run writes."""
    with machine_errors.as_user_error(Path("results/run")):
        raise error


def stopped():
    """A signal while a run trains."""
    Path("signal").write_text(str(int(signal.SIGTERM)))
    os.environ[signals.SIGNAL_NOTE] = "signal"
    signals.stop_if_asked("tiny/chains/troll/grpo/stale/seed0")


def locked():
    """A second `make results`."""
    with Path("results.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        acquire_lock(Path())


def not_finite():
    PolicyLoss.check_finite(SimpleNamespace(_unread=[torch.tensor(torch.nan)]), 7)


def other_settings():
    """Results of a run whose file has been changed."""
    experiment = read_experiment(Path("my.yaml"))
    config = resolve(experiment, experiment.runs()[0])
    made_with = config.model_copy(update={"seed": 5}).model_dump()
    write_run_file(Path("run/run.yaml"), config)
    digests = dict.fromkeys(("environment", "data", "base_model"), "d")
    manifest = {"run_id": config.run_id, "config": made_with, "digests": digests, "numerics": 0}
    write_json(Path("run/manifest.json"), manifest)
    troll("job", "collect", "run", "--out", "tables")


def damaged():
    """A table of results that cannot be read."""
    Path("results/tidy").mkdir(parents=True)
    Path("results/tidy/clip.parquet").write_text("PAR1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("troll.analysis.data.tidy.pq.read_schema", raising(OSError("CRC mismatch")))
        troll("job", "table", "main", "--results", "results", "--out", "table")


def uncommitted():
    rows = {"experiment": "e", "run_id": ["a", "b"], "git_commit": ["0" * 40, "1" * 40 + "-dirty"]}
    check_clean(pd.DataFrame(rows), Path("results/testbed"))


def grade(samples):
    """`troll grade` of samples of two problems."""
    rows = [f'{{"task_id": "{name}", "prompt": "1+1?", "answer": "2"}}\n' for name in "ab"]
    Path("problems.jsonl").write_text("".join(rows))
    Path("samples.jsonl").write_text(samples)
    words = ["--task", "chains", "--samples", "samples.jsonl", "--problems", "problems.jsonl", "--out", "out"]
    troll("grade", *words)


CASES = {
    # the experiment file
    "a misspelt key": (
        lambda: check("conditions.stale.learning_rte", 1e-3),
        "my.yaml: conditions.stale.learning_rte: unknown key 'learning_rte'; valid: {SETTINGS}; did "
        "you mean 'learning_rate'?",
    ),
    "an unknown key": (
        lambda: check("evaluation.tests", 3),
        "my.yaml: evaluation.tests: unknown key 'tests'; valid: samples, temperature, batch_size, "
        "engine, engine_options",
    ),
    "a missing key": (
        lambda: check("trust_regions.troll", {}),
        "my.yaml: trust_regions.troll.rule: is missing",
    ),
    "a wrong value": (
        lambda: check("conditions.stale.learning_rate", -0.001),
        "my.yaml: conditions.stale.learning_rate is -0.001, must be a number > 0",
    ),
    "a number as text": (
        lambda: check("trust_regions.troll.settings", {"kl_bound": "5e-2"}),
        "my.yaml: trust_regions.troll.settings: kl_bound is '5e-2', must be a number >= 0 or "
        "infinity; it is text: write numbers in YAML as 0.001 or 1.0e-3, without quotes",
    ),
    "none of the values": (
        lambda: check("training.aggregation", "token_mean"),
        "my.yaml: training.aggregation is 'token_mean', must be one of 'token-mean', "
        "'seq-mean-token-mean', 'seq-mean-token-sum', 'seq-mean-token-sum-norm', 'released', or none",
    ),
    "an empty list": (lambda: check("seeds", []), "my.yaml: seeds: is empty; at least 1 needed"),
    "a key twice": (
        lambda: check_text("seeds: [1]\n"),
        "my.yaml: not YAML (line {END}, column 1: duplicate key 'seeds')",
    ),
    "no such file": (lambda: troll("check", "mine.yaml"), "mine.yaml: no such experiment file"),
    "an unknown rule": (
        lambda: check("trust_regions.troll.rule", "trol"),
        "my.yaml: trust_regions.troll: unknown trust region 'trol'; valid: {RULES}; did you mean 'troll'?",
    ),
    "an unknown setting": (
        lambda: check("trust_regions.troll.settings", {"kl_bund": 0.1}),
        "my.yaml: trust_regions.troll.settings: unknown setting 'kl_bund'; valid: kl_bound, "
        "regression_weight; did you mean 'kl_bound'?",
    ),
    "an unknown task": (
        lambda: check("tasks.chain", {}),
        "my.yaml: tasks: unknown task 'chain'; valid: {TASKS}; did you mean 'chains'?",
    ),
    "an unknown group": (
        lambda: troll("check", "my.yaml", "--cost", "--only", "stale"),
        "experiment reduced has no group 'stale'; valid: none, because no block of matrix names one",
    ),
    "batches that do not divide": (
        lambda: check("training.mini_batches", 7),
        "my.yaml: training: 16 responses (prompts_per_batch x responses_per_prompt) do not divide "
        "into 7 mini_batches of 1 micro_batches",
    ),
    "more prompts than problems": (
        lambda: check("training.prompts_per_batch", 64),
        "my.yaml: run tiny/chains/clip/grpo/stale/seed0: prompts_per_batch is 64, but task chains has"
        " 32 train problems; raise tasks.chains.train, or use smaller batches",
    ),
    "no room for a prompt": (
        lambda: check("training.max_response_tokens", 300),
        "my.yaml: run tiny/chains/clip/grpo/stale/seed0: max_response_tokens 300 leaves no room for a"
        " prompt in the context of 256 tokens of model tiny; use a smaller max_response_tokens",
    ),
    "wrong seeds": (
        lambda: troll("status", "my.yaml", "--seeds", "0;1"),
        "--seeds: must be a list of distinct integers, such as 0,1,2 (got '0;1')",
    ),
    # a rule in a file of one's own
    "no file of a rule": (
        lambda: troll("check", "--rule", "none.py:my_rule"),
        "trust region: none.py: no such file in {HERE}",
    ),
    "no such function": (
        lambda: check_rule(RULE, "my_rul"),
        "trust region: rules.py: unknown function 'my_rul'; valid: my_rule; did you mean 'my_rule'?",
    ),
    "a wrong signature": (
        lambda: check_rule("def my_rule(policy):\n    pass\n"),
        "trust region: rules.py: my_rule(policy) is not a rule; a rule takes (new, old, advantages, "
        "mask) and, after *, its settings",
    ),
    "an error in the file": (
        lambda: check_rule("import nump\n"),
        "trust region: rules.py:1: ModuleNotFoundError: No module named 'nump'; the file must run "
        "without an error",
    ),
    # the machine and what is installed
    "no GPU": (
        lambda: gpus("13.0"),
        "training.gpus is 2, but the number of visible GPUs is 0; request more GPUs, or set 0 to use the CPU",
    ),
    "a torch for CPUs": (
        lambda: gpus(None),
        "training.gpus is 2, but torch 2.13.0+cpu is a build for CPUs, which sees no GPU; TORCH=cuda "
        "make env, or set 0 to use the CPU",
    ),
    "no sandbox": (
        no_sandbox,
        "bwrap: not found, but model-written code runs only under it; install it: sudo apt-get "
        "install bubblewrap (or dnf, pacman); it needs Linux",
    ),
    "no vLLM": (
        lambda: without("vllm", lambda: load_engine("vllm", Path(), max_new_tokens=1, temperature=1.0)),
        "vllm: not installed here; `make vllm` installs it into .venv-vllm; call .venv-vllm/bin/troll",
    ),
    "no tracker": (
        lambda: without("wandb", lambda: check_tracking("wandb")),
        "tracking: wandb is not installed; pip install wandb, or set tracking: none",
    ),
    "an older TRL": (
        older_trl,
        "trl {TRL} and transformers {TRANSFORMERS} lack GRPOTrainer._calculate_rewards, which "
        "TrustRegionTrainer uses; pip install 'trl>=1.8,<2' 'transformers>=5.17'",
    ),
    "no memory": (
        lambda: failing(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.")),
        "results/run: memory ran out (CUDA out of memory); increase training.micro_batches or "
        "decrease training.micro_batch_tokens. Finished checkpoints are intact and the same command "
        "resumes from the newest",
    ),
    "a full disk": (
        lambda: failing(OSError(errno.ENOSPC, "No space left on device")),
        "results/run: no space left on the disk; free some. Finished checkpoints are intact and the "
        "same command resumes from the newest",
    ),
    "no permission": (
        lambda: troll("job", "problems", "--config", "p.yaml", "--out", "/dev/null/p"),
        "/dev/null/p/train.jsonl: cannot be written (Not a directory); choose another path",
    ),
    "a signal": (stopped, "tiny/chains/troll/grpo/stale/seed0: stopped by SIGTERM; the same command resumes"),
    "two at once": (locked, "another `make results` is running in this directory; wait for it, or stop it"),
    "no checkout": (
        lambda: troll("run", "my.yaml"),
        "run: no Snakefile is here; run this in the root of a checkout",
    ),
    # models and data
    "no model": (
        lambda: load_model(Path("none"), dtype="auto"),
        "none: cannot be loaded as a model (no such directory)",
    ),
    "no hub": (
        lambda: hub.snapshot("Qwen/Qwen3-0.6B"),
        "hub: model Qwen/Qwen3-0.6B cannot be read (no route to host); fetch it where the hub can be "
        "reached (troll fetch FILE), or name a local mirror in TROLL_MODEL_MIRROR",
    ),
    "no data": (
        lambda: load.load("gsm8k"),
        "hub: openai/gsm8k cannot be read (no route to host); go online once, or name a local mirror "
        "in TROLL_DATA_MIRROR",
    ),
    "no mirror": (
        lambda: mirrored("TROLL_DATA_MIRROR", lambda: load.load("gsm8k")),
        "TROLL_DATA_MIRROR=mirror: no such directory; name the mirror, or unset it to use the hub",
    ),
    # runs and results
    "a loss that is not finite": (
        not_finite,
        "loss is nan at optimiser step 7; training stopped, the last checkpoint is intact. A smaller "
        "learning_rate may help",
    ),
    "results with other settings": (
        other_settings,
        "run/run.yaml: seed: differs from the configuration in run/manifest.json; run it again",
    ),
    "no results": (
        lambda: troll("job", "table", "main", "--results", "results", "--out", "table"),
        "results/tidy: no tables (*.parquet) there; collect the runs first",
    ),
    "a damaged table": (
        damaged,
        "results/tidy/clip.parquet: damaged or not a tidy table (CRC mismatch); restore it (git "
        "checkout), or remove it and collect its runs again",
    ),
    "uncommitted source": (
        uncommitted,
        "results/testbed: 1 of 2 runs, such as b, were made from uncommitted source and cannot be "
        "released; commit the source and run them again",
    ),
    "problems without samples": (
        lambda: grade('{"task_id": "a", "completion": "2"}\n'),
        "samples.jsonl: 1 of 2 problems have no sample (b); add samples, or grade only the problems "
        "that have one (--only-present)",
    ),
    "samples of other problems": (
        lambda: grade('{"task_id": "c", "completion": "2"}\n'),
        "samples.jsonl:1: task_id 'c' is not in problems.jsonl",
    ),
}
"""What is done and what is said, by name. Lists of what is valid are filled in: they are data."""
LISTS = {
    "SETTINGS": ", ".join(Training.model_fields),
    "RULES": ", ".join(TRUST_REGIONS),
    "TASKS": ", ".join(task_names()),
    "TRL": version("trl"),
    "TRANSFORMERS": version("transformers"),
}


@pytest.fixture
def here(tmp_path, monkeypatch, repository):
    """A directory with an experiment, offline, without GPUs and mirrors."""
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text((repository / "tests/workflow/reduced.yaml").read_text())
    Path("p.yaml").write_text("{name: chains, train: 4, validation: 2, test: 2}")
    for name in ("TROLL_MODEL_MIRROR", "TROLL_DATA_MIRROR", "TROLL_ALLOW_CPU"):
        monkeypatch.delenv(name, raising=False)
    for name in ("PATH", signals.SIGNAL_NOTE, "TROLL_DATA_MIRROR"):  # what cases set is taken back
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("TROLL_DATA_LOCK", "lock.json")
    monkeypatch.setattr("huggingface_hub.HfApi", Offline)
    return tmp_path


@pytest.mark.parametrize("name", CASES)
def test_the_wording(name, here):
    case, wording = CASES[name]
    end = len(Path("my.yaml").read_text().splitlines()) + 1
    with pytest.raises(Exception) as caught:
        case()
    assert str(caught.value) == wording.format(HERE=here, END=end, **LISTS)


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (
            SystemExit(130),
            130,
            "interrupted; the same command resumes from the last checkpoint, if there is one",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            1,
            "error: no space left on the disk; free some, and run the same command again",
        ),
    ],
)
def test_the_last_line_of_a_command(error, status, line, capsys):
    with pytest.raises(SystemExit) as ended:
        main(raising(error))
    assert (ended.value.code, capsys.readouterr().err) == (status, f"{line}\n")


def test_facts_are_whole_words_and_numbers_of_one_line():
    message = "my.yaml: keys.first is 1.5, must be in [1, 20]"
    check_facts(message, "my.yaml", "keys.first", 1.5, 20, "[1, 20]")
    for fact in (5, 2, "yam", "key", "irst", "1,20", "missing"):
        with pytest.raises(AssertionError):
            check_facts(message, fact)
    with pytest.raises(AssertionError):
        check_facts("my.yaml:\nkeys", "keys")
