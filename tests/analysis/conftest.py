import pytest
import synthetic
import synthetic_board

from troll.analysis.data.tidy import read_tidy
from troll.analysis.leaderboard.protocol import Protocol


@pytest.fixture(scope="session")
def experiment(tmp_path_factory):
    """A collected experiment: two tasks, conditions and estimators, clip and troll, three seeds."""
    root = tmp_path_factory.mktemp("results") / "testbed"
    run_dirs, base_dirs = synthetic.write_experiment(root, seeds=3, batches=5, problems=30)
    synthetic.collect(run_dirs, root, base_dirs=base_dirs)
    return root


@pytest.fixture(scope="session")
def one_setting(tmp_path_factory):
    """A collected experiment: clip and troll in one setting, two seeds."""
    root = tmp_path_factory.mktemp("one-setting") / "testbed"
    run_dirs, base_dirs = synthetic.write_experiment(
        root, tasks=["chains"], conditions=["stale"], estimators=["grpo"], seeds=2, batches=2, problems=6
    )
    synthetic.collect(run_dirs, root, base_dirs=base_dirs)
    return root


@pytest.fixture(scope="session")
def collected(experiment):
    return read_tidy(experiment)


@pytest.fixture(scope="session")
def runs(collected):
    return collected.runs


@pytest.fixture(scope="session")
def items(collected):
    return collected.items


@pytest.fixture
def protocol():
    return Protocol.model_validate(synthetic_board.PROTOCOL)


@pytest.fixture(scope="session")
def board(tmp_path_factory):
    """A board of synthetic runs, the results of its fresh seeds, and the scores of its trials."""
    return synthetic_board.made_board(tmp_path_factory.mktemp("board"))
