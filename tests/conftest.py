"""Fixtures for several rooms: a tiny tokenizer and a tiny random model."""

import gc
import importlib.util
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["TROLL_BASE_MODELS"] = "0"  # what is made before a test is not taken in it
# lm_eval sets this as it is imported; a warm server that began before would refuse all commands after that.
os.environ.setdefault("HF_XET_HIGH_PERFORMANCE", "1")

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from forked_snakemake import warm_server

from troll import warm
from troll.common.processor import prepare_processor, quiet_libraries

quiet_libraries()
prepare_processor()

# What runs in the background of a script has interrupts ignored, and so would all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What `hold_signals` changes where a test runs a command in this process; later tests would inherit it.
_BLOCKED = signal.pthread_sigmask(signal.SIG_BLOCK, ())
_HANDLERS = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}

# When no further slow test is begun, in seconds since 1970; tests/run.sh sets it from TROLL_TEST_MINUTES.
_UNTIL = float(os.environ.get("TROLL_TEST_UNTIL") or "inf")
# A host that takes this share of the processors' time away makes any limit too short.
_TOO_MUCH_STOLEN = 0.25
_BEFORE = pytest.StashKey[tuple[float, float]]()

# Tests that want a mirror set it themselves. Workers of pytest-xdist inherit what is left of the environment.
_MIRROR = os.environ.pop("TROLL_DATA_MIRROR", None) or os.environ.get("TROLL_TEST_MIRROR")
if _MIRROR:
    os.environ["TROLL_TEST_MIRROR"] = _MIRROR
REPOSITORY = Path(__file__).parents[1]


def _stolen() -> tuple[float, float]:
    """Processor time that the host of this virtual machine gave to others, and all of it."""
    try:
        ticks = [float(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):  # no Linux
        return 0.0, 1.0
    return ticks[7], sum(ticks)


def pytest_collection_modifyitems(items):
    """Files with a whole workflow first, then those with other slow tests: they take longest."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.get_closest_marker("snakemake") is None, item.path not in slow))


def pytest_collection_finish():
    """What the libraries have made stays: a garbage collection, which trainers ask for, leaves it out."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    item.stash[_BEFORE] = _stolen()
    if signal.pthread_sigmask(signal.SIG_SETMASK, _BLOCKED) != _BLOCKED:
        for number, handler in _HANDLERS.items():
            signal.signal(number, handler)
    if item.get_closest_marker("slow") and time.time() > _UNTIL:
        pytest.skip("the time for slow tests is over (TROLL_TEST_MINUTES)")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A time limit that was met while the host took the processors away tells nothing of the code."""
    outcome = yield
    if call.excinfo is None:
        return
    limit = call.excinfo.errisinstance(subprocess.TimeoutExpired) or "Timeout (>" in str(call.excinfo.value)
    before, now = item.stash.get(_BEFORE, (0.0, 0.0)), _stolen()
    share = (now[0] - before[0]) / max(now[1] - before[1], 1.0)
    if limit and share > _TOO_MUCH_STOLEN:
        report = outcome.get_result()
        place = (str(item.path), item.location[1] or 0)
        report.outcome = "skipped"
        report.longrepr = (*place, f"out of time, and the host took {share:.0%} of the processors' time")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture
def reduced(repository):
    """The contents of a small experiment file: two tasks, two rules, one seed."""
    return yaml.safe_load((repository / "tests/workflow/reduced.yaml").read_text())


@pytest.fixture(scope="session")
def tracked(repository):
    """The names of all files that git tracks and that are there."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=repository, capture_output=True, text=True, check=True
    )
    return [name for name in listed.stdout.split("\0") if name and (repository / name).exists()]


