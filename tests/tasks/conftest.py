from pathlib import Path

import pytest

DATA = Path(__file__).parents[2] / "../shared/data"


@pytest.fixture
def real_data(monkeypatch):
    """The local mirror of the real data."""
    if not (DATA / "MANIFEST.md").exists():
        pytest.skip(f"no mirror of the data at {DATA}")
    monkeypatch.setenv("TROLL_DATA_MIRROR", str(DATA))
    return DATA
