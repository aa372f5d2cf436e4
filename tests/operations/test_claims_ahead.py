"""Claims before any run: a broken file is found at once, and so is a claim that no run is about."""

import threading

import pytest
import yaml
from forked_snakemake import snakemake
from refusals import error_of, refused
from typer.testing import CliRunner

from troll.cli.app import app
from troll.cli.job_train import train
from troll.common.files import only_writer, write_json
from troll.experiment.experiment import resolve
from troll.experiment.files import parse_experiment, write_run_file
from troll.operations.claims_ahead import claims_in_words, claims_of, without_runs

CLAIM = {
    "id": "one",
    "sentence": "It ends above clip",
    "source": "us",
    "trust_region": "troll",
    "baseline": "clip",
    "metric": "pass@1",
    "direction": "higher",
}


@pytest.fixture
def write(reduced, tmp_path, monkeypatch):
    """Writes the reduced experiment with claims that differ from `CLAIM`; returns its path."""
    monkeypatch.chdir(tmp_path)

    def files(*changes):
        claims = [CLAIM | {"id": f"claim{number}"} | change for number, change in enumerate(changes)]
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(claims))
        path = tmp_path / "experiment.yaml"
        path.write_text(yaml.safe_dump(reduced | {"claims": ["mine.yaml"]}))
        return path

    return files


def contents(path, **changes):
    return yaml.safe_load(path.read_text()) | changes


def read(path, **changes):
    return parse_experiment(contents(path, **changes), "x")


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"methd": "troll"}, ("mine.yaml", "claim claim0", "'methd'")),
        ({"direction": "up"}, ("mine.yaml", "claim claim0", "direction", "'up'", "'higher'")),
    ],
)
def test_check_reads_the_claims_files(write, change, facts):
    path = write(change)
    for words in (["check", str(path)], ["check", str(path), "--names"]):
        result = CliRunner().invoke(app, words)
        error_of(result, *facts)
        assert not result.stdout


@pytest.mark.parametrize(
    "change",
    [
        {"trust_region": "soft-wall"},
        {"baseline": "none"},
        {"where": {"condition": ["gentle"]}},
        {"where": {"experiment": ["testbed*"]}},
        {"baseline": "gspo*", "at_equal_kl": True},
        {"baseline": "tr*", "at_equal_kl": True},
    ],
)
def test_a_claim_that_no_run_is_about_is_named(write, change):
    path = write({}, change)
    experiment = read(path)
    claims = claims_of(experiment)
    assert [claim.id for claim in without_runs(claims, experiment)] == ["claim1"]
    shown = CliRunner().invoke(app, ["check", str(path)]).stdout.splitlines()[-1]
    assert shown == "claims about this experiment: claim0; without runs here: 1, of your own: claim1"


def test_claims_of_the_package_about_other_experiments_are_only_counted(write):
    experiment = read(write({}), claims=["default", "mine.yaml"])
    claims = claims_of(experiment)
    others = without_runs(claims, experiment)
    (line,) = claims_in_words(claims, experiment).splitlines()
    assert len(others) > 10 and line.endswith(f"claim0; without runs here: {len(others)}")
    assert not any(claim.id in line for claim in others)


def test_many_claims_are_named_in_part(write):
    experiment = read(write(*[{}] * 10, *[{"trust_region": "soft-wall"}] * 10))
    (line,) = claims_in_words(claims_of(experiment), experiment).splitlines()
    assert "claim6, claim7 and 2 more; without runs here: 10, of your own: claim10, claim11, " in line
    assert line.endswith("claim16, claim17 and 2 more")


