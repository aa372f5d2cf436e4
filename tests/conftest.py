"""Fixtures for several rooms: a tiny tokenizer and a tiny random model."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from pathlib import Path

import pytest

from troll.environment import quiet_libraries

quiet_libraries()

# Tests that want a mirror set it themselves.
_MIRROR = os.environ.pop("TROLL_DATA_MIRROR", None)
REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


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
    from troll.settings import ModelSettings
    from troll.training.base_model import new_model
    from troll.training.outputs import save_model
    from troll.training.tokenizer import load_tokenizer, make_tokenizer

    directory = tmp_path_factory.mktemp("base")
    make_tokenizer({"chains": {}, "functions": {}}, 400, 3000, directory / "tokenizer")
    tokenizer = load_tokenizer(directory / "tokenizer")
    settings = ModelSettings(vocabulary=400, layers=1, width=64, heads=2, key_value_heads=1).model_dump()
    save_model(new_model(settings, tokenizer, seed=3), tokenizer, directory / "checkpoint")
    return directory / "checkpoint"


@pytest.fixture(scope="session")
def guessing_base(tiny_base, tmp_path_factory):
    """A tiny model that has learnt to box a digit, right one time in ten: enough for rewards to differ."""
    from troll.settings import ModelSettings
    from troll.training.base_model import train_base_model

    directory = tmp_path_factory.mktemp("guessing")
    model = ModelSettings(vocabulary=400, layers=1, width=64, heads=2, key_value_heads=1).model_dump()
    model["supervised"] |= {"steps": 80, "batch_size": 32, "learning_rate": 5e-3}
    settings = {"operations": [2], "guess": 1.0, "stop_early": 0.0, "guess_right": 0.5}
    config = {
        "run_id": "tiny/chains/base",
        "model": model,
        "task": {"name": "chains", "settings": settings},
        "seeds": {"model": 5, "data": 0},
    }
    train_base_model(config, tiny_base.parent / "tokenizer", directory)
    return directory / "checkpoint"
