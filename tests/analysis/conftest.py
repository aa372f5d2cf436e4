from pathlib import Path

import pandas as pd
import pytest
import synthetic

from troll.analysis.data.runs import Collected, collect
from troll.analysis.data.tidy import read_items, read_runs


@pytest.fixture(scope="session")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collected experiment: two tasks, conditions and estimators, clip and troll, three seeds."""
    root = tmp_path_factory.mktemp("results") / "testbed"
    run_dirs, base_dirs = synthetic.write_experiment(root, seeds=3, batches=5, problems=30)
    collect(run_dirs, root / "runs.parquet", base_dirs=base_dirs)
    return root


@pytest.fixture(scope="session")
def collected(experiment: Path) -> Collected:
    return Collected(read_runs(experiment / "runs.parquet"), read_items(experiment / "runs_items.parquet"))


@pytest.fixture(scope="session")
def runs(collected: Collected) -> pd.DataFrame:
    return collected.runs


@pytest.fixture(scope="session")
def items(collected: Collected) -> pd.DataFrame:
    return collected.items