def test_claims_with_runs_are_none_of_these(write):
    equal = {"baseline": "cl*", "at_equal_kl": True}
    experiment = read(write({}, {"trust_region": "tr*"}, {"baseline": "base"}, {"baseline": 0.5}, equal))
    assert claims_in_words(claims_of(experiment), experiment) == (
        "claims about this experiment: claim0, claim1, claim2, claim3, claim4"
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"trust_region": "trol"},
            "trust_region: no trust region of reduced is called 'trol'; did you mean 'troll'?",
        ),
        ({"baseline": "clap"}, "baseline: no trust region of reduced is called 'clap'; did you mean 'clip'?"),
        (
            {"metric": "pass@99"},
            "metric: pass@99 needs 99 samples per problem, but evaluation.samples is 2; raise it or choose a "
            "smaller k",
        ),
        (
            {"metric": "aime24/pass@4"},
            "metric: runs here do not report aime24/pass@4; evaluate_on gives aime24/pass@1, aime24/pass@2",
        ),
        (
            {"metric": "math-eval/pass@1"},
            "metric: runs here do not report math-eval/pass@1; evaluate_on gives aime24/pass@1, "
            "aime24/pass@2",
        ),
        (
            {"metric": "mean/kept_mas"},
            "metric: 'kept_mas' is not a logged metric; did you mean 'mean/kept_mass'?",
        ),
    ],
)
def test_what_will_keep_a_claim_from_a_verdict_is_said(write, change, said):
    path = write({}, change)
    data = contents(path)
    data["tasks"]["chains"]["evaluate_on"] = {"aime24": {"samples": 2}}
    path.write_text(yaml.safe_dump(data))
    result = CliRunner().invoke(app, ["check", str(path)])
    assert result.exit_code == 0
    counted, *doubts = result.stdout.splitlines()[-2:]
    assert counted.endswith("of your own: claim1" if "metric" not in change else "claim0, claim1")
    assert doubts == [f"mine.yaml: claim claim1: {said}"]


@pytest.mark.parametrize(
    "change",
    [
        {"metric": "pass@2"},
        {"metric": "base/pass@1"},
        {"metric": "mean/gate"},
        {"metric": "mean/wall_width"},
        {"metric": "status/crash"},
        {"trust_region": "trol*"},
        {"trust_region": "trol", "where": {"experiment": ["testbed"]}},
        {"metric": "pass@99", "where": {"experiment": ["testbed"]}},
        {"baseline": "base"},
        {"trust_region": "nothing-like-it"},
    ],
)
def test_a_claim_that_may_be_meant_as_it_is_raises_no_doubt(write, change):
    experiment = read(write({}, change))
    assert "\n" not in claims_in_words(claims_of(experiment), experiment)


def test_the_packages_own_claims_are_not_doubted(write):
    """Some are about troll-k16, which is not meant to be this experiment's troll."""
    experiment = read(write({}), claims=["default"])
    assert "\n" not in claims_in_words(claims_of(experiment), experiment)


def test_a_wrong_metric_is_found_before_any_run(write):
    result = CliRunner().invoke(app, ["check", str(write({"metric": "acuracy"}))])
    error_of(result, "mine.yaml", "claim claim0", "metric", "'acuracy'")
    assert not result.stdout


def test_settings_of_a_run_that_clash_name_no_key_that_is_not_there(write):
    data = contents(write({}))
    data["conditions"]["stale"]["mini_batches"] = 3
    with refused("x.yaml", "conditions.stale", "run tiny/chains/clip/grpo/stale/seed0", "16 responses", 3):
        parse_experiment(data, "x.yaml")


@pytest.mark.snakemake
def test_snakemake_refuses_a_broken_claims_file_before_any_job(repository, write, tmp_path):
    write({"metric": 3})
    for name in ("Snakefile", "workflow", "envs"):
        (tmp_path / name).symlink_to(repository / name)
    result = snakemake("--cores", "1", "--configfile", "experiment.yaml", cwd=tmp_path)
    error_of(result, "mine.yaml", "claim claim0", "metric", 3, alone=False)
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(("rate", "trained"), [(1e-3, []), (2e-3, [2e-3])])
def test_what_another_attempt_finished_is_the_run_if_its_settings_are(
    reduced, tmp_path, monkeypatch, rate, trained
):
    """The other one may have outlived its workflow, and the experiment file have changed since it began."""

    def configured(rate):
        reduced["conditions"]["stale"]["learning_rate"] = rate
        experiment = parse_experiment(reduced, "test")
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