@pytest.fixture(scope="session")
def script(repository):
    """Loads a file of the checkout that is no part of the package, as a module."""

    def load(path):
        spec = importlib.util.spec_from_file_location(Path(path).stem, repository / path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def forked():
    """Variables with which `troll` is forked from a warm server; none where it cannot be started."""
    started = warm_server()
    return warm.ONE_THREAD | started if started else {}


@pytest.fixture
def troll(forked):
    """Runs `troll` with these arguments, in a process of its own that need not import the libraries."""

    def run(*arguments, **settings):
        command = ["troll"] if forked else [sys.executable, "-m", "troll.cli"]
        settings = {
            "capture_output": True,
            "text": True,
            "timeout": 300,
            "env": os.environ | forked,
        } | settings
        return subprocess.run([*command, *map(str, arguments)], **settings)

    return run


@pytest.fixture(scope="session")
def finished():
    """Writes the files of a trained and graded run, or base model, that nobody has trained."""
    from troll.common.files import write_json
    from troll.common.numerics import NUMERICS
    from troll.experiment.files import write_run_file
    from troll.experiment.run_config import RunConfig

    def write(directory, config, numerics=NUMERICS):
        directory.mkdir(parents=True, exist_ok=True)
        if isinstance(config, RunConfig):
            write_run_file(directory / "run.yaml", config)
            (directory / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
        digests = dict.fromkeys(("environment", "data", "base_model"), "d")
        manifest = {"run_id": config.run_id, "config": config.model_dump(), "digests": digests}
        write_json(directory / "manifest.json", manifest | {"numerics": numerics, "wall_s": 1.0})
        (directory / "samples.jsonl").touch()
        problems = {"p": {"passed": [True], "status": ["passed"]}}
        grades = {"metrics": {"pass@1": 1.0}, "problems": problems, "data_sha256": "d"}
        write_json(directory / "grades.json", grades)
        return directory

    return write


@pytest.fixture
def real_data(monkeypatch):
    """The local mirror of the public data sets, which the code under test finds too."""
    path = Path(_MIRROR or REPOSITORY.parent / "shared/data").resolve()
    if not path.is_dir():
        pytest.skip("no mirror of the public data sets here; TROLL_DATA_MIRROR names one")
    monkeypatch.setenv("TROLL_DATA_MIRROR", str(path))
    return path


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory):
    """A random one-layer model with the testbed's tokenizer, saved as a base model is."""
    from troll.experiment.model_settings import ModelSettings
    from troll.training.base_model import new_model
    from troll.training.outputs import save_model
    from troll.training.tokenizer import load_tokenizer, make_tokenizer

    directory = tmp_path_factory.mktemp("base")
    make_tokenizer({"chains": {}, "functions": {}}, 400, 3000, directory / "tokenizer")
    tokenizer = load_tokenizer(directory / "tokenizer")
    settings = ModelSettings(vocabulary=400, layers=1, width=64, heads=2, key_value_heads=1)
    save_model(new_model(settings, tokenizer, seed=3), tokenizer, directory / "checkpoint")
    return directory / "checkpoint"


@pytest.fixture(scope="session")
def guessing_base(tiny_base, tmp_path_factory):
    """A tiny model that has learnt to box a digit, right one time in ten: enough for rewards to differ."""
    from troll.experiment.run_config import BaseConfig
    from troll.training.base_model import train_base_model

    config = BaseConfig.model_validate(
        {
            "experiment": "tests",
            "run_id": "tiny/chains/base",
            "model": {
                "name": "tiny",
                "vocabulary": 400,
                "layers": 1,
                "width": 64,
                "heads": 2,
                "key_value_heads": 1,
                "supervised": {"steps": 80, "batch_size": 32, "learning_rate": 5e-3},
            },
            "task": {
                "name": "chains",
                "train": 1,
                "validation": 1,
                "test": 1,
                "settings": {"operations": [2], "guess": 1.0, "stop_early": 0.0, "guess_right": 0.5},
            },
            "seeds": {"model": 5, "data": 0},
        }
    )
    directory = tmp_path_factory.mktemp("guessing")
    train_base_model(config, tiny_base.parent / "tokenizer", directory)
    return directory / "checkpoint"
