"""`troll train` beside another attempt at the same run: it waits, and leaves alone what that has finished."""

import threading

import pytest
import yaml

from troll.cli.train import train
from troll.common.files import only_writer, write_json
from troll.experiment.experiment import resolve
from troll.experiment.files import parse_experiment, write_run_file


@pytest.mark.parametrize(("rate", "trained"), [(1e-3, []), (2e-3, [2e-3])])
def test_what_another_attempt_finished_is_the_run_if_its_settings_are(
    repository, tmp_path, monkeypatch, rate, trained
):
    """The other one may have outlived its workflow, and the experiment file have changed since it began."""
    data = yaml.safe_load((repository / "tests/workflow/reduced.yaml").read_text())

    def configured(rate):
        data["conditions"]["stale"]["learning_rate"] = rate
        experiment = parse_experiment(data, "test")
        return resolve(experiment, experiment.runs()[0])

    begun, rates = threading.Event(), []

    def other():
        with only_writer(tmp_path):
            begun.set()
            waits.wait(60)
            write_json(tmp_path / "manifest.json", {"config": configured(1e-3).model_dump()})

    waits = threading.Event()
    monkeypatch.setattr("troll.common.files.say", lambda text: waits.set())
    monkeypatch.setattr("troll.common.signals.hold_signals", lambda: None)
    monkeypatch.setattr(
        "troll.training.run.train_run", lambda config, *_: rates.append(config.training.learning_rate)
    )
    write_run_file(tmp_path / "run.yaml", configured(rate))
    thread = threading.Thread(target=other)
    thread.start()
    assert begun.wait(60)
    train(tmp_path / "run.yaml", tmp_path, tmp_path, "none", "exit")
    thread.join()
    assert waits.is_set() and rates == trained
